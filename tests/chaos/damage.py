"""Files at rest that are cut short, emptied or have one bit flipped."""

import shutil
from pathlib import Path

from chaos.folders import CELL
from chaos.plan import Plan

FILES = {
    "checkpoint": ("work/train-*/step-??????/*",),
    "log": ("work/train-*/log.jsonl",),
    "rows": ("data/sudoku/*.jsonl", "data/sudoku/prompt.txt"),
    "adapter": ("runs/*/*/*/*/adapter_*", "runs/*/*/*/*/*/adapter_*"),
    "lock": ("dvc.lock", ".dvc/tmp/*", "work/*.lock", "work/train-*/*lock"),
    "evaluation": ("work/eval/*.json", "work/eval/*/*.jsonl"),
    "base": ("base/*/*",),
    "cache": (".dvc/cache/files/md5/*/*", ".dvc/cache/runs/*/*/*"),
}


def choose(folder: Path, plan: Plan) -> Path | None:
    """The file that the plan's dice fall on, among those that are there."""
    found = sorted(
        path for pattern in FILES[plan.kind] for path in folder.glob(pattern) if path.is_file()
    )
    return found[int(plan.details["which"] * len(found))] if found else None


def damage(path: Path, how: str, at: float) -> str:
    """What was done to the file, in words."""
    raw = bytearray(path.read_bytes())
    place = int(at * len(raw))
    path.chmod(0o644)
    if how == "flip" and raw:
        raw[place] ^= 1 << int(at * 8e6) % 8
        path.write_bytes(raw)
        return f"one bit of byte {place} of {len(raw)} flipped"
    kept = 0 if how == "empty" else place
    path.write_bytes(raw[:kept])
    return f"cut from {len(raw)} to {kept} bytes"


def apply(folder: Path, plan: Plan) -> str:
    """Damage one file as planned; its name and what was done, or nothing without such a file."""
    path = choose(folder, plan)
    if path is None:
        return ""
    done = damage(path, plan.details["how"], plan.details["at"])
    if plan.kind == "cache":  # so that DVC has to take results from there
        shutil.rmtree(folder / CELL, ignore_errors=True)
        shutil.rmtree(folder / "reports", ignore_errors=True)
    return f"{path.relative_to(folder)}: {done}"
