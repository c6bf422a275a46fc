"""Keep one copy of each checkpoint on a disk, and of finished runs only those that are wanted.

`dopsd repro` calls this when DVC has ended, so that `dopsd run` and the flows do too. Checkpoints
in work/, runs/, DVC's cache and a local MLflow become hard links to one file. By `checkpoints.keep`
the others of a tested run are removed, and DVC records what is left as the result of training, so
that nothing runs again. MLflow keeps what was published before.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.config import BETWEEN
from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.files import PLANS, one_file, read_json, write_json
from dopsd.core.progress import log
from dopsd.pipeline.dvc_outputs import Outputs, changed
from dopsd.training.checkpoint import update_of
from dopsd.training.run_identity import record_of, scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dopsd.config.params import Params
    from dopsd.core.paths import RunKey
    from dopsd.training.run_settings import RunSettings

# options of `dvc repro` by which a target brings other stages along that depend on it
FOLLOWING = {"--downstream", "--force-downstream", "-p", "--pipeline", "-P", "--all-pipelines"}
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


def runs_of(params: Params, words: Sequence[str]) -> list[RunSettings]:
    """Return the runs of matrix and ablations that a command of DVC is about.

    Args:
        params: All settings.
        words: The command and its arguments.
    """
    targets = [word for word in words[1:] if not word.startswith("-")]
    cells = {target.partition("@")[2] for target in targets}
    runs = {run.key.stage: run for run in params.runs} | _variants(params)
    if not targets or "" in cells or not FOLLOWING.isdisjoint(words):
        return [*runs.values()]
    return [run for name, run in runs.items() if any(fnmatch(name, cell) for cell in cells)]


def _variants(params: Params) -> dict[str, RunSettings]:
    """Return the runs of ablations by their names in the matrix of stage `variant`."""
    a = params.ablate
    return {
        f"{name}-{seed}": params.run(a.task, f"{a.method}{BETWEEN}{name}", seed)
        for name in a.run
        for seed in a.seeds
    }


def link_copies(runs: Sequence[RunSettings]) -> None:
    """Replace copies of finished runs' checkpoints by hard links, where the disk has them."""
    if not runs:
        return
    outputs = Outputs()
    for run in runs:
        with suppress(DopsdError):  # without its data a run has no training folder
            _link(run.key.folder, scratch_folder(run), outputs)


def _link(folder: Path, scratch: Path, outputs: Outputs) -> None:
    found = [outputs.files(output) for output in (folder, folder / "train", folder / "best")]
    trained: dict[Path, Path] = {}  # the file of an object
    for path, cached in sorted((pair for pairs in found for pair in pairs), reverse=True):
        output, *name = path.relative_to(folder).parts
        if output == "train":
            # DVC need not read its own output again, if the object is not another run's too
            is_shared = cached.is_file() and cached.stat().st_nlink > len((path, scratch))
            one_file(*((cached, path) if is_shared else (path, cached)))
            one_file(path, scratch.joinpath(*name))  # DVC has put a copy there
            trained[cached] = path
        elif output == "best" and cached in trained:
            one_file(trained[cached], path)


def keep_wanted(
    params: Params, runs: Sequence[RunSettings], dvc: Callable[[list[str]], int]
) -> None:
    """Remove the checkpoints of tested runs that `checkpoints.keep` does not keep.

    Runs whose results are not those of the settings, data and code that are here stay as they are,
    and so do those of ablations.

    Args:
        params: All settings.
        runs: The runs to look at.
        dvc: Runs a command of DVC, and returns its exit code.

    Raises:
        DopsdError: if DVC cannot record what is left.
    """
    for run in runs:
        stages = [f"{name}@{run.key.stage}" for name in (*READ, "test")]
        doomed = [] if BETWEEN in run.key.method else unwanted(params, run.key)
        if doomed and not changed(stages):
            plan = PLANS / f"{run.key.stage}.json"
            write_json(plan, _plan(params, run, doomed))
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
        stages = [f"{name}@{path.stem}" for name in READ]
        if plan.get("is_recorded") or changed(stages) <= {f"{Path(plan['folder']) / 'train'}"}:
            _carry_out(path, dvc)
        else:
            path.unlink()
            log(f"keep: {plan['run']}: changed since its removal was planned; not finished")


def _plan(params: Params, run: RunSettings, doomed: list[Path]) -> dict[str, Any]:
    outputs, train, scratch = Outputs(), run.key.folder / "train", scratch_folder(run)
    folders = doomed if _is_shared(params, run) else [*doomed, *(scratch / p.name for p in doomed)]
    return {
        "run": str(run.key),
        "folder": str(run.key.folder),
        "scratch": str(scratch),
        "doomed": [str(folder) for folder in folders],
        "objects": [str(obj) for path, obj in outputs.files(train) if path.parent in doomed],
        "replaced": outputs.digests[train],
        "count": len(doomed),
    }


def _is_shared(params: Params, run: RunSettings) -> bool:
    """Tell whether another run was made in a run's training folder, or will be."""
    scratch, key = scratch_folder(run), run.key
    others = [v for v in _variants(params).values() if v.key.parts[::2] == key.parts[::2]]
    cells = {str(other.key) for other in others if scratch_folder(other) == scratch}
    return bool({*cells, *record_of(scratch).get("cells", [])} - {str(key)})


def _carry_out(path: Path, dvc: Callable[[list[str]], int]) -> None:
    plan = read_json(path, "dopsd repro")
    if not plan.get("is_recorded"):
        for folder in plan["doomed"]:
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
    outputs = Outputs()  # as DVC has just recorded them
    listing = str(outputs.place(plan["replaced"]))
    for cached in {*plan["objects"], listing} - {str(path) for path in outputs.objects()}:
        Path(cached).unlink(missing_ok=True)
    _forget_runs(outputs.run_cache, plan["replaced"])
    _link(Path(plan["folder"]), Path(plan["scratch"]), outputs)  # DVC has made copies again
    path.unlink()
    log(f"keep: {plan['run']}: {plan['count']} checkpoints removed")


def _forget_runs(run_cache: Path, replaced: str) -> None:
    """Remove entries of DVC's run cache that name an output of which files are gone.

    DVC would restore it in the place of what is left, or fail to.
    """
    for entry in run_cache.glob("??/*/*"):
        if replaced in entry.read_text(encoding="utf-8"):
            entry.unlink()
