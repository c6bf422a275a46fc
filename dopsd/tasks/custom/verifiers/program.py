"""A program that answers each JSON line with a JSON line, in a process group with limits.

A program that answers too late, or ends, is killed with its whole process group and started again
for the next request.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.tasks.custom.verifiers import limits

LONGEST_LINE = 2**20  # bytes of an answer
CHUNK = 2**16  # bytes of one read or write
MOST_FAILURES = 3  # in a row; then the program is at fault, not an answer


class Failed(Exception):
    """A program that gave no answer: it was too late, or it ended."""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: time of one answer, by the clock; the first one also waits for the program's start.
        megabytes: memory of each process.
        start: seconds that the program may need in addition to start.
    """

    seconds: float
    megabytes: int
    start: float = 10.0


class Program:
    """A program that runs from the first request until the interpreter ends."""

    def __init__(self, key: str, words: list[str], program_limits: Limits) -> None:
        self.key, self.words, self.limits = key, words, program_limits
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None
        self.asked = self.failures = 0
        self.received = b""

    def ask(self, request: dict[str, Any], subject: str) -> dict[str, Any]:
        """Return the program's answer to a request.

        Args:
            request: values of the line that it gets; `id` is added.
            subject: the row, for messages.

        Raises:
            Failed: if the program was too late, or ended.
            DopsdError: if its answer is no JSON object with the request's `id`, or if it failed
                MOST_FAILURES times in a row.
        """
        self.asked += 1
        line = json.dumps({"id": self.asked} | request).encode() + b"\n"
        try:
            answer = self._exchange(line)
        except Failed as error:
            self.close()
            self.failures += 1
            if self.failures >= MOST_FAILURES:
                raise DopsdError(
                    f"{self.key}: {subject}: {error}, {self.failures} times in a row; fix the"
                    " program, or raise its limits",
                    code=Code.VERIFIER_PROGRAM,
                ) from error
            raise
        self.failures = 0
        return self._object(answer, subject)

    def close(self) -> None:
        """Kill the program with its process group."""
        if self.process is not None:
            self.end()
        self.process, self.received = None, b""

    def _start(self) -> subprocess.Popen[bytes]:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the program runs
        launcher = [sys.executable, "-I", "-S", limits.__file__, str(self.limits.megabytes)]
        process = subprocess.Popen(
            [*launcher, *self.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )
        for stream in (process.stdin, process.stdout):
            os.set_blocking(_open(stream).fileno(), False)
        self.end = weakref.finalize(self, _kill, process)  # once: the number of a process is reused
        return process

    def _exchange(self, line: bytes) -> bytes:
        """Send a line and return the next one."""
        extra = 0.0
        if self.process is None or _is_over(self.process):
            self.close()
            self.process, extra = self._start(), self.limits.start
        source, sink = _open(self.process.stdout), _open(self.process.stdin)
        deadline = time.monotonic() + self.limits.seconds + extra
        while line or b"\n" not in self.received:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failed(f"no answer in {self.limits.seconds:g} s")
            readable, writable, _ = select.select([source], [sink] if line else [], [], left)
            if writable:
                line = line[self._write(sink, line) :]
            if readable:
                self._read(source)
        answer, _, self.received = self.received.partition(b"\n")
        return answer

    def _write(self, sink: IO[bytes], line: bytes) -> int:
        try:
            return os.write(sink.fileno(), line[:CHUNK])
        except BrokenPipeError as error:
            raise Failed(self._ended()) from error

    def _read(self, source: IO[bytes]) -> None:
        part = os.read(source.fileno(), CHUNK)
        self.received += part
        if not part:
            raise Failed(self._ended())
        if len(self.received) > LONGEST_LINE:
            raise Failed(f"an answer of more than {LONGEST_LINE} bytes")

    def _ended(self) -> str:
        """Return how the program ended, with the last line that it wrote to standard error."""
        process, errors = self.process, self.errors
        assert process is not None and errors is not None
        self.end()
        status = process.returncode
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit code {status}"
        errors.seek(max(errors.seek(0, os.SEEK_END) - CHUNK, 0))
        lines = errors.read().decode(errors="replace").strip().splitlines()
        return f"the program ended {how}{f' ({lines[-1][:200]})' if lines else ''}"

    def _object(self, line: bytes, subject: str) -> dict[str, Any]:
        """Return a line as a JSON object with the last request's `id`."""
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict) and answer.get("id") == self.asked:
            return answer
        self.close()
        raise DopsdError(
            f"{self.key}: {subject}: expected one JSON object in one line with id {self.asked}, the"
            f" id of the request, found {line[:80].decode(errors='replace')!r}; answer each line by"
            " one line, write nothing else to standard output, and flush it",
            code=Code.VERIFIER_PROGRAM,
        )


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended; it stays a zombie, so that its number stays its own."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group, and close its streams."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            _open(stream).close()
