"""Measure this machine's GPU at the shapes that people train. Nothing is downloaded.

    python benchmarks/gpu/measure.py [--seconds 300] [--only rollouts updates] [--out reports/gpu]
    python benchmarks/gpu/measure.py --toy                      # tiny shapes on a CPU, a rehearsal
    python benchmarks/gpu/measure.py --table reports/gpu/measured.jsonl

Each result is a line of OUT/measured.jsonl as soon as it is there, and OUT/measured.md is the table
of all lines. Parts stand alone, and come in the order of what they teach in a second. One that
fails leaves its error; one that hangs ends the process, and the same command continues with the
next part. A part that has a last line in the file is measured again only where --only names it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as dopsd sets it
sys.path.insert(0, str(Path(__file__).parents[1]))

import llada_8b
import small_bases
import torch
import without_model
from kit import Kit, Results

PARTS: dict[str, Callable[[Kit], Results]] = {
    "machine": without_model.machine,
    "kernels": without_model.kernels,
    "rollouts": llada_8b.rollouts,
    "attention": without_model.attention,
    "profiles": llada_8b.profiles,
    "updates": llada_8b.updates,
    "published": llada_8b.published,
    "repeatable": llada_8b.repeatable,
    "fused_model": llada_8b.fused_model,
    "small_bases": small_bases.small_bases,
    "graphs": small_bases.graphs,
    "scoring": llada_8b.scoring,
    "attempts_ahead": small_bases.attempts_ahead,
    "compiled": llada_8b.compiled,
    "compiled_small": small_bases.compiled,
    "all_reduce": without_model.all_reduce,
}
ALWAYS = "machine"  # its product is what others are compared with
NO_TIME, CUT_OFF, DONE = "no time was left", "cut off", "done"
HUNG = 3  # exit code
SHOWN = ("of_own_product", "of_989_tflops")  # shares, shown in %


class Record:
    """The file of results, to which each line is added at once."""

    def __init__(self, folder: Path, is_toy: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.began = folder / "measured.jsonl", time.monotonic()
        self.is_toy = is_toy

    def add(self, part: str, **found: Any) -> None:
        """Add a line, and print it."""
        line = {"part": part, "at": round(time.monotonic() - self.began, 1)} | found
        if self.is_toy:
            line["toy"] = True
        with self.path.open("a") as file:
            file.write(json.dumps(line, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())
        sys.stdout.write(text(line) + "\n")
        sys.stdout.flush()

    def ended(self) -> set[str]:
        """Return the parts that came to an end before, by success or failure."""
        lines = [line for line in lines_of(self.path) if line.get("toy", False) == self.is_toy]
        return {part for part, ended in ends(lines).items() if ended != NO_TIME}


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results; one that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def ends(lines: list[dict[str, Any]]) -> dict[str, str]:
    """Return how each part ended the last time that it was tried."""
    found: dict[str, str] = {}
    for line in lines:
        if "began" in line:
            found[line["part"]] = CUT_OFF
        elif "ended" in line:
            found[line["part"]] = line["ended"]
    return found


def text(line: dict[str, Any]) -> str:
    """Return a line for people."""
    if "began" in line:
        return f"{line['part']}: begins"
    if "ended" in line:
        return f"{line['part']}: {line['ended']} after {line['seconds']:.1f} s"
    return f"{line['part']}: {line['name']}: {figures(line['found'])}"


def figures(found: dict[str, Any]) -> str:
    """Return figures in short words."""
    return ", ".join(f"{name} {_shown(name, value)}" for name, value in found.items())


def _shown(name: str, value: Any) -> str:
    if name in SHOWN:
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if name == "top":
        return "; ".join(f"{kernel} {ms:.2f} ms in {calls}" for kernel, ms, calls in value)
    if isinstance(value, dict):
        return " ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return str(value)


def table(path: Path) -> str:
    """Return all results as a table in Markdown, what failed or was left out last."""
    lines = lines_of(path)
    rows = [f"| {line['name']} | {figures(line['found'])} |" for line in lines if "name" in line]
    failed = [f"- {part}: {ended}" for part, ended in ends(lines).items() if ended != DONE]
    notes = ["Rehearsed with tiny shapes: nothing was measured.", ""] * any(
        "toy" in line for line in lines
    )
    head = ["| what | found |", "| --- | --- |"]
    return "\n".join([*notes, *head, *rows, "", *(failed or ["Nothing failed."])]) + "\n"


class Guard:
    """Ends the process when a part hangs: a wait for a GPU cannot be interrupted from Python."""

    def __init__(self, record: Record, longest: float) -> None:
        self.record, self.longest = record, longest
        self.part, self.until = "", float("inf")
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            if time.monotonic() > self.until:
                ended = f"hung: no end after {self.longest:.0f} s"
                self.record.add(self.part, ended=ended, seconds=self.longest)
                os._exit(HUNG)


def run_part(part: str, kit: Kit, record: Record, guard: Guard) -> bool:
    """Run a part, and return whether the process can go on: errors of CUDA itself stay."""
    began = time.monotonic()
    guard.part, guard.until = part, began + guard.longest
    record.add(part, began=True)
    can_go_on, ended = True, DONE
    try:
        for name, found in PARTS[part](kit):
            record.add(part, name=name, found=found)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        ended = f"{type(error).__name__}: {error}"[:500].replace("\n", " ") + f" ({where})"
        is_of_cuda = any(word in ended for word in ("CUDA", "CUBLAS", "CUDNN"))
        can_go_on = isinstance(error, torch.OutOfMemoryError) or not is_of_cuda
    record.add(part, ended=ended, seconds=time.monotonic() - began)
    if ended != DONE and can_go_on:  # after the block: its traceback holds tensors
        try:
            kit.free()
        except RuntimeError:
            can_go_on = False
    guard.until = float("inf")
    return can_go_on


def measure(a: argparse.Namespace) -> int:
    """Run the parts that are missing while there is time, and return the exit code."""
    is_gpu = torch.cuda.is_available()
    if not (is_gpu or a.toy):
        sys.stderr.write("measure: torch sees no GPU here; --toy rehearses on a CPU\n")
        return 2
    record = Record(a.out, a.toy)
    kit = Kit(torch.device("cuda" if is_gpu else "cpu"), a.toy)
    guard, code = Guard(record, a.longest), 0
    ended = set() if a.only else record.ended()
    try:
        for part in PARTS:
            if part != ALWAYS and (part in ended or (a.only and part not in a.only)):
                continue
            if part != ALWAYS and time.monotonic() - record.began > a.seconds:
                record.add(part, ended=NO_TIME, seconds=0.0)
            elif not run_part(part, kit, record, guard):
                code = HUNG
                break
    except KeyboardInterrupt:
        code = 130
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the table is written whole
    path = a.out / "measured.md"
    path.write_text(table(record.path))
    sys.stdout.write(f"\n{path.read_text()}\nmeasure: this table is {path}\n")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("reports/gpu"), help="folder of results")
    parser.add_argument("--seconds", type=float, default=300, help="no part begins after these")
    parser.add_argument(
        "--longest", type=float, default=100, help="seconds after which a part counts as hung"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts, and machine")
    parser.add_argument(
        "--toy", action="store_true", help="tiny shapes, on a CPU if there is no GPU"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="print a file of results")
    a = parser.parse_args()
    if a.table:
        sys.stdout.write(table(a.table))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return measure(a)


if __name__ == "__main__":
    sys.exit(main())
