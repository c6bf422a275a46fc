"""Start, find and end the processes of `make up`, each in a session of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / "work" / "services"
PIDS = STATE / "services.json"
MACHINE = STATE / "machine"  # name of this machine, where it joined a server elsewhere
POOL, MACHINES = "dopsd", "machines"  # work pools: of this workspace, of machines that joined
ENV = "env"  # in STATE: addresses, for shells
HOST = "127.0.0.1"  # where servers listen, unless `make up HOST=ADDRESS` names another address
START = 300.0  # seconds to become healthy on a busy machine; usual are 20
END = 40.0  # seconds to end
LOOK_EVERY = 0.25


State = dict[str, dict[str, Any]]  # what was started here, by name


class Trouble(Exception):
    """Error that its one-line message explains."""


@dataclass(frozen=True)
class Service:
    """A server or worker: its command and, for a server, its port and health address."""

    name: str
    words: tuple[str, ...]
    port: int | None = None
    health: str = ""
    host: str = HOST

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{self.host}:{self.port}"


def machine_name() -> str:
    """Return the name under which this machine joined a server elsewhere; empty if it did not."""
    return MACHINE.read_text(encoding="utf-8").strip() if MACHINE.is_file() else ""


def command(name: str, *words: str) -> tuple[str, ...]:
    """Return the command of a program in this script's environment, whatever PATH says."""
    return (str(Path(sys.executable).parent / name), *words)


def is_healthy(service: Service) -> bool:
    """Tell whether the server's health address answers 200."""
    with (
        suppress(urllib.error.URLError, OSError),
        urllib.request.urlopen(f"{service.url}{service.health}", timeout=2) as response,
    ):
        return response.status == 200
    return False


def is_answering(api: str) -> bool:
    """Tell whether the API of a Prefect server answers."""
    try:
        with urllib.request.urlopen(f"{api}/health", timeout=5):
            return True
    except OSError:
        return False


def is_taken(host: str, port: int) -> bool:
    """Tell whether something listens on a port of an address of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def is_alive(pid: int, started: float) -> bool:
    """Tell whether a process lives; the start time tells it from a later one with the same id."""
    import psutil

    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 5 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def read_state() -> State:
    """Return the services that were started here and still live, by name."""
    if not PIDS.is_file():
        return {}
    entries = json.loads(PIDS.read_text(encoding="utf-8"))
    return {
        name: entry
        for name, entry in entries.items()
        if is_alive(int(entry["pid"]), entry["started"])
    }


def write_state(state: State) -> None:
    """Write services.json, whole or not at all."""
    STATE.mkdir(parents=True, exist_ok=True)
    tmp = PIDS.with_suffix(".tmp")
    tmp.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    tmp.rename(PIDS)


def prefect(*words: str, env: dict[str, str]) -> None:
    """Run a `prefect` command.

    Raises:
        Trouble: with its last line, if it fails.
    """
    process = subprocess.run(
        command("prefect", "--no-prompt", *words),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    if process.returncode:
        last_lines = (process.stdout + process.stderr).strip().splitlines()[-1:]
        raise Trouble(f"`prefect {' '.join(words)}` failed: {''.join(last_lines)}")


def check_ports(services: list[Service], state: State) -> None:
    """Check before any start that each port is free, or that its service already runs there.

    Raises:
        Trouble: if a port is taken, or a service runs on another port.
    """
    ports = {f"{service.name.upper()}_PORT": service.port for service in services}
    for service in services:
        entry = state.get(service.name)
        if entry and (int(entry["port"]), entry.get("host", HOST)) != (service.port, service.host):
            where = f"{entry.get('host', HOST)}:{entry['port']}"
            raise Trouble(f"{service.name} runs on {where}; run `make down` first")
        if not entry and is_taken(service.host, service.port):
            free_ports = ports | {f"{service.name.upper()}_PORT": service.port + 1}
            words = " ".join(f"{name}={port}" for name, port in free_ports.items())
            raise Trouble(
                f"port {service.port} is taken by another program; stop that program, or run"
                f" `make up {words}`"
            )


def restore_interrupts() -> None:
    """Make a new process react to SIGINT, which Prefect's worker sends itself to end.

    Processes that a script starts with `&` ignore SIGINT otherwise.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(service: Service, env: dict[str, str], state: State, **facts: str) -> None:
    """Start a service unless it runs, and write its process id to disk before anything waits.

    Args:
        service: What to start.
        env: Its environment.
        state: What runs already; the service is added.
        facts: More to remember of it.
    """
    if service.name in state:
        return
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / f"{service.name}.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            service.words,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=restore_interrupts,
        )
    state[service.name] = {
        "pid": process.pid,
        "started": time.time(),
        "port": service.port or 0,
        "host": service.host,
        **facts,
    }
    write_state(state)


def wait_until_healthy(service: Service, state: State) -> None:
    """Wait until a server answers.

    Raises:
        Trouble: if the server ended, or did not answer in START seconds.
    """
    deadline = time.monotonic() + START
    while not is_healthy(service):
        log = STATE / f"{service.name}.log"
        if not is_alive(int(state[service.name]["pid"]), state[service.name]["started"]):
            raise Trouble(f"{service.name} ended during its start; see the last lines of {log}")
        if time.monotonic() > deadline:
            raise Trouble(
                f"{service.name} does not answer after {START:.0f} s; see {log}, then run"
                " `make down`"
            )
        time.sleep(LOOK_EVERY)


def is_flow(pid: int) -> bool:
    """Tell whether a process is one of Prefect's."""
    import psutil

    try:
        return any("prefect" in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def here(word: str) -> list[int]:
    """List processes of this workspace whose command has an argument that ends in `word`."""
    import psutil

    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if (
                any(argument.endswith(word) for argument in process.cmdline())
                and Path(process.cwd()) == ROOT
            ):
                pids.append(process.pid)
    return pids


def end(pid: int, started: float) -> bool:
    """End a service with SIGTERM, then kill what is left of its group.

    Returns:
        Whether the service ended within END seconds, so that it was not killed.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END
    while is_alive(pid, started) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    has_ended = not is_alive(pid, started)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return has_ended


def write_env(env: dict[str, str]) -> None:
    """Write what shells need to reach the servers to a file for them to source."""
    names = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "no_proxy", "NO_PROXY")
    lines = [f"export {name}={shlex.quote(env[name])}\n" for name in names if name in env]
    (STATE / ENV).write_text("".join(lines), encoding="utf-8")
