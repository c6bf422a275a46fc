"""A Hugging Face hub on 127.0.0.1, in memory: what its real clients ask when they push and load.

Commits are whole or not at all, large files arrive by the LFS protocol, and every digest is
checked. `failing` makes an endpoint answer with a status of its own.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_of_the_test"
LARGE = (".safetensors",)  # what .gitattributes sends to LFS


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def described(path: str, content: bytes) -> dict[str, object]:
    """An entry of a tree."""
    entry = {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
    if PurePosixPath(path).suffix in LARGE:
        oid = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 130}
    return entry


@dataclass
class Commit:
    oid: str
    message: str
    files: dict[str, bytes]  # all files after it


@dataclass
class Repo:
    is_private: bool
    branches: dict[str, list[Commit]]


@dataclass
class Hub:
    """Repositories, stored objects and requests of a server."""

    address: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # of LFS, by sha256
    requests: list[str] = field(default_factory=list)
    failing: dict[str, int] = field(default_factory=dict)  # status, by a pattern of requests

    def add(self, repo: str, files: dict[str, bytes]) -> None:
        """Add a repository with these files, such as a dataset."""
        self.repos[repo] = Repo(False, {"main": [Commit("a" * 40, "files", files)]})

    def files(self, repo: str, branch: str = "main") -> dict[str, bytes]:
        return self.repos[repo].branches[branch][-1].files

    def commits(self, repo: str, branch: str = "main") -> int:
        """Commits after the first, which creates a repository."""
        return len(self.repos[repo].branches[branch]) - 1

    def uploads(self) -> int:
        return sum(line.startswith("PUT /lfs/") for line in self.requests)


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str = "", code: str = "", url: str = "") -> None:
        self.status, self.code = status, code
        self.answer = {"error": message, "url": url}


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        line, body = f"{self.command} {path}", self.body()
        self.hub.requests.append(line)
        try:
            for pattern, status in self.hub.failing.items():
                if re.search(pattern, line):
                    raise Refused(status, "asked for by the test")
            if not path.startswith("/lfs/"):
                self.check_token()
            for pattern, name in ROUTES.items():
                if match := re.fullmatch(pattern, line):
                    return getattr(self, name)(body, *match.groups())
            raise Refused(501, f"no such endpoint: {line}")
        except Refused as error:
            self.send(error.status, error.answer, code=error.code)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def check_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "Invalid credentials in Authorization header")

    def send(self, status: int, content: object, code: str = "", **headers: str) -> None:
        is_raw = isinstance(content, bytes)
        data = content if is_raw else json.dumps(content).encode()
        self.send_response(status)
        kind = "octet-stream" if is_raw else "json"
        self.send_header("Content-Type", f"application/{kind}")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if code:
            self.send_header("X-Error-Code", code)
        if status >= 400:
            self.send_header("X-Error-Message", json.loads(data)["error"])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def repo(self, name: str) -> Repo:
        if name not in self.hub.repos:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return self.hub.repos[name]

    def commit_of(self, name: str, revision: str) -> Commit:
        branches = self.repo(name).branches
        if revision in branches:
            return branches[revision][-1]
        for commits in branches.values():
            for commit in commits:
                if commit.oid == revision:
                    return commit
        raise Refused(404, "Invalid rev id", "RevisionNotFound")

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repos:
            url = f"{self.hub.address}/{name}"
            raise Refused(409, "You already created this model repo", url=url)
        is_private = asked.get("visibility", "private" if asked.get("private") else "") == "private"
        first = Commit("0" * 39 + "1", "initial commit", {".gitattributes": b"*.safetensors lfs\n"})
        self.hub.repos[name] = Repo(is_private, {"main": [first]})
        self.send(200, {"url": f"{self.hub.address}/{name}"})

    def branch(self, body: bytes, name: str, branch: str) -> None:
        branches = self.repo(name).branches
        if branch in branches:
            raise Refused(409, "Reference already exists")
        branches[branch] = branches["main"][:]
        self.send(200, {})

    def validate(self, body: bytes) -> None:
        text = json.loads(body)["content"]
        head = yaml.safe_load(text.split("---\n")[1])
        errors = [] if isinstance(head, dict) else [{"message": "no header"}]
        self.send(400 if errors else 200, {"errors": errors, "warnings": [], "error": "header"})

    def info(self, body: bytes, name: str, revision: str | None = None) -> None:
        commit = self.commit_of(name, revision or "main")
        files = sorted(commit.files.items())
        siblings = [{"rfilename": file, "size": len(content)} for file, content in files]
        repo = self.repo(name)
        answer = {"id": name, "modelId": name, "sha": commit.oid, "private": repo.is_private}
        card = commit.files.get("README.md", b"").split(b"---\n")
        answer |= {"cardData": yaml.safe_load(card[1])} if len(card) > 2 else {}
        self.send(200, answer | {"siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def tree(self, body: bytes, name: str, revision: str, folder: str | None = None) -> None:
        files = self.commit_of(name, revision).files
        if folder:
            files = {path: data for path, data in files.items() if path.startswith(f"{folder}/")}
            if not files:
                raise Refused(404, "Entry not found", "EntryNotFound")
        self.send(200, [described(path, content) for path, content in sorted(files.items())])

    def paths_info(self, body: bytes, name: str, revision: str) -> None:
        asked = parse_qs(body.decode()).get("paths", [])
        files = self.commit_of(name, revision).files
        self.send(200, [described(path, files[path]) for path in asked if path in files])

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        files = self.commit_of(name, revision).files
        answers = []
        for asked in json.loads(body)["files"]:
            path = asked["path"]
            is_large = PurePosixPath(path).suffix in LARGE
            answer = {"path": path, "uploadMode": "lfs" if is_large else "regular"}
            if path in files:
                digest = hashlib.sha256(files[path]).hexdigest()
                answer["oid"] = digest if is_large else git_oid(files[path])
            answers.append(answer | {"shouldIgnore": False})
        self.send(200, {"files": answers})

    def lfs_batch(self, body: bytes, name: str) -> None:
        self.repo(name)
        objects = []
        for asked in json.loads(body)["objects"]:
            action = {}
            if asked["oid"] not in self.hub.objects:
                upload = {"href": f"{self.hub.address}/lfs/{asked['oid']}", "header": {}}
                verify = {"href": f"{self.hub.address}/verify/{asked['oid']}"}
                action = {"actions": {"upload": upload, "verify": verify}}
            objects.append(asked | action)
        self.send(200, {"transfer": "basic", "objects": objects})

    def lfs_put(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, "content does not match its digest")
        self.hub.objects[oid] = body
        self.send(200, b"")

    def lfs_verify(self, body: bytes, oid: str) -> None:
        if len(self.hub.objects[oid]) != json.loads(body)["size"]:
            raise Refused(400, "content does not match its size")
        self.send(200, {})

    def commit(self, body: bytes, name: str, revision: str) -> None:
        operations = [json.loads(line) for line in body.decode().splitlines()]
        commits = self.repo(name).branches[revision]
        files, header = dict(commits[-1].files), operations[0]["value"]
        if header.get("parentCommit", commits[-1].oid) != commits[-1].oid:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        for operation in operations[1:]:
            value, path = operation["value"], operation["value"]["path"]
            if operation["key"] == "file":
                files[path] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise Refused(400, f"{path} was not uploaded")
                files[path] = self.hub.objects[value["oid"]]
            else:
                del files[path]
        oid = hashlib.sha1(body).hexdigest()
        commits.append(Commit(oid, header["summary"], files))
        self.send(200, {"commitUrl": f"{self.hub.address}/{name}/commit/{oid}", "commitOid": oid})

    def resolve(self, body: bytes, name: str, revision: str, path: str) -> None:
        commit = self.commit_of(name, revision)
        if path not in commit.files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        content = commit.files[path]
        digest = hashlib.sha256(content).hexdigest()
        self.send(200, content, X_Repo_Commit=commit.oid, ETag=f'"{digest}"')


KIND, NAME = "(?:models|datasets)", r"([\w.-]+/[\w.-]+)"
ROUTES = {
    "POST /api/repos/create": "create",
    "POST /api/validate-yaml": "validate",
    f"POST /api/models/{NAME}/branch/(.+)": "branch",
    f"GET /api/{KIND}/{NAME}": "info",
    f"GET /api/{KIND}/{NAME}/revision/(.+)": "info",
    f"GET /api/{KIND}/{NAME}/tree/([^/]+)(?:/(.+))?": "tree",
    f"POST /api/datasets/{NAME}/paths-info/(.+)": "paths_info",
    f"POST /api/models/{NAME}/preupload/(.+)": "preupload",
    f"POST /{NAME}\\.git/info/lfs/objects/batch": "lfs_batch",
    "PUT /lfs/(.+)": "lfs_put",
    "POST /verify/(.+)": "lfs_verify",
    f"POST /api/models/{NAME}/commit/(.+)": "commit",
    f"(?:GET|HEAD) (?:/datasets)?/{NAME}/resolve/([^/]+)/(.+)": "resolve",
}


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve a hub on a free port while the context lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfThisHub", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
