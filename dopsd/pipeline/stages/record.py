"""`dopsd record --task sudoku`: record the base's order of writing each answer, for method d3llm.

Training records whatever it needs and does not find. This command records all problems beforehand,
once for all seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.algorithms.common.base import AlgorithmContext
from dopsd.algorithms.d3llm.recording import record_all
from dopsd.core.progress import log
from dopsd.models.llm_policy import load_policy
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from dopsd.config.params import Params


def run(params: Params, task_name: str) -> None:
    """Record every training problem of a task."""
    model = params.model_of(task_name)
    policy = load_policy(model, None, 0)
    task = load_task(task_name, params.data.tasks[task_name])
    train = params.of("d3llm").train
    context = AlgorithmContext(
        task,
        policy,
        model,
        params.sampling,
        0,
        train.updates,
        train.prompts_per_collect,
        train.states_at_once,
    )
    log(f"record: {record_all(vars(params.method)['d3llm'], context)}")
