"""Make one run of a tournament within its budgets, score its checkpoints, and test them."""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING, Any

from dopsd.core.files import WORK, read_json, write_json
from dopsd.core.paths import LOG, RunKey
from dopsd.core.tables import read_log
from dopsd.evaluation.evaluator import Evaluator
from dopsd.models.architecture import config_of
from dopsd.pipeline.shape import Shape, lora_parameters
from dopsd.pipeline.tournament.cells import COSTS, RESULT, TESTED, TUNE, Cell
from dopsd.training.resume import answer_of
from dopsd.training.train import train

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params

FIRST = 10  # updates of the first part of a run, which shows what an update costs
KEPT = ("accuracy", "interval", "n", "per_problem")  # of a report on test
Costs = dict[str, float]


def test(cell: Cell) -> None:
    """Score base and chosen checkpoints on the test split, and write the result."""
    result = cell.result
    assert result is not None  # the schedule tests finished runs
    params = cell.params(result["updates"])
    evaluator = Evaluator(params.evaluation(cell.task, cell.key.method), "test")
    chosen = cell.chosen_updates
    updates = sorted(set(chosen.values()))
    adapters: list[Path | None] = [None, *(checkpoint_of(cell.key, u) for u in updates)]
    protocol = params.evaluate.protocols[params.select.protocol]
    (reports,) = evaluator.reports(str(cell), adapters, protocol)
    kept = [{name: report[name] for name in KEPT} for report in reports]
    by_update = dict(zip(updates, kept[1:], strict=True))
    write_json(
        cell.key.folder / TESTED,
        {
            "identity": cell.identity,
            "updates": chosen,
            "base": kept[0],
            "budgets": {budget: by_update[update] for budget, update in chosen.items()},
        },
    )


def make(cell: Cell) -> None:
    """Train until both budgets are used up, score the checkpoints, and write the result.

    Raises:
        DopsdError: if the run cannot learn, or was stopped by a signal.
    """
    updates = min(FIRST, cell.plan.most_updates)
    is_probed = False  # a run that depends on its length begins again, once it is known
    while True:
        params = cell.params(updates)
        run = params.run(*cell.key.parts)
        train(run, None, answer_of(None))
        made = read_json(cell.key.folder / "train.json", "dopsd train")
        costs = costs_of(made["fingerprint"])
        further, is_starved = further_updates(cell, updates, costs), made["updates"] < updates
        if is_starved or further == updates or is_probed:
            break
        updates, is_probed = further, run.algorithm.depends_on_length
    is_short = further_updates(cell, updates, costs, math.inf) > made["updates"]
    ended = "most_updates" if is_short else ""
    if is_starved:
        ended = "nothing more to learn from, or a collapse"
    elif is_short and updates < cell.plan.most_updates:
        ended = "its length had to be known before"
    _score(cell, params, made, costs, ended)


def further_updates(
    cell: Cell, updates: int, costs: dict[int, Costs], most: float | None = None
) -> int:
    """Return how many updates the run needs to use up both budgets, as far as is known.

    Args:
        cell: the run.
        updates: those made.
        costs: cumulative costs by update.
        most: the most that are allowed; None: the plan's `most_updates`.
    """
    plan, spent = cell.plan, costs[max(costs)]
    needed = updates
    for name, budget in cell.limits.items():
        if spent[name]:
            needed = max(needed, math.ceil(updates * budget / spent[name]))
    return int(min(plan.most_updates if most is None else most, needed))


def scored_updates(cell: Cell, costs: dict[int, Costs]) -> list[int]:
    """Return the updates whose checkpoints are scored.

    The last ones within each budget are among them. Tuning scores only these.

    Args:
        cell: the run.
        costs: cumulative costs by update.
    """
    c, last = cell.plan.checkpoints, max(costs)
    ends = {
        max(update for update, spent in costs.items() if spent[cost] <= limit)
        for cost, limit in cell.limits.items()
    }
    if cell.part == TUNE:
        return sorted(u for u in ends if u)
    early = range(c.every, min(c.dense, last) + 1, c.every)
    late = range(c.dense + c.sparse, last + 1, c.sparse)
    return sorted({u for u in {*early, *late, *ends} if u})


def _score(
    cell: Cell, params: Params, made: dict[str, Any], costs: dict[int, Costs], ended: str
) -> None:
    folder = cell.key.folder
    evaluator = Evaluator(params.evaluation(cell.task, cell.key.method), params.select.split)
    updates = scored_updates(cell, costs)
    adapters: list[Path | None] = [None, *(checkpoint_of(cell.key, u) for u in updates)]
    protocol = params.evaluate.protocols[params.select.protocol]
    (reports,) = evaluator.reports(str(cell), adapters, protocol)
    flops = _flops(cell, params, evaluator, costs)
    curve = [
        {"update": u, "accuracy": report["accuracy"], **costs[u], "flops": flops[u]}
        for u, report in zip([0, *updates], reports, strict=True)
    ]
    write_json(
        folder / RESULT,
        {
            "identity": cell.identity,
            "fingerprint": made["fingerprint"],
            "code": made["code"],
            "updates": made["updates"],
            "ended": ended,
            "n": reports[0]["n"],
            "curve": curve,
        },
    )
    _prune(cell, made["fingerprint"], {*updates, made["updates"]})


def _prune(cell: Cell, fingerprint: str, kept: set[int]) -> None:
    """Remove the checkpoints that were not scored: one was saved after each update."""
    for folder in (cell.key.folder / "train", WORK / fingerprint):
        for path in folder.glob("step-[0-9]*"):
            if int(path.name.removeprefix("step-")) not in kept:
                shutil.rmtree(path)


def _flops(
    cell: Cell, params: Params, evaluator: Evaluator, costs: dict[int, Costs]
) -> dict[int, float]:
    """Return the estimated operations until each update, at most: see estimate.py."""
    run, method = params.run(*cell.key.parts), params.of(cell.key.method)
    config = config_of(run.model)
    shape = Shape(config, lora_parameters(config, method))
    prompt = len(evaluator.prompt_of(evaluator.problems[0]))
    length = prompt + run.sampling.gen_length
    answer = shape.answer(prompt, run.algorithm.sampling_of(run.sampling))
    forwards = run.algorithm.forwards(run.sampling)
    problem = 0.0
    if forwards:
        problem = forwards.scored * shape.forward(length)
        problem += forwards.trained * shape.trained(length, is_checkpointed=False)
    update = problem * run.train.prompts_per_collect / run.algorithm.updates_of_collect
    return {u: cost["rollouts"] * answer + u * update for u, cost in costs.items()}


def checkpoint_of(key: RunKey, update: int) -> Path:
    """Return the folder of a run's checkpoint."""
    return key.folder / "train" / f"step-{update:06d}"


def costs_of(fingerprint: str) -> dict[int, Costs]:
    """Return the cumulative costs of each update, 0 included, from a run's log.

    Args:
        fingerprint: name of the run's folder in work/.
    """
    total = dict.fromkeys(COSTS[:-1], 0.0)
    costs = {0: dict(total)}
    for row in read_log(WORK / fingerprint / LOG):
        total["cpu_seconds"] += row["time/cpu_seconds"] + row.get("time/borrowed_cpu_seconds", 0.0)
        total["seconds"] += row["time/update_seconds"] + row.get("time/borrowed_seconds", 0.0)
        total["rollouts"] = row["count/rollouts"]
        total["tokens"] = row["count/sampled_tokens"]
        costs[int(row["update"])] = dict(total)
    return costs
