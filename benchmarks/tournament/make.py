"""Make or test one run of a tournament, in a process of its own:

    python -m benchmarks.tournament.make make|test PLAN RUN

RUN has the fields of the run as JSON. `make` trains until its budgets are used up, and scores the
checkpoints on validation; `test` scores the chosen ones on test.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.tournament.plan import read_plan
from benchmarks.tournament.runs import RESULT, TEST, TESTED, TUNE, Run
from dopsd.config.params import Params
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import WORK, read_json, write_json
from dopsd.core.paths import LOG
from dopsd.core.processes import signal_with_parent
from dopsd.core.progress import log
from dopsd.core.tables import read_log
from dopsd.evaluation.config import EvalSettings
from dopsd.evaluation.evaluator import Evaluator
from dopsd.evaluation.speed import areas_by_problem
from dopsd.rollout.config import EvalProtocol
from dopsd.training.resume import answer_of
from dopsd.training.run_identity import identify
from dopsd.training.train import train

IMPOSSIBLE = 3  # exit code of a run that its method, task or data make impossible, by these codes
NO_PART = (Code.CONTRADICTION, Code.NO_SOLUTIONS, Code.NOTHING_TO_LEARN, Code.NOT_FINITE)
FIRST = 10  # updates of the first part of a run, which shows what an update costs
OF_REPORT = ("accuracy", "interval", "n", "per_problem")
Costs = dict[str, float]


def test(run: Run) -> None:
    """Score base and chosen checkpoints on the test split, and write the result."""
    result = run.result
    assert result is not None  # only finished runs are tested
    updates = sorted(set(run.chosen_updates.values()))
    found, name = scored(run, run.params(result["updates"]), "test", updates), run.protocol
    base, *trained = [{key: reports[name][key] for key in OF_REPORT} for reports in found]
    by_update = dict(zip(updates, trained, strict=True))
    tested = {
        "identity": run.identity,
        "used": run.plan.used,
        "updates": run.chosen_updates,
        "base": base,
        "budgets": {budget: by_update[u] for budget, u in run.chosen_updates.items()},
    }
    areas = [areas_by_problem(reports, name) for reports in found]
    if areas[0] and "tokens" in run.chosen_updates:
        points = [
            {n: [report["steps"], report["accuracy"]] for n, report in reports.items()}
            for reports in found
        ]
        row = 1 + updates.index(run.chosen_updates["tokens"])
        tested["curve"] = {
            side: {"per_problem": areas[i], "points": points[i]}
            for side, i in (("base", 0), ("best", row))
        }
    write_json(run.key.folder / TESTED, tested)


def make(run: Run) -> None:
    """Train until the budgets are used up, score the checkpoints, and write the result.

    Raises:
        DopsdError: if the run cannot learn, or was stopped by a signal.
    """
    updates = min(FIRST, run.plan.most_updates)
    is_probed = False  # a run that depends on its length begins again, once it is known
    while True:
        params = run.params(updates)
        training = params.run(*run.key.parts)
        train(identify(training), None, answer_of(None))
        made = read_json(run.key.folder / "train.json", "dopsd train")
        costs = costs_of(made["fingerprint"])
        further, is_starved = further_updates(run, updates, costs), made["updates"] < updates
        if is_starved or further == updates or is_probed:
            break
        updates, is_probed = further, training.algorithm.depends_on_length
    is_short = further_updates(run, updates, costs, math.inf) > made["updates"]
    ended = "most_updates" if is_short else ""
    if is_starved:
        ended = "nothing more to learn from, or a collapse"
    elif is_short and updates < run.plan.most_updates:
        ended = "its length had to be known before"
    _finish(run, params, made, costs, ended)


def further_updates(
    run: Run, updates: int, costs: dict[int, Costs], most: float | None = None
) -> int:
    """Return how many updates the run needs to use up its budgets, as far as is known.

    Args:
        run: the run.
        updates: those made.
        costs: cumulative costs by update.
        most: the most that are allowed; None: the plan's `most_updates`.
    """
    spent, needed = costs[max(costs)], updates
    for name, budget in run.limits.items():
        if spent[name]:
            needed = max(needed, math.ceil(updates * budget / spent[name]))
    if not any(spent[name] for name in run.limits):  # nothing that a budget counts
        needed = run.plan.most_updates
    return int(min(run.plan.most_updates if most is None else most, needed))


def scored_updates(run: Run, costs: dict[int, Costs]) -> list[int]:
    """Return the updates whose checkpoints are scored.

    The last ones within each budget are among them. Tuning scores only these.

    Args:
        run: the run.
        costs: cumulative costs by update.
    """
    c, last = run.plan.checkpoints, max(costs)
    ends = {
        max(update for update, spent in costs.items() if spent[cost] <= limit)
        for cost, limit in run.limits.items()
    }
    if run.part == TUNE:
        return sorted(u for u in ends if u)
    early = range(c.every, min(c.dense, last) + 1, c.every)
    late = range(c.dense + c.sparse, last + 1, c.sparse)
    return sorted({u for u in {*early, *late, *ends} if u})


class Unused(Evaluator):
    """Scores a split without its first problems, which earlier tests have used."""

    def __init__(self, settings: EvalSettings, split: str, used: int) -> None:
        super().__init__(settings, split)
        self.used, self.problems = used, self.problems[used:]
        self.prompt_set = replace(self.prompt_set, problems=self.problems)

    def cached(self, adapter: Path | None, protocol: EvalProtocol) -> Path:
        """Return the file of an evaluation's report in the cache, its own for these problems."""
        path = super().cached(adapter, protocol)
        return path.with_suffix(f".without{self.used}.json")


def scored(
    run: Run, params: Params, split: str, updates: list[int]
) -> list[dict[str, dict[str, Any]]]:
    """Return the reports by protocol of the base and of the checkpoints of these updates."""
    used = run.plan.used if split == "test" else 0
    settings = params.evaluation(run.task, run.key.method)
    evaluator = Unused(settings, split, used) if used else Evaluator(settings, split)
    folders = [run.key.folder / "train" / f"step-{update:06d}" for update in updates]
    protocols = params.test_protocols if split == "test" else params.evaluate.protocols
    wanted = [n for n in protocols if n == run.protocol or n.startswith(f"{run.protocol}-")]
    found = evaluator.reports(str(run), [None, *folders], *(protocols[n] for n in wanted))
    return [dict(zip(wanted, reports, strict=True)) for reports in zip(*found, strict=True)]


def _finish(
    run: Run, params: Params, made: dict[str, Any], costs: dict[int, Costs], ended: str
) -> None:
    """Score the checkpoints, write the result, and remove the checkpoints that were not scored."""
    updates = scored_updates(run, costs)
    found = scored(run, params, params.select.split, updates)
    reports = [by_protocol[run.protocol] for by_protocol in found]
    curve = [
        {"update": update, "accuracy": report["accuracy"], **costs[update]}
        for update, report in zip([0, *updates], reports, strict=True)
    ]
    result = {name: made[name] for name in ("fingerprint", "code", "updates")}
    result |= {"identity": run.identity, "ended": ended, "n": reports[0]["n"], "curve": curve}
    write_json(run.key.folder / RESULT, result)
    for folder in (run.key.folder / "train", WORK / made["fingerprint"]):
        for path in folder.glob("step-[0-9]*"):
            if int(path.name.removeprefix("step-")) not in {*updates, made["updates"]}:
                shutil.rmtree(path)


def costs_of(fingerprint: str) -> dict[int, Costs]:
    """Return the cumulative costs of each update, 0 included, from a run's log.

    Args:
        fingerprint: name of the run's folder in work/.
    """
    total = dict.fromkeys(("rollouts", "tokens", "cpu_seconds", "seconds"), 0.0)
    costs = {0: dict(total)}
    for row in read_log(WORK / fingerprint / LOG):
        total["cpu_seconds"] += row["time/cpu_seconds"] + row.get("time/borrowed_cpu_seconds", 0.0)
        total["seconds"] += row["time/update_seconds"] + row.get("time/borrowed_seconds", 0.0)
        total["rollouts"] = row["count/rollouts"]
        total["tokens"] = row["count/sampled_tokens"]
        costs[int(row["update"])] = dict(total)
    return costs


def main(step: str, plan: str, fields: str) -> int:
    """Make or test a run, and return the exit code."""
    signal_with_parent(signal.SIGTERM)
    run = Run(read_plan(Path(plan)), **json.loads(fields))
    try:
        test(run) if step == TEST else make(run)
    except DopsdError as error:
        log(error.coded)
        return IMPOSSIBLE if error.code in NO_PART else error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
