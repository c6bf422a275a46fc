"""compose.yaml as its README starts it, with a repository of this machine and passwords for it."""

import json
import re
import time
from pathlib import Path
from typing import Any

import yaml
from composed import COMPOSE, LIST
from engine import Engine
from workspace import Workspace

SECRETS = {"POSTGRES_PASSWORD": "p4ss", "STORE_USER": "user", "STORE_PASSWORD": "w0rd"}
WORKERS = {"DOPSD_REPOSITORY": "/origin", "COMPOSE_PROFILES": "cpu"}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # threads of a busy machine wait for each other


class Stack:
    def __init__(self, engine: Engine, folder: Path, origin: Workspace) -> None:
        self.engine, self.folder = engine, folder
        branch = origin.run("git", "branch", "--show-current").strip()
        lines = SECRETS | WORKERS | {"DOPSD_REVISION": branch}
        (folder / "env").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
        worker = {"volumes": [f"{origin.folder}:/origin:ro"], "environment": ONE_THREAD}
        (folder / "here.yaml").write_text(yaml.safe_dump({"services": {"worker": worker}}))

    def compose(self, *words: str, check: bool = True) -> str:
        files = [f"--file={COMPOSE / 'compose.yaml'}", f"--file={self.folder / 'here.yaml'}"]
        env = f"--env-file={self.folder / 'env'}"
        command = ("docker", "compose", "--progress=plain", env, *files, *words)
        return self.engine.run(*command, check=check)

    def up(self) -> float:
        """Seconds until all services are healthy."""
        started = time.monotonic()
        self.compose("up", "--detach", "--wait", "--no-build", "--pull=never")
        return time.monotonic() - started

    def worker(self, *words: str, check: bool = True) -> str:
        """A command in the worker's container."""
        return self.compose("exec", "-T", "worker", *words, check=check)

    def sql(self, database: str, statement: str) -> list[str]:
        psql = ("psql", "--username=dopsd", f"--dbname={database}", "--no-align", "--tuples-only")
        return self.compose("exec", "-T", "postgres", *psql, f"--command={statement}").splitlines()

    def stored(self, bucket: str) -> list[str]:
        """Names in a bucket of the S3 store."""
        run = ("run", "--rm", "--no-deps", "-T", "buckets", "python3", "-c", LIST, bucket)
        return self.compose(*run).splitlines()

    def state(self, name: str) -> dict[str, Any]:
        """What the daemon knows about a service's container."""
        container = self.compose("ps", "--all", "--quiet", name)
        return json.loads(self.engine.run("docker", "inspect", container))[0]

    def memory(self) -> dict[str, str]:
        """By service."""
        words = ("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}")
        lines = self.engine.run("docker", *words)
        return dict(re.findall(r"^dopsd-(\w+)-1 (\S+)", lines, re.MULTILINE))

    @property
    def workspace(self) -> Path:
        """The worker's volume, seen from this machine."""
        where = ("--format", "{{.Mountpoint}}", "dopsd_workspace")
        return Path(self.engine.run("docker", "volume", "inspect", *where))
