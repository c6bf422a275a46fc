"""Whether a workspace is what an undisturbed run leaves, and MLflow has every step once."""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from chaos.folders import CELL, digests, dvc, locked, state_of, tried
from chaos.plan import UPDATES

WORDS = ("--task", "sudoku", "--method", "d_opsd", "--seed", "0")


def expected(reference: dict[str, Any], command: str) -> dict[str, str]:
    """Files that this command leaves, and their digests."""
    files: dict[str, str] = reference["files"]
    if command != "train":
        return files
    made = (f"{CELL}/train", "runs/sudoku/base.json")
    return {name: digest for name, digest in files.items() if name.startswith(made)}


def differences(folder: Path, reference: dict[str, Any], command: str) -> list[str]:
    """How the results differ from the undisturbed run's; nothing where every byte is the same."""
    wanted, found = expected(reference, command), digests(folder)
    lines = [f"{name} is missing" for name in wanted if name not in found]
    lines += [f"{n} has different bytes" for n in wanted if n in found and found[n] != wanted[n]]
    if command != "train":
        lines += [f"{name} is new" for name in found if name not in wanted]
    try:
        stages = locked(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [*lines, f"dvc.lock is not readable: {error}"]
    last = "train@" if command == "train" else "report@"
    if not any(name.startswith(last) for name in stages):
        lines.append(f"dvc.lock lacks {last}")
    known = reference["lock"]
    return lines + [
        f"dvc.lock differs at {n}" for n, parts in stages.items() if known.get(n) != parts
    ]


def half_published(folder: Path, reference: dict[str, Any]) -> list[str]:
    """Results under their final names with other bytes than they must have, before any repair."""
    found, wanted = digests(folder), reference["files"]
    changed = [name for name in found if name in wanted and wanted[name] != found[name]]
    return [f"{name} is half-written" for name in changed]


def unclean(folder: Path, command: str) -> list[str]:
    """What `dvc status` finds changed."""
    words = dvc("status", "--json", *(("train",) if command == "train" else ()))
    found = tried(folder, state_of(folder), *words)
    if found.returncode:
        said = (found.stderr or found.stdout).strip()[-200:]
        return [f"dvc status failed with exit code {found.returncode}: {said}"]
    changed = json.loads(found.stdout or "{}")
    return [f"dvc status is not clean: {json.dumps(changed)[:300]}"] if changed else []


def tracked(database: Path) -> tuple[list[int], int, int]:
    """Steps that MLflow has of the training run, its number of repeated points, and its runs."""
    if not database.is_file():
        return [], 0, 0
    # to read, it may have to undo what a full disk cut off
    with closing(sqlite3.connect(database, timeout=30)) as base:
        of_dopsd = "runs r join experiments e using (experiment_id) where e.name = 'dopsd'"
        runs = base.execute(f"select r.run_uuid from {of_dopsd}").fetchall()
        of_runs = f"run_uuid in (select r.run_uuid from {of_dopsd}) and key like 'train/%'"
        counted = f"select key, step, count(*) from metrics where {of_runs} group by key, step"
        points = base.execute(counted).fetchall()
    steps = sorted({step for key, step, _ in points if key == "train/loss"})
    return steps, sum(count - 1 for *_, count in points), len(runs)


def untracked(folder: Path, command: str) -> list[str]:
    """What MLflow lacks or has twice, after what was kept on disk has been sent."""
    steps, twice, runs = tracked(folder / "mlflow.db")
    if steps != (every := [*range(1, UPDATES + 1)]):
        words = ("publish",) if command != "train" else ("follow", *WORDS)
        tried(folder, state_of(folder), sys.executable, "-m", "dopsd", *words)
        steps, twice, runs = tracked(folder / "mlflow.db")
    lines = [f"MLflow has {twice} duplicate points"] if twice else []
    lines += [f"MLflow has {runs} runs instead of 1"] if runs > 1 else []
    lines += [f"MLflow has steps {steps} instead of 1 to {UPDATES}"] if steps != every else []
    return lines


def leftovers(folder: Path) -> list[str]:
    """Temporary files that stay among the results."""
    found = [*(folder / "runs").rglob("*.tmp"), *(folder / "reports").rglob("*.tmp")]
    return [f"{path.relative_to(folder)}: temporary file left" for path in found]
