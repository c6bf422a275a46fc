"""`dopsd record --task sudoku`: in which order the base would write each training answer, for the method d3llm.

Training records what it needs and does not find; this does it beforehand, for all problems, once for all seeds.
"""

from __future__ import annotations

from dopsd.config import Params
from dopsd.models import load_policy
from dopsd.progress import log
from dopsd.recording import all_of
from dopsd.tasks import load_task


def run(params: Params, task_name: str) -> None:
    policy = load_policy(params.model, None, 0)
    log(f"record: {all_of(params, params.method.d3llm, load_task(task_name, params.data), policy)}")
