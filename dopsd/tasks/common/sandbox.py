"""The sandbox of programs that a model wrote: bubblewrap, without a network and without files.

Nothing of the machine is there but the interpreter and system libraries, all read-only; an empty
/tmp; no environment; limits of time, memory, processes and files; no System V shared memory, which
no limit counts. Where memory ends, it is marked to be ended first.
"""

from __future__ import annotations

import os
import platform
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")  # what an interpreter loads
SCRATCH = 16 * 2**20  # bytes of /tmp in the sandbox
MOST_PROCESSES, MOST_FILES, LONGEST_OUTPUT = 16, 64, 2**20
SECRET = MOST_FILES - 1  # the file with what a program writes when its tests have passed
START = 60.0  # seconds in which a sandbox starts, also on a busy machine
# of the processors whose calls are known: their name in a filter, and shmget, semget, msgget
CALLS = {"x86_64": (0xC000003E, 29, 64, 68), "aarch64": (0xC00000B7, 194, 190, 186)}
# first in the sandbox: set the limits, which hold for the program that takes its place
LIMITER = """
import os, resource as r, sys
pipe, seconds, memory, processes, files, size, user = map(int, sys.argv[1:])
source, sink = os.pipe()
os.write(sink, sys.stdin.buffer.readline())
os.close(sink)
os.dup2(source, files - 1)
with open("/tmp/program.py", "wb") as file:
    file.write(sys.stdin.buffer.read())
os.ftruncate(0, 0)
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
for kind, limit in ((r.RLIMIT_CPU, seconds), (r.RLIMIT_AS, memory), (r.RLIMIT_NPROC, processes),
                    (r.RLIMIT_NOFILE, files), (r.RLIMIT_FSIZE, size), (r.RLIMIT_CORE, 0)):
    r.setrlimit(kind, (limit, limit))
if user:
    os.setgroups([]), os.setgid(user), os.setuid(user)
os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
os.set_inheritable(pipe, False)
os.write(pipe, b"1")
try:
    run = "exec(compile(open('/tmp/program.py', 'rb').read(), 'program', 'exec'), {})"
    os.execv(sys.executable, [sys.executable, "-I", "-B", "-c", run])  # as HumanEval: no __main__
except OSError:
    os.write(pipe, b"0")
"""


def run_program(
    code: str, seconds: int, memory_mb: int, secret: bytes = b""
) -> tuple[bytes, int | None, str]:
    """Run Python code in the sandbox.

    Args:
        seconds: limit of its time by the clock, and of each process' by the CPU.
        secret: a line that it can read from the file SECRET, and from nowhere else.

    Returns:
        What it wrote, up to LONGEST_OUTPUT bytes, its exit status (None: too late), and why the
        sandbox did not start; empty if it did.
    """
    # the limit on processes is a user's
    user = 100_000 + secrets.randbelow(2**30) if os.geteuid() == 0 else 0
    limits = (seconds, memory_mb * 2**20, MOST_PROCESSES, MOST_FILES, LONGEST_OUTPUT, user)
    source, sink = os.pipe()
    python = getattr(sys, "_base_executable", sys.executable)
    filtered = os.memfd_create("filter")
    os.write(filtered, _filter(*CALLS[platform.machine()]))
    os.lseek(filtered, 0, os.SEEK_SET)
    seccomp = ["--seccomp", str(filtered), "--"]
    words = [*sandbox(), *seccomp, python, "-I", "-S", "-c", LIMITER, str(sink), *map(str, limits)]
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as output:
        text.write(secret + b"\n" + code.encode("utf-8", "replace"))
        text.seek(0)
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed below
        process = subprocess.Popen(
            words,
            env={},  # bubblewrap's own would be in its /proc/1
            stdin=text,
            stdout=output,
            stderr=errors,
            pass_fds=(sink, filtered),
            start_new_session=True,
        )
        os.close(sink)
        os.close(filtered)
        status, inner = None, list[int]()
        try:
            has_started = _said(source, START) == b"1"
            inner = _children(process.pid)
            if has_started:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(seconds)
        finally:  # by its first process all of its namespace ends, whatever it did to bubblewrap
            for pid in inner:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()
            has_run = _said(source, 0.0) != b"0"
            os.close(source)
        with errors:
            errors.seek(0)
            why = " ".join(errors.read(4096).decode(errors="replace").split())[-160:]
        output.seek(0)
        fault = "" if has_started and has_run else why or f"exit code {process.returncode}"
        return output.read(LONGEST_OUTPUT), status, fault


def _filter(name: int, *refused: int) -> bytes:
    """Return the BPF program that refuses these system calls, and those of another instruction set.

    Source: struct sock_filter and seccomp_data of linux/filter.h and linux/seccomp.h.
    """
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    tests = [(at_least, 0x40000000), *((equal, call) for call in refused)]  # x32's are numbered so
    steps = [(load, 0, 0, 4), (equal, 1, 0, name), (end, 0, 0, 0x80000000), (load, 0, 0, 0)]
    steps += [(test, len(tests) - n, 0, value) for n, (test, value) in enumerate(tests)]
    steps += [(end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x50000 | 1)]  # allowed, or EPERM
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _said(source: int, seconds: float) -> bytes:
    """Return the next byte of a pipe; empty if none comes in this time, or it is closed."""
    return os.read(source, 1) if select.select([source], [], [], seconds)[0] else b""


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
        return [int(n) for n in children.split()]
    return []


@cache
def sandbox(*packages: str) -> tuple[str, ...]:
    """Return the words of the command that begins a sandbox.

    Args:
        *packages: folders that it shows too, read-only.
    """
    spaces = ["--unshare-user", "--disable-userns"]
    if os.geteuid() == 0:  # becomes another user in the sandbox
        spaces = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    spaces += [f"--unshare-{kind}" for kind in ("ipc", "pid", "net", "uts", "cgroup-try")]
    shown = _shown((*SYSTEM, sys.base_prefix), sys.base_prefix)
    room = ["--perms", "1777", "--size", str(SCRATCH), "--tmpfs"]
    places = ["--proc", "/proc", "--dev", "/dev", *room, "/dev/shm", *room, "/tmp"]
    places += [*_shown(packages, *packages), "--remount-ro", "/dev", "--remount-ro", "/"]
    ends = ("--chdir", "/tmp", "--clearenv", "--die-with-parent", "--new-session")
    return (shutil.which("bwrap") or "bwrap", *spaces, *shown, *places, *ends)


def _shown(folders: Sequence[str], *deep: str) -> list[str]:
    """Return the words that show folders; those above `deep` are empty, and open to any user."""
    above = dict.fromkeys(str(f) for path in deep for f in [*reversed(Path(path).parents)][1:])
    words = [word for folder in above for word in ("--perms", "0755", "--dir", folder)]
    return words + [
        word for folder in dict.fromkeys(folders) for word in ("--ro-bind-try", folder, folder)
    ]


@cache
def missing_sandbox() -> str | None:
    """Return why programs cannot run in the sandbox on this machine; None if they can."""
    if not sys.platform.startswith("linux") or shutil.which("bwrap") is None:
        return "there is no program bwrap; install it (Debian: apt-get install bubblewrap)"
    if platform.machine() not in CALLS:
        return f"its filter of system calls is not known for {platform.machine()}"
    _, status, fault = run_program("", 20, 256)
    return None if status == 0 else f"it does not work here ({fault or f'exit code {status}'})"
