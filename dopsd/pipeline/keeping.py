"""Keep one copy of each checkpoint on a disk, and of finished runs only those that are wanted.

`dopsd repro` calls this when DVC has ended, so that `dopsd run` and the flows do too. Checkpoints
in work/, runs/, DVC's cache and a local MLflow become hard links to one file. By `checkpoints.keep`
the others of a tested run are removed, and DVC records what is left as the result of training, so
that nothing runs again. MLflow keeps what was published before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.files import PLANS, one_file, read_json, write_json
from dopsd.core.progress import log
from dopsd.training.checkpoint import update_of
from dopsd.training.run_settings import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dopsd.config.params import Params
    from dopsd.core.paths import RunKey
    from dopsd.training.run_settings import RunSettings

READ = ("train", "evaluate", "select")  # stages with the checkpoints as output or dependency


def steps_in(folder: Path) -> list[Path]:
    """Return the checkpoint folders in a folder, by update."""
    return sorted(folder.glob("step-??????"))


def unwanted(params: Params, key: RunKey) -> list[Path]:
    """Return the checkpoints of a tested run that `checkpoints.keep` does not keep."""
    keep, steps = params.checkpoints.keep, steps_in(key.folder / "train")
    if keep == "all" or not key.is_tested:
        return []
    best = read_json(key.folder / "best" / "select.json", "dopsd select")["update"]
    newest = steps[-(keep if isinstance(keep, int) else 1) :]
    return [step for step in steps if step not in newest and update_of(step) != best]


def link_copies(params: Params) -> None:
    """Replace copies of finished runs' checkpoints by hard links, where the disk has them."""
    for run in params.runs:
        copies = [*_cached(run.key.folder / "train")]
        scratch = scratch_folder(run) if copies else Path()
        for path, cached in copies:
            one_file(path, cached)
            one_file(path, scratch / path.parent.name / path.name)  # DVC has put a copy there
        for path, cached in _cached(run.key.folder / "best"):  # the same content as one of those
            one_file(cached, path)


def _cached(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file of an output of DVC that DVC's cache has, and its place there."""
    from dvc.repo import Repo

    entries = _lock_entries(f"{folder}")
    if not entries:
        return
    cache = Repo().cache.local
    for entry in entries:
        listing = Path(cache.oid_to_path(entry))
        if listing.is_file():
            for item in json.loads(listing.read_text()):
                path, cached = folder / item["relpath"], Path(cache.oid_to_path(item["md5"]))
                if path.is_file() and cached.is_file():
                    yield path, cached


def _lock_entries(output: str) -> list[str]:
    """Return the digests of a folder, as dvc.lock has them for outputs."""
    from ruamel.yaml import YAML

    lock = Path("dvc.lock")
    stages = (YAML(typ="safe").load(lock) or {}).get("stages", {}) if lock.is_file() else {}
    return [
        out["md5"]
        for stage in stages.values()
        for out in stage.get("outs", [])
        if out["path"] == output and out.get("md5", "").endswith(".dir")
    ]


def keep_wanted(params: Params, dvc: Callable[[list[str]], int]) -> None:
    """Remove the checkpoints of tested runs that `checkpoints.keep` does not keep.

    Runs whose results are not those of the settings, data and code that are here stay as they are.

    Args:
        params: All settings.
        dvc: Runs a command of DVC, and returns its exit code.

    Raises:
        DopsdError: if DVC cannot record what is left.
    """
    for run in params.runs:
        if (doomed := unwanted(params, run.key)) and not _changed(run.key.stage, (*READ, "test")):
            plan = PLANS / f"{run.key.stage}.json"
            write_json(plan, _plan(run, doomed))
            _carry_out(plan, dvc)


def finish_removals(dvc: Callable[[list[str]], int]) -> None:
    """Finish removals that an interruption cut off, of runs that are still as they were planned.

    DVC's record must not be renewed where settings, data or code have changed, or where the run
    has left the matrix. DVC then finds the removed checkpoints in its cache, if it needs them.

    Args:
        dvc: Runs a command of DVC, and returns its exit code.

    Raises:
        DopsdError: if DVC cannot record what is left.
    """
    for path in sorted(PLANS.glob("*.json")):
        plan = read_json(path, "dopsd repro")
        if plan.get("is_recorded") or _changed(path.stem, READ) <= {plan["train"]}:
            _carry_out(path, dvc)
        else:
            path.unlink()
            log(f"keep: {plan['run']}: changed since its removal was planned; not finished")


def _plan(run: RunSettings, doomed: list[Path]) -> dict[str, Any]:
    copies = [*_cached(run.key.folder / "train")]
    kept = {cached for path, cached in copies if path.parent not in doomed}
    objects = {cached for path, cached in copies if path.parent in doomed} - kept
    scratch, old = scratch_folder(run), _lock_entries(str(run.key.folder / "train"))
    folders = [*doomed, *(scratch / step.name for step in doomed)]
    return {
        "run": str(run.key),
        "train": str(run.key.folder / "train"),
        "folders": [str(folder) for folder in folders],
        "objects": sorted(str(path) for path in objects),
        "replaced": old,
    }


def _changed(cell: str, names: Sequence[str]) -> set[str]:
    """Return the dependencies and outputs of a run's stages that are not as DVC recorded them.

    Args:
        cell: The run's name in the matrix of dvc.yaml.
        names: Stages, without the cell.

    Returns:
        Paths; DVC's own words for a changed command, and for a stage that does not exist.
    """
    stages = [f"{name}@{cell}" for name in names]
    process = subprocess.run(
        [sys.executable, "-m", "dvc", "--wait-for-lock", "status", "--json", *stages],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        return {process.stderr}
    changes = [change for found in json.loads(process.stdout).values() for change in found]
    return {path for change in changes for path in _paths(change)}


def _paths(change: str | dict[str, dict[str, object]]) -> Iterable[str]:
    return (
        [change]
        if isinstance(change, str)
        else [path for paths in change.values() for path in paths]
    )


def _carry_out(path: Path, dvc: Callable[[list[str]], int]) -> None:
    plan = read_json(path, "dopsd repro")
    if not plan.get("is_recorded"):
        for folder in plan["folders"]:
            shutil.rmtree(folder, ignore_errors=True)
        stages = [f"{name}@{path.stem}" for name in READ]
        if dvc(["commit", "--quiet", "--force", *stages]):
            raise DopsdError(
                f"keep: {plan['run']}: DVC could not record the checkpoints that are left; run"
                " `dopsd repro` to try again",
                TEMPORARY,
                code=Code.STAGE_FAILED,
            )
        write_json(path, plan | {"is_recorded": True})
    for cached in plan["objects"]:
        Path(cached).unlink(missing_ok=True)
    _forget_runs(plan["replaced"])
    path.unlink()
    log(f"keep: {plan['run']}: {len(plan['folders']) // 2} checkpoints removed")


def _forget_runs(replaced: list[str]) -> None:
    """Remove entries of DVC's run cache that name outputs of which files are gone.

    DVC would restore one of them in the place of what is left, or fail to.
    """
    from dvc.repo import Repo

    repo = Repo()
    for entry in Path(repo.stage_cache.cache_dir).glob("??/*/*"):
        if any(digest in entry.read_text() for digest in replaced):
            entry.unlink()
    for digest in replaced:
        Path(repo.cache.local.oid_to_path(digest)).unlink(missing_ok=True)
