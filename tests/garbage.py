"""Garbage to every parser: `python tests/garbage.py --inputs 10000 --seed 0` prints a table, and
exits with 1 on any miss.

A miss is a traceback, more than a second of CPU time, a file written outside the workspace, a
half-written file, or a refusal that is no line; its seed is printed, and `--parser NAME --replay
SEED` gives that input again.
"""

import argparse
import contextlib
import io
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from parsers import PARSERS  # noqa: E402

from dopsd.core.errors import MISTAKES, DopsdError, readable  # noqa: E402

SECONDS, HANGS = 1.0, 60  # of CPU time an input; of wall clock until it is held to wait for ever
WARM = 30
MEMORY = 16 * 2**30  # bytes of addresses: a reader that goes on for ever ends
WIDEST, MOST = 1000, 40  # characters and lines of a refusal


@dataclass
class Found:
    """What came of a parser's inputs; `misses` are lines for people, each with its seed."""

    parser: str
    inputs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    misses: list[str] = field(default_factory=list)


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A working directory in a folder with something to lose, which is yielded."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "outside").mkdir()
        (Path(root) / "outside" / "file").write_text("kept")
        (Path(root) / "workspace").mkdir()
        os.chdir(Path(root) / "workspace")
        try:
            yield Path(root)
        finally:
            os.chdir(before)


def outside(root: Path) -> dict[str, tuple[int, int]]:
    """Everything beside the workspace, with size and time."""
    found = {}
    for folder, folders, files in os.walk(root):
        if folder == str(root):
            folders.remove("workspace")
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            found[path] = (os.lstat(path).st_size, os.lstat(path).st_mtime_ns)
    return found


def fed(parser: str, seed: str, root: Path, found: Found, is_shown: bool = False) -> None:
    """One input; what came of it is counted."""
    before = outside(root)
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")),
        contextlib.redirect_stderr(err),
    ):
        call = PARSERS[parser](Random(f"{parser} {seed}"), str(root))
        signal.alarm(HANGS)
        started = time.process_time()
        outcome, said, trace = "accepted", "", ""
        try:
            if call() == 2:
                outcome, said = "refused", err.getvalue()
        except DopsdError as error:
            outcome, said = "refused", str(error)
        except MISTAKES as error:
            outcome, said = "refused", readable(f"{error.strerror}: {error.filename}")
        except SystemExit as error:
            outcome = "refused" if error.code == 2 else "tracebacks"
            said = err.getvalue().strip().splitlines()[-1]
        except BaseException as error:
            outcome, trace = "tracebacks", traceback.format_exc()
            said = f"{type(error).__name__}: {error}"[:300]
        seconds = time.process_time() - started
        if seconds > SECONDS:  # it may have paid for an import: the same input once more
            call = PARSERS[parser](Random(f"{parser} {seed}"), str(root))
            started = time.process_time()
            with contextlib.suppress(BaseException):
                call()
            seconds = time.process_time() - started
        signal.alarm(0)
    found.inputs += 1
    found.counts[outcome] += 1
    found.slowest = max(found.slowest, seconds)
    if is_shown:
        print(outcome, f"{seconds:.3f} s", said, trace, sep="\n")
    for is_missed, what in (
        (outcome == "tracebacks", said),
        (seconds > SECONDS, f"{seconds:.1f} s of CPU time"),
        (outside(root) != before, "wrote outside the workspace"),
        (bool(list(Path().rglob("*.tmp"))), "left a half-written file"),
        (outcome == "refused" and not is_line(said), f"no readable line: {said[:200]!r}"),
    ):
        if is_missed:
            found.counts["outside"] += what.startswith("wrote")
            found.misses.append(f"{parser} --replay {seed}: {what}")
    for path in Path().rglob("*.tmp"):
        path.unlink()


def refused(call: Callable[[], object], *words: str) -> None:
    """For tests: the call ends with lines that a terminal can show, and that have these words."""
    try:
        call()
    except DopsdError as error:
        text = str(error)
        assert error.exit_code == 2 and is_line(text) and all(word in text for word in words), text
        assert all(line.isprintable() for line in text.split("\n")), text
    else:
        raise AssertionError("not refused")


def is_line(said: str) -> bool:
    """Whether a refusal is a line, or one a fault, that a terminal can show."""
    lines = said.rstrip("\n").split("\n")
    return 0 < len(lines) <= MOST and all(
        0 < len(line) <= WIDEST and "Traceback" not in line for line in lines
    )


def campaign(parser: str, inputs: int, seed: int) -> Found:
    """So many inputs to one parser."""
    found = Found(parser)
    with workspace() as root:
        for number in range(WARM):  # imports and what is made once are no input's time
            fed(parser, f"warm.{number}", root, Found(parser))
        for number in range(inputs):
            fed(parser, f"{seed}.{number}", root, found)
    return found


def _hangs(*_: object) -> None:
    raise InterruptedError(f"no end after {HANGS} s")


def isolated(parser: str, inputs: int, seed: int) -> Found:
    """The campaign in a process of its own: a library that crashes ends that one only."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.signal(signal.SIGALRM, _hangs)
        with os.fdopen(writer, "wb") as out:
            pickle.dump(campaign(parser, inputs, seed), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    crashed = Found(parser, misses=[f"{parser}: the process ended with status {status}"])
    return pickle.loads(answer) if answer else crashed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="to each parser")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parser", action="append", choices=list(PARSERS), help="only this one")
    parser.add_argument("--replay", metavar="SEED", help="one input again, such as 0.17")
    a = parser.parse_args()
    chosen = a.parser or list(PARSERS)
    if a.replay:
        with workspace() as root:
            fed(chosen[0], a.replay, root, found := Found(chosen[0]), is_shown=True)
        return bool(found.misses)
    misses: list[str] = []
    columns = ("accepted", "refused", "tracebacks", "outside")
    head = f"| parser | inputs | {' | '.join(columns)} | slowest, CPU s |"
    print(f"{head}\n|{'---|' * 7}", flush=True)
    for name in chosen:
        found = isolated(name, a.inputs, a.seed)
        cells = " | ".join(str(found.counts[column]) for column in columns)
        print(f"| {name} | {found.inputs} | {cells} | {found.slowest:.2f} |", flush=True)
        misses += found.misses
    for line in misses[:100]:
        print(f"MISS {line}")
    print(f"{len(misses)} misses")
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
