"""Fork `python -m dopsd ...` of tests from a process that has torch, transformers and peft loaded.

A new process takes 5 seconds of CPU time and more to load them. The first `python` and `dopsd` on
the PATH of such a test are clients (warm_client.py) of this process. dopsd itself is loaded after
the fork, from the command's own PYTHONPATH. Not for tests of signals, process groups, locks or
terminals: a command is in a session of its own.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

HEAVY = """accelerate bokeh.embed bokeh.plotting huggingface_hub jinja2 matplotlib.pyplot
    mlflow.store.tracking.sqlalchemy_store peft pydantic.main ruamel.yaml safetensors.torch
    scipy.sparse torch torch.distributed transformers transformers.generation yaml"""
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "ERROR"}  # as dopsd sets them
CLIENT = Path(__file__).with_name("warm_client.py")
SCRIPT = """#!/bin/sh
{case}
exec {python} -IS {client} {address} "$@"
"""
ELSE = '[ "$1 $2" = "-m dopsd" ] && shift 2 || exec {python} "$@"'
_servers: list[subprocess.Popen[bytes]] = []


@cache
def warm_bin() -> Path:
    """Start the server, which ends with this process; return the folder that PATH begins with."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    names = {"python": sys.executable, "client": CLIENT, "address": folder / "socket"}
    for name, case in (("python", ELSE.format(**names)), ("dopsd", "")):
        (folder / name).write_text(SCRIPT.format(case=case, **names))
        (folder / name).chmod(0o755)
    words = [sys.executable, "-P", __file__, str(folder / "socket")]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    environment = os.environ | QUIET
    environment.pop("PYTHONPATH", None)  # each command has its own
    _servers.append(subprocess.Popen(words, env=environment, **options))
    assert _servers[0].stdout.readline() == b"ready\n"
    return folder


def serve(address: str) -> None:
    """Fork a keeper for each client until stdin is closed; return in a command's process."""
    for name in HEAVY.split():
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # of keepers
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    while listener in select.select([listener, 0], [], [])[0]:
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            return keep(client)
        client.close()
    os._exit(0)


def keep(client: socket.socket) -> None:
    """Run a client's command, passing on its signals, and tell how it ended; return in it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(client, 8, 3)
    command = json.loads(client.makefile("rb").read(int.from_bytes(size)))
    process = os.fork()
    if not process:
        client.close()
        return become(command, streams)
    for stream in streams:
        os.close(stream)
    end = os.pidfd_open(process)
    while end not in (ready := select.select([client, end], [], [])[0]):
        number = client.recv(1) if ready else b""
        os.kill(process, number[0] if number else signal.SIGKILL)  # the client has gone
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    client.sendall(status.to_bytes(2, signed=True))
    os._exit(0)


def become(command: dict, streams: list[int]) -> None:
    """Make this process what a new Python would be before it runs `-m dopsd`."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.executable = str(Path(sys.argv[1]).with_name("python"))  # of what the command starts
    sys.argv[1:] = command["words"]
    path = os.environ.get("PYTHONPATH", "")
    sys.path[:0] = [os.getcwd(), *filter(None, path.split(os.pathsep))]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "w" if number else "r"
        buffering = 1 if number == 2 or os.isatty(number) else -1
        setattr(sys, name, os.fdopen(number, mode, buffering, closefd=False))
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)


def run() -> None:
    """Run `-m dopsd` and end as Python does, but leave the modules to the kernel: to free them one
    by one would copy every page that the server shares.
    """
    status = 0
    try:
        runpy.run_module("dopsd", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
    run()
