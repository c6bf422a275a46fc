"""Processes of one trial: found by a mark in their environment, named by their part, ended."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from chaos.plan import TRAINING

COPYING = 300.0  # seconds
PARTS = {  # words of a command, in the order in which they are looked for
    "follow": ("dopsd", "follow"),
    "dvc": ("dopsd", "repro"),
    "stage": ("-m", "dopsd"),
}


def found(state: Path) -> dict[int, list[str]]:
    """Commands of the living processes that carry this trial's mark, by id."""
    mark, all_of = f"CHAOS_STATE={state}\0".encode(), {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes() + b"\0":
                    words = Path(entry.path, "cmdline").read_text(errors="replace").split("\0")
                    if any(words):
                        all_of[int(entry.name)] = words
    return all_of


def part(words: list[str]) -> str:
    """What a process is in a run, by its command."""
    if words[1:3] == ["-m", "dvc"]:
        return "dvc"
    for name, wanted in PARTS.items():
        if all(any(word == one or word.endswith(f"/{one}") for word in words) for one in wanted):
            return name
    return "other"


def of_part(state: Path, name: str) -> list[int]:
    return [pid for pid, words in found(state).items() if part(words) == name]


def session(pid: int) -> int:
    with suppress(ProcessLookupError):
        return os.getsid(pid)
    return 0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def phase(state: Path) -> tuple[str, int]:
    """What the run does now: a phase of training, a stage, or `between` stages; and its update."""
    stages = {}
    for entry in os.scandir(state / "phases"):
        with suppress(OSError, ValueError):
            stage, doing, update = Path(entry.path).read_text().split()
            if stage != "follow" and stage != "repro" and is_alive(int(entry.name)):
                stages[stage] = (doing, int(update))
    for stage, (doing, update) in stages.items():
        if stage == "train":
            return (doing if doing in TRAINING else "updating" if update else "preparing"), update
        return ("evaluating" if doing == "evaluating" and stage == "evaluate" else stage), update
    return "between", 0


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until_gone(state: Path, seconds: float) -> dict[int, str]:
    """Processes that are still there then, by id; a copy to MLflow has longer."""
    began = time.monotonic()
    while left := found(state):
        is_copying = all(part(words) == "follow" for words in left.values())
        if time.monotonic() - began > (COPYING if is_copying else seconds):
            return {pid: " ".join(words)[:150] for pid, words in left.items()}
        time.sleep(0.1)
    return {}


def end_all(state: Path) -> None:
    """SIGKILL whatever is left of a trial."""
    while left := found(state):
        send([*left], signal.SIGKILL)
        time.sleep(0.05)
