"""Verifier `python_tests`: the answer is a Python program, which must pass the row's tests.

It runs in bubblewrap: no network, nothing of the machine but the interpreter and system libraries,
all read-only; an empty /tmp; limits of time, memory, processes and files; no environment.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code, DopsdError
from dopsd.tasks.custom.verifiers.command import ROW

if TYPE_CHECKING:
    from dopsd.core.types import Problem
    from dopsd.tasks.custom.verifiers.config import PythonTestsConfig

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")  # what an interpreter loads
SCRATCH = 16 * 2**20  # bytes of /tmp in the sandbox
NOBODY = 65534  # in place of root, whom no limit on processes binds
MOST_PROCESSES, MOST_FILES, LONGEST_OUTPUT = 16, 64, 2**20
STARTED = b"started\n"
# first in the sandbox: set the limits, which hold for the program that takes its place
LIMITER = """
import os, resource as r, sys
seconds, memory, processes, files, size, user = map(int, sys.argv[1:])
with open("/tmp/program.py", "w", encoding="utf-8", errors="replace") as file:
    file.write(sys.stdin.buffer.read().decode("utf-8", "replace"))
for kind, limit in ((r.RLIMIT_CPU, seconds), (r.RLIMIT_AS, memory), (r.RLIMIT_NPROC, processes),
                    (r.RLIMIT_NOFILE, files), (r.RLIMIT_FSIZE, size), (r.RLIMIT_CORE, 0)):
    r.setrlimit(kind, (limit, limit))
if user:
    os.setgroups([]), os.setgid(user), os.setuid(user)
os.write(1, b"started\\n")
os.execv(sys.executable, [sys.executable, "-I", "-B", "/tmp/program.py"])
"""


class PythonTests:
    """Score 1 if the program runs to the end of its row's tests, else 0."""

    def __init__(self, key: str, config: PythonTestsConfig) -> None:
        """Keep the settings, and try the sandbox.

        Args:
            key: key of params.yaml, for messages.
            config: the verifier's settings.

        Raises:
            DopsdError: if there is no sandbox on this machine.
        """
        self.key, self.config = key, config
        if fault := missing_sandbox():
            raise DopsdError(
                f"{key}: python_tests runs programs in bubblewrap alone, and {fault}; install it"
                " (Debian: apt-get install bubblewrap), or score by another verifier",
                code=Code.PACKAGE_MISSING,
            )

    def fault(self, answer: str) -> str | None:
        """Accept any answer: whether it is a right program, `dopsd task check` shows."""
        return None

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 if the answer's program passes the row's tests, else 0.

        Raises:
            DopsdError: if the problem has no tests, or the sandbox does not start.
        """
        cells, fenced = problem.extra.get(ROW, {}), FENCE.search(answer)
        if self.config.tests not in cells:
            raise DopsdError(
                f"{self.key}: {problem.id}: no tests (column {self.config.tests} of its row); score"
                " answers to rows of the task",
                code=Code.SOURCE_ROW,
            )
        program, before = fenced[1] if fenced else answer, cells.get(self.config.before, "")
        passed = f"passed {secrets.token_hex(16)}"
        code = f"{before}\n{program}\n{cells[self.config.tests]}\nprint({passed!r})\n"
        output, status, errors = run_program(code, self.config.seconds, self.config.memory_mb)
        if not output.startswith(STARTED):
            raise DopsdError(
                f"{self.key}: {problem.id}: the sandbox did not start ({errors[-200:]}); run the"
                " same command again",
                1,
                code=Code.VERIFIER_PROGRAM,
            )
        return float(status == 0 and output.endswith(f"\n{passed}\n".encode()))


def run_program(code: str, seconds: int, memory_mb: int) -> tuple[bytes, int | None, str]:
    """Run Python code in the sandbox.

    Args:
        code: the program.
        seconds: limit of its time by the clock, and of each process' by the CPU.
        memory_mb: limit of each process' memory.

    Returns:
        What it wrote (STARTED and up to LONGEST_OUTPUT bytes), its exit status (None: too late),
        and what the sandbox wrote to standard error.
    """
    user = NOBODY if os.geteuid() == 0 else 0
    limits = (seconds, memory_mb * 2**20, MOST_PROCESSES, MOST_FILES, LONGEST_OUTPUT, user)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*sandbox(), sys._base_executable, "-I", "-S", "-c", LIMITER, *map(str, limits)],  # type: ignore[attr-defined]
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        status: int | None = None
        try:
            process.communicate(code.encode("utf-8", "replace"), timeout=seconds)
            status = process.returncode
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()  # and with it all of its namespace
            process.wait()
        for file in (output, errors):
            file.seek(0)
        return output.read(LONGEST_OUTPUT), status, errors.read(4096).decode(errors="replace")


@cache
def sandbox() -> tuple[str, ...]:
    """Return the words of the command that begins a sandbox."""
    is_root = os.geteuid() == 0
    spaces = ["--unshare-user"] if not is_root else ["--cap-add", "CAP_SETUID"]
    spaces += ["--cap-add", "CAP_SETGID"] if is_root else []
    spaces += [f"--unshare-{kind}" for kind in ("ipc", "pid", "net", "uts", "cgroup-try")]
    prefix = Path(sys.base_prefix)
    above = [str(folder) for folder in reversed(prefix.parents)][1:]  # open to any user, and empty
    shown = [word for folder in above for word in ("--perms", "0755", "--dir", folder)]
    folders = dict.fromkeys((*SYSTEM, str(prefix)))
    shown += [word for folder in folders for word in ("--ro-bind-try", folder, folder)]
    scratch = ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(SCRATCH)]
    ends = ("--chdir", "/tmp", "--clearenv", "--die-with-parent", "--new-session", "--")
    return ("bwrap", *spaces, *shown, *scratch, "--tmpfs", "/tmp", *ends)


@cache
def missing_sandbox() -> str | None:
    """Return why programs cannot run in the sandbox on this machine; None if they can."""
    if not sys.platform.startswith("linux") or shutil.which("bwrap") is None:
        return "there is no program bwrap"
    output, status, errors = run_program("", 20, 256)
    if status == 0 and output == STARTED:
        return None
    return f"it does not work here ({' '.join(errors.split())[-160:] or f'exit code {status}'})"
