"""Run commands in toy projects; measure seconds, memory, and how they grow with the load."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOK_EVERY = 0.05  # seconds between two looks at a command's memory
QUIET = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
}
# in a process of its own: torch would count as memory of every command that this one starts
MAKE = """
import shutil, sys, yaml
from toy_project import TOY, small_params
shutil.copytree(TOY, ".", dirs_exist_ok=True)
changes = yaml.safe_load(sys.argv[1])
open("params.yaml", "w").write(yaml.safe_dump(small_params(**changes)))
"""


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    name: str
    size: int
    seconds: float
    cpu: float  # seconds of the processors
    peak_mb: float  # resident memory


def toy_project(folder: Path, **changes: object) -> Path:
    """Make a project with the tests' toy base and data in a folder.

    Args:
        folder: the folder; an earlier one is replaced.
        **changes: keys of params.yaml, with two underscores for a dot.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = [sys.executable, "-c", MAKE, repr(changes)]
    subprocess.run(words, cwd=folder, env=os.environ | QUIET, check=True)
    return folder


def dopsd(
    folder: Path, size: int, *words: str, name: str = "", env: Mapping[str, str] | None = None
) -> Measured:
    """Run `dopsd WORDS` in a folder, and return what it took."""
    command = [sys.executable, "-m", "dopsd", *words]
    return measure(folder, size, command, name or words[0], env)


def measure(
    folder: Path,
    size: int,
    command: Sequence[str],
    name: str,
    env: Mapping[str, str] | None = None,
) -> Measured:
    """Run a command in a folder, and return what it took.

    Raises:
        SystemExit: if the command fails.
    """
    started, log, peak = time.monotonic(), folder / "output.txt", 0.0
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | QUIET | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        while not (found := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, resident_mb(process.pid))
            time.sleep(LOOK_EVERY)
    _, status, usage = found
    if status:
        tail = log.read_text()[-2000:]
        sys.exit(f"{' '.join(command)[:80]}: failed in {folder}\n{tail}")
    seconds, cpu = time.monotonic() - started, usage.ru_utime + usage.ru_stime
    row = Measured(name, size, seconds, cpu, peak)
    say(f"{size:>7} {name:20} {seconds:8.1f} s {cpu:8.1f} CPU s {peak:8.0f} MB")
    return row


def resident_mb(pid: int) -> float:
    """Return the most resident memory that a process has had, in MB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return p of `values = constant + factor * size**p`, from the last three sizes.

    Args:
        sizes: sizes, each twice the one before.
        values: what was measured at each size.

    Returns:
        About 1 if every piece costs the same, 2 if a piece costs as much as there are pieces
        already; NaN where the values do not grow.
    """
    first, second, third = values[-3:]
    if third <= second or second <= first:
        return math.nan
    return math.log((third - second) / (second - first), sizes[-1] / sizes[-2])


def table(rows: Sequence[Measured]) -> str:
    """Return Markdown: seconds (CPU seconds) by size, growth of the latter, and memory."""
    sizes = sorted({row.size for row in rows})
    head = ["command", *map(str, sizes), "exponent", "peak MB"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in dict.fromkeys(row.name for row in rows):
        by_size = {row.size: row for row in rows if row.name == name}
        cells = [
            f"{by_size[size].seconds:.1f} ({by_size[size].cpu:.1f})" if size in by_size else ""
            for size in sizes
        ]
        cpu = [row.cpu for row in by_size.values()]
        power = exponent(list(by_size), cpu) if len(cpu) > 2 else math.nan
        peaks = [row.peak_mb for row in by_size.values()]
        growth = "" if math.isnan(power) else f"{power:.1f}"
        memory = f"{peaks[0]:.0f} to {peaks[-1]:.0f}"
        lines.append("| " + " | ".join([name, *cells, growth, memory]) + " |")
    return "\n".join(lines)
