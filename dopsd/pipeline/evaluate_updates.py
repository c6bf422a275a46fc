"""`dopsd evaluate --update 25 50`: score some checkpoints into the cache, also in training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.paths import EVALUATED, run_folder
from dopsd.core.progress import log
from dopsd.evaluation.evaluator import Evaluator
from dopsd.pipeline.run_progress import accuracy
from dopsd.training.run_identity import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params


def evaluate_updates(
    params: Params, task_name: str, method_name: str, seed: int, updates: list[int]
) -> None:
    """Score checkpoints of a finished or a running run; stage `evaluate` finds them in the cache.

    Args:
        params: All settings.
        task_name: Task of the run.
        method_name: Method of the run.
        seed: Seed of the run.
        updates: Updates whose checkpoints are scored.

    Raises:
        DopsdError: if there is no checkpoint of an update.
    """
    running_folder, finished_folder = (
        scratch_folder(params.run(task_name, method_name, seed)),
        run_folder(task_name, method_name, seed) / "train",
    )
    folders = {update: _checkpoint(update, running_folder, finished_folder) for update in updates}
    evaluator = Evaluator(params.evaluation(task_name, method_name), params.select.split)
    for update, folder in folders.items():
        protocol = params.evaluate.protocols[params.select.protocol]
        ((report,),) = evaluator.reports("evaluate", [folder], protocol)
        log(f"{EVALUATED}{update}: {accuracy(report)}")


def _checkpoint(update: int, *folders: Path) -> Path:
    name = f"step-{update:06d}"
    for folder in folders:
        if (folder / name).is_dir():
            return folder / name
    places = " or ".join(map(str, folders))
    raise DopsdError(
        f"--update {update}: no {name} in {places}; run `dopsd train` first",
        code=Code.STAGE_MISSING,
    )
