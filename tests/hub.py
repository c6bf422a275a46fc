"""A Hugging Face hub on 127.0.0.1 with one dataset, for the real client of `datasets`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

REVISION = "a" * 40


def _describe(name: str, content: bytes) -> dict[str, object]:
    oid = hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": oid}


def _handler(dataset: str, files: dict[str, bytes]) -> type[BaseHTTPRequestHandler]:
    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _send(self, content: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _json(self, value: object) -> None:
            self._send(json.dumps(value).encode(), Content_Type="application/json")

        def _missing(self) -> None:
            self._send(b"{}", 404, X_Error_Code="EntryNotFound")

        def do_GET(self) -> None:
            path, api = urlparse(self.path).path, f"/api/datasets/{dataset}"
            name = path.rpartition("/")[2]
            if path.startswith(f"{api}/tree/"):
                self._json([_describe(*item) for item in files.items()])
            elif path == api or path.startswith(f"{api}/revision/"):
                siblings = [{"rfilename": file} for file in files]
                self._json({"id": dataset, "sha": REVISION, "siblings": siblings, "tags": []})
            elif path.startswith(f"/datasets/{dataset}/resolve/") and name in files:
                tag = hashlib.sha1(files[name]).hexdigest()
                self._send(files[name], ETag=f'"{tag}"', X_Repo_Commit=REVISION)
            else:
                self._missing()

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            is_json = body.startswith("{")
            paths = json.loads(body)["paths"] if is_json else parse_qs(body).get("paths", [])
            self._json([_describe(file, files[file]) for file in paths if file in files])

    return Hub


@contextlib.contextmanager
def hub(dataset: str, files: dict[str, bytes]) -> Iterator[str]:
    """Serve a dataset; yields the address for HF_ENDPOINT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(dataset, files))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
