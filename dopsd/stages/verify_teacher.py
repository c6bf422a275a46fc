"""`dopsd verify_teacher --task sudoku`: is the base a better model when it is shown part of its own answer?

Paper, Table 1 (method notes, section 4): pass@1 greedy, pass@8, and the self-teacher, which regenerates greedily with
a share of the final answer's tokens in place, each block cleared when it is entered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dopsd.config import Attempts, Params
from dopsd.evaluations import Evaluator
from dopsd.keyed import fold, text_key, uniform
from dopsd.layout import REPORTS
from dopsd.progress import say, write_json
from dopsd.sampling import Draw, denoise_all
from dopsd.scoring import Attempter, bootstrap, decoding
from dopsd.types import Rollout, Scored

RATIOS = (0.10, 0.25, 0.50)


def run(params: Params, task_name: str) -> dict[str, Any]:
    evaluator = Evaluator(params, task_name, params.select.split)
    policy, problems = evaluator.with_adapter(None), evaluator.problems
    # the first attempt greedy, retries at 1.0; a graded task draws all eight at 1.0
    first = 1.0 if evaluator.task.graded else 0.0
    tries = Attempts(attempts=8, first_temperature=first, retry_temperature=1.0)
    attempter = Attempter(evaluator.task, params.sampling, tries, params.model.prompt_style, 0)
    ((greedy,),) = evaluator.reports("verify_teacher", [None], params.evaluate.protocols[params.select.protocol])
    pass_1 = list(greedy["per_problem"].values())
    tried = attempter.collect(policy, problems, 0)
    rows = {"pass@1": pass_1, "pass@8": [item.verdict.score for item in tried]}
    for ratio in RATIOS:
        rows[f"teacher at {ratio:.2f}"] = _teacher_scores(evaluator, params, tried, ratio)
    table = {
        name: {"accuracy": sum(v) / len(v), "interval": bootstrap(v, params.evaluate.bootstrap)} for name, v in rows.items()
    }
    for name, row in table.items():
        say(f"{name:16} {row['accuracy']:.4f}  [{row['interval'][0]:.4f}, {row['interval'][1]:.4f}]  n = {len(problems)}")
    write_json(REPORTS / task_name / "teacher.json", table)
    return table


def _teacher_scores(evaluator: Evaluator, params: Params, tried: list[Scored], ratio: float) -> list[float]:
    policy = evaluator.with_adapter(None)
    draws = [
        Draw(item.problem.id, 0, item.best.prompt_ids, 0, hints(item.best, ratio, policy.mask_id, policy.eos_id))
        for item in tried
    ]
    answers = denoise_all(policy, draws, decoding(params.sampling))
    found = zip(tried, answers, strict=True)
    return [evaluator.task.verify(item.problem, policy.decode(r.completion_ids)).score for item, r in found]


def hints(rollout: Rollout, ratio: float, mask_id: int, eos_id: int) -> Tensor:
    """The answer with only a random share of its tokens (end of text apart) left in place. -> [G]."""
    ids = rollout.completion_ids
    text = (ids != eos_id).nonzero()[:, 0]
    key = torch.tensor(text_key("hints", rollout.problem_id, rollout.attempt), device=ids.device)
    chosen = text[uniform(fold(key, text)).argsort()[: int(ratio * len(text))]]
    shown = torch.full_like(ids, mask_id)
    shown[chosen] = ids[chosen]
    return shown
