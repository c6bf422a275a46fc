"""compose.yaml's services as processes of this machine, at other addresses."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from ports import free_port, until_healthy

COMPOSE = ROOT / "infra" / "compose"
# inside the network of compose.yaml
PORTS = {"postgres": 5432, "minio": 9000, "prefect": 4200, "mlflow": 5000, "worker": 8080}
ENDS_WITHIN = 120.0  # seconds after SIGTERM: an upper bound on a loaded machine
LIST = """
import boto3, sys
pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=sys.argv[1])
print(*(found["Key"] for page in pages for found in page["Contents"]), sep="\\n")
"""
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolated(value: Any, env: dict[str, str]) -> Any:
    """As Compose fills in ${NAME}, ${NAME:-otherwise} and ${NAME:?message}."""
    if isinstance(value, dict):
        return {key: interpolated(part, env) for key, part in value.items()}
    if isinstance(value, list):
        return [interpolated(part, env) for part in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        name, kind, text = match.groups()
        if env.get(name):
            return env[name]
        assert kind == "-", f"{name}: {text}"
        return text

    return VARIABLE.sub(fill, value)


def image_programs(folder: Path) -> None:
    """Fill a new folder as the Dockerfile fills /usr/local/bin."""
    folder.mkdir(parents=True)
    copied = re.compile(r"^COPY --chmod=755 (\S+) /usr/local/bin/(\S+)", re.MULTILINE)
    for source, name in copied.findall((COMPOSE / "Dockerfile").read_text()):
        text = (ROOT / source).read_text()
        (folder / name).write_text(text.replace("#!/usr/bin/env python3", f"#!{sys.executable}"))
        (folder / name).chmod(0o755)


class Stack:
    """Services of compose.yaml; `bin` is the image's, filled as the Dockerfile says."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.running = folder, {}
        raw = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
        self.services = interpolated(raw, env)["services"]
        self.ports = {name: free_port() for name in PORTS}
        self.bin = folder / "bin"
        image_programs(self.bin)

    def here(self, text: str) -> str:
        """An address inside the network of compose.yaml, as it is on this machine."""
        for name, port in PORTS.items():
            text = re.sub(rf"\b{name}:{port}\b", f"127.0.0.1:{self.ports[name]}", text)
        return text

    def env(self, name: str) -> dict[str, str]:
        raw = self.services[name].get("environment", {})
        given = {key: self.here(str(value)) for key, value in raw.items()}
        own = (str(self.bin), str(Path(sys.executable).parent))
        path = os.pathsep.join([*own, os.environ["PATH"]])
        home = {"HOME": str(self.folder), "PREFECT_HOME": str(self.folder / f".prefect-{name}")}
        kept = {key: os.environ[key] for key in ("LANG", "LC_ALL", "TMPDIR") if key in os.environ}
        here = {"PREFECT_WORKER_WEBSERVER_PORT": str(self.ports["worker"])}
        here |= {"PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        return kept | home | here | given

    def command(self, name: str) -> list[str]:
        own = str(PORTS.get(name, "-"))
        found = []
        for word in self.services[name]["command"]:
            bare = re.sub(rf"^(--port=)?{own}$", rf"\g<1>{self.ports.get(name)}", word)
            found.append(self.here(bare).replace("0.0.0.0", "127.0.0.1"))
        return found

    def start(self, name: str, **changes: str) -> None:
        log = (self.folder / f"{name}.log").open("w")
        here = {"cwd": self.folder, "env": self.env(name) | changes, "stdout": log, "stderr": log}
        self.running[name] = subprocess.Popen(self.command(name), start_new_session=True, **here)

    def run(self, *words: str, like: str, cwd: Path | None = None, **changes: str) -> str:
        """A command with the environment of a service."""
        env = self.env(like) | changes
        command = [shutil.which(words[0], path=env["PATH"]), *words[1:]]
        here = {"cwd": cwd or self.folder, "env": env}
        found = subprocess.run(command, capture_output=True, text=True, **here)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    def until_healthy(self, name: str, seconds: float = 600) -> None:
        """By the service's own health check."""
        words = self.services[name]["healthcheck"]["test"][1:]
        check = [re.sub(rf":{PORTS[name]}/", f":{self.ports[name]}/", word) for word in words]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.running[name].poll() is None, self.log(name)
            address = ("127.0.0.1", self.ports[name])
            with suppress(OSError, AssertionError), socket.create_connection(address):
                self.run(*check, like=name)
                return
            time.sleep(0.5)
        raise AssertionError(self.log(name))

    def log(self, name: str) -> str:
        """The end of what a service has said."""
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def stop(self) -> None:
        """Stop the services as Compose does, last first; one that has to be killed is a failure."""
        killed = [name for name, process in reversed(self.running.items()) if not self.end(process)]
        self.running.clear()
        logs = "".join(f"\n{name}:\n{self.log(name)}" for name in killed)
        assert not killed, f"did not end within {ENDS_WITHIN:.0f} s of SIGTERM: {logs}"

    @staticmethod
    def end(process: subprocess.Popen[bytes]) -> bool:
        """Whether the process ended by itself after SIGTERM; its group is killed."""
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN)
        has_ended = process.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return has_ended


def postgres_programs() -> Path | None:
    """The folder of initdb and postgres: on the path, or where Debian puts them."""
    found = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return Path(found).parent if found else debian[-1].parent if debian else None


needs_postgres = pytest.mark.skipif(
    postgres_programs() is None, reason="needs PostgreSQL's server programs (Debian: postgresql)"
)


class Postgres:
    """A PostgreSQL in a folder of its own, with the user and databases of compose.yaml."""

    def __init__(self, port: int, env: dict[str, str]) -> None:
        self.programs, self.env, self.port = postgres_programs(), env, port
        # not in pytest's: only its owner may enter that
        folder = self.folder = Path(tempfile.mkdtemp(prefix="dopsd-postgres-"))
        # it refuses to run as root
        self.user = {} if os.geteuid() else {"user": "postgres", "group": "postgres"}
        folder.chmod(0o777)
        (folder / "password").write_text(env["POSTGRES_PASSWORD"])
        data = ("--pgdata", str(folder / "data"))
        words = ("--username", env["POSTGRES_USER"], "--pwfile", str(folder / "password"))
        self.call("initdb", *data, *words, "--auth", "scram-sha-256", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off"
        options += f" -c unix_socket_directories={folder}"
        self.call("pg_ctl", *data, "--wait", "--log", str(folder / "log"), "-o", options, "start")
        self.sql("postgres", f"CREATE DATABASE {env['POSTGRES_DB']}")
        self.sql("postgres", (COMPOSE / "databases.sql").read_text())

    def call(self, program: str, *words: str) -> None:
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.folder}
        subprocess.run([str(self.programs / program), *words], check=True, **how, **self.user)

    def sql(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        import psycopg2

        who = {"user": self.env["POSTGRES_USER"], "password": self.env["POSTGRES_PASSWORD"]}
        connection = psycopg2.connect(host="127.0.0.1", port=self.port, dbname=database, **who)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            found = cursor.fetchall() if cursor.description else []
        connection.close()
        return found

    def stop(self) -> None:
        self.call("pg_ctl", "--pgdata", str(self.folder / "data"), "--mode", "immediate", "stop")
        shutil.rmtree(self.folder)


class Store:
    """An S3 server in place of MinIO; it knows no passwords, so that signatures go unchecked."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        words = (Path(sys.executable).with_name("moto_server"), "--host", "127.0.0.1")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*words, "--port", str(port)], **quiet)
        until_healthy(self.url, self.process)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(120)
