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
from typing import IO, TYPE_CHECKING, Any

from dopsd.core.errors import Code
from dopsd.core.progress import log
from dopsd.tasks.common import limits

if TYPE_CHECKING:
    from dopsd.core.types import Problem

LONGEST_LINE = 2**20  # bytes of an answer
CHUNK = 2**16  # bytes of one read or write
FLUSH = "; it must flush each answer: jq --unbuffered, fflush() in awk, stdbuf -oL PROGRAM"
ROW = "row"  # in extra of a problem: the columns that the program gets
MOST_FAILURES = 3  # in a row; then a known request shows whether the program is at fault


class Failed(Exception):
    """A program that gave no answer: it was too late, or it ended."""


class Ended(Failed):
    """A program that ended before it answered."""


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    # time of one answer, by the clock; the first one also waits for the program's start
    seconds: float
    megabytes: int  # memory of each process
    start: float = 10.0  # seconds that the program may need in addition to start


class Program:
    """A program that runs from the first request until the interpreter ends."""

    def __init__(
        self, key: str, words: list[str], program_limits: Limits, env: dict[str, str] | None = None
    ) -> None:
        self.key, self.words, self.limits, self.env = key, words, program_limits, env
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None
        self.asked = self.failures = 0
        self.received = b""

    def ask(self, request: dict[str, Any], subject: str, known: dict[str, Any]) -> dict[str, Any]:
        """Return the program's answer to a request.

        Args:
            request: values of the line that it gets; `id` is added.
            known: a request that any sound program answers, to ask after MOST_FAILURES in a row.

        Raises:
            Failed: if the program was too late, or ended.
            DopsdError: if its answer is no JSON object with the request's `id`, or if it failed
                MOST_FAILURES times in a row and for the known request too.
        """
        try:
            answer = self._answer(request, subject)
        except Failed:
            self.close()
            self.failures += 1
            if self.failures >= MOST_FAILURES:
                self._check(known, subject)
            raise
        self.failures = 0
        return answer

    def _answer(self, request: dict[str, Any], subject: str) -> dict[str, Any]:
        """Return the answer to a request, which does not depend on the requests before it.

        A program that ends may have done so because of what they left: a new one is asked. One that
        used the time of its start may have used it for the answer: it is asked again.
        """
        is_new, started = self.process is None or _is_over(self.process), time.monotonic()
        try:
            answer = self._object(self._exchange(request), subject)
        except Ended:
            if is_new:
                raise
            self.close()
            return self._answer(request, subject)
        if is_new and time.monotonic() - started > self.limits.seconds:
            answer = self._object(self._exchange(request), subject)
        return answer

    def _check(self, known: dict[str, Any], subject: str) -> None:
        """Refuse a program that also fails for a known request: it is at fault, not the answers."""
        try:
            self._answer(known, subject)
        except Failed as error:
            self.close()
            flush = "" if isinstance(error, Ended) else FLUSH
            raise Code.VERIFIER_PROGRAM.error(
                f"{self.key}: {subject}: {error}, {self.failures} times in a row and for the right"
                f" answer {known['response'][:40]!r}; fix the program, or raise its limits{flush}"
            ) from error
        self.failures = 0

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
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )
        for stream in (process.stdin, process.stdout):
            os.set_blocking(_open(stream).fileno(), False)
        self.end = weakref.finalize(self, _kill, process)  # once: the number of a process is reused
        return process

    def _exchange(self, request: dict[str, Any]) -> bytes:
        """Send a request with a new `id` and return the next line."""
        self.asked += 1
        line, extra = json.dumps({"id": self.asked} | request).encode() + b"\n", 0.0
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
            raise Ended(self._ended()) from error

    def _read(self, source: IO[bytes]) -> None:
        part = os.read(source.fileno(), CHUNK)
        self.received += part
        if not part:
            raise Ended(self._ended())
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
        raise Code.VERIFIER_PROGRAM.error(
            f"{self.key}: {subject}: expected one JSON object in one line with id {self.asked}, the"
            f" id of the request, found {line[:80].decode(errors='replace')!r}; answer each line by"
            " one line, write nothing else to standard output, and flush it"
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


class CommandVerifier:
    """Score by a program: it gets a line for each answer, and writes a line with the score."""

    def __init__(self, key: str, program: Program, known: str | None = None) -> None:
        """Keep the program.

        Args:
            known: an answer that it can score in any row against itself; None: the row's answer.
        """
        self.key, self.program, self.known = key, program, known

    def fault(self, answer: str) -> str | None:
        """Accept any answer."""
        return None

    def score(self, problem: Problem, answer: str) -> float:
        """Return the program's score; 0 for an answer that it gives no score in its limits."""
        known = problem.answer if self.known is None else self.known
        requests = (_request(problem, problem.answer, answer), _request(problem, known, known))
        try:
            score: Any = self.program.ask(requests[0], problem.id, requests[1]).get("score")
        except Failed as error:
            log(f"{self.key}: {problem.id}: {error}; this answer scores 0: {answer[:60]!r}")
            return 0.0
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if not is_number or not 0 <= score <= 1:
            raise Code.VERIFIER_PROGRAM.error(
                f"{self.key}: {problem.id}: expected a score from 0 to 1, found"
                f" {str(score)[:40]!r}; fix the program"
            )
        return float(score)


def _request(problem: Problem, answer: str, response: str) -> dict[str, Any]:
    cells = problem.extra.get(ROW, {})
    return {"question": problem.prompt, "answer": answer, "response": response, ROW: cells}
