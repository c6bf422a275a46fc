"""Who is ahead in a tournament: means over seeds, paired differences, and what they cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from scipy.stats import t as student

from benchmarks.tournament.plan import Plan
from benchmarks.tournament.runs import Run
from dopsd.analysis.results import paired_over_seeds

CLAIM_SEEDS = 5  # with fewer there is no claim
COSTS = ("update", "rollouts", "tokens", "cpu_seconds", "seconds")
BETTER = "our own is better"
Rows = list[dict[str, Any]]


def reached(curve: Rows, gain: float) -> dict[str, float] | None:
    """Return the costs of the first of two consecutive checkpoints at base + gain or above.

    Args:
        curve: checkpoints by update, the base first.
        gain: accuracy above the base.

    Returns:
        The row's `update` and costs; None if there is none.
    """
    goal = curve[0]["accuracy"] + gain - 1e-9
    for row, following in pairwise(curve[1:]):
        if min(row["accuracy"], following["accuracy"]) >= goal:
            return {name: row[name] for name in COSTS}
    return None


def paired_t(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95% interval of the mean of paired differences, one for each seed.

    Returns:
        Lower and upper bound, in the unit of the values; None for a single pair.
    """
    n = len(differences)
    if n == 1:
        return None
    mean = math.fsum(differences) / n
    variance = math.fsum((value - mean) ** 2 for value in differences) / (n - 1)
    half_width = float(student.ppf(0.975, n - 1)) * math.sqrt(variance / n)
    return mean - half_width, mean + half_width


def gaps(first: dict[str, Any], second: dict[str, Any]) -> list[float]:
    """Return the differences of two reports' scores, by problem."""
    a, b = first["per_problem"], second["per_problem"]
    return [a[name] - b[name] for name in sorted(a)]


def difference(by_seed: dict[int, list[float]], resamples: int) -> dict[str, Any]:
    """Return a mean paired difference with its two intervals, of which the wider one counts.

    Args:
        by_seed: differences by problem, for each seed.
        resamples: bootstrap resamples.
    """
    means = {seed: fmean(values) for seed, values in by_seed.items()}
    mean, bootstrap = paired_over_seeds([by_seed[seed] for seed in sorted(by_seed)], resamples)
    t = paired_t(list(means.values()))
    intervals = [interval for interval in (bootstrap, t) if interval]
    interval = max(intervals, key=lambda bounds: bounds[1] - bounds[0])
    return {
        "seeds": len(means),
        "difference": mean,
        "by_seed": means,
        "t": t,
        "bootstrap": bootstrap,
        "interval": interval,
        "is_claim": len(means) >= CLAIM_SEEDS and not interval[0] <= 0 <= interval[1],
    }


def standings(runs: Sequence[Run], resamples: int) -> Rows:
    """Return for each budget, task and entry what its runs reached, the best first.

    Before the test, `test` and `over_base` are None, and validation decides the order.
    """
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for budget in runs[0].plan.budgets:
        for run in runs:
            if run.chosen[budget]:
                groups[budget, run.task, run.entry].append(run)
    rows = [_standing(*key, group, resamples) for key, group in groups.items()]
    order = list(dict.fromkeys((row["budget"], row["task"]) for row in rows))
    return sorted(
        rows,
        key=lambda row: (
            order.index((row["budget"], row["task"])),
            -(row["validation"] if row["test"] is None else row["test"]),
        ),
    )


def _standing(
    budget: str, task: str, entry: str, runs: list[Run], resamples: int
) -> dict[str, Any]:
    chosen = {run.seed: row for run in runs if (row := run.chosen[budget])}
    tested = {run.seed: report for run in runs if (report := run.tested)}
    is_tested = len(tested) == len(runs)
    results = {seed: found["budgets"][budget] for seed, found in tested.items()}
    over_base = {seed: gaps(results[seed], tested[seed]["base"]) for seed in tested}
    plan, cost = runs[0].plan, runs[0].plan.budgets[budget]
    limit, gain = runs[0].limits[cost], plan.gain
    curves = [run.result["curve"] for run in runs if run.result]
    within = [[row for row in curve if row[cost] <= limit] for curve in curves]
    costs = [row for curve in within if (row := reached(curve, gain))]
    shown = {s: row["accuracy"] for s, row in (results if is_tested else chosen).items()}
    return {
        "budget": budget,
        "task": task,
        "entry": entry,
        "seeds": len(runs),
        "validation": fmean(row["accuracy"] for row in chosen.values()),
        "test": fmean(row["accuracy"] for row in results.values()) if is_tested else None,
        "by_seed": shown,
        "over_base": difference(over_base, resamples) if is_tested else None,
        "spent": {n: fmean(row[n] for row in chosen.values()) for n in COSTS},
        "reached": {n: fmean(row[n] for row in costs) for n in COSTS} if costs else None,
        "reached_by": len(costs),
    }


def pairs(runs: Sequence[Run], resamples: int) -> Rows:
    """Return the paired differences on test of our own entry minus each other, by budget and task.

    Seeds that both have are paired, and within them problems.
    """
    rows, own = [], runs[0].plan.own
    for budget in runs[0].plan.budgets:
        tested: dict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
        for run in runs:
            if (found := run.tested) and budget in found["budgets"]:
                tested[run.task, run.entry][run.seed] = found["budgets"][budget]
        for (task, entry), second in tested.items():
            first = tested.get((task, own), {})
            shared = sorted(set(first) & set(second))
            if entry != own and shared:
                by_seed = {seed: gaps(first[seed], second[seed]) for seed in shared}
                names = {"budget": budget, "task": task, "first": own, "second": entry}
                rows.append(names | difference(by_seed, resamples))
    return rows


def areas(runs: Sequence[Run], resamples: int) -> Rows:
    """Return each entry's area under accuracy by steps on test, best first, by task.

    Of the checkpoints within the budget of tokens. `over_base` and `own_minus` are paired, as in
    the other tables; `intervals` of each point are Student's t over seeds.
    """
    found: dict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
    for run in runs:
        if (tested := run.tested) and "curve" in tested:
            found[run.task, run.entry][run.seed] = tested["curve"]
    rows, own = [], runs[0].plan.own
    for (task, entry), curves in found.items():
        first = found.get((task, own), {}) if entry != own else {}
        shared = sorted(set(first) & set(curves))
        over = {seed: gaps(curve["best"], curve["base"]) for seed, curve in curves.items()}
        minus = {seed: gaps(first[seed]["best"], curves[seed]["best"]) for seed in shared}
        means = {s: fmean(curve["best"]["per_problem"].values()) for s, curve in curves.items()}
        names = next(iter(curves.values()))["best"]["points"]
        rows.append(
            {
                "task": task,
                "entry": entry,
                "seeds": len(curves),
                "area": fmean(means.values()),
                "base": fmean(next(iter(curves.values()))["base"]["per_problem"].values()),
                "points": {
                    name: [
                        fmean(c["best"]["points"][name][i] for c in curves.values()) for i in (0, 1)
                    ]
                    for name in names
                },
                "intervals": {
                    name: paired_t([c["best"]["points"][name][1] for c in curves.values()])
                    for name in names
                },
                "base_points": next(iter(curves.values()))["base"]["points"],
                "over_base": difference(over, resamples),
                "own_minus": difference(minus, resamples) if minus else None,
            }
        )
    order = list(dict.fromkeys(row["task"] for row in rows))
    return sorted(rows, key=lambda row: (order.index(row["task"]), -row["area"]))


def answer(plan: Plan, named: dict[str, list[str]], differences: Rows) -> str:
    """Return the answer to a tournament's question, with the opponents of each task.

    The question: at equal sampled tokens, is our own entry better than the strongest d-OPSD and
    than the best entry that knows as much, on every task?

    Args:
        plan: the rules.
        named: these opponents, by task.
        differences: what `pairs` returns.
    """
    found = {(row["task"], row["second"]): row for row in differences if row["budget"] == "tokens"}
    words = {
        task: {name: _verdict(found.get((task, name))) for name in names}
        for task, names in named.items()
    }
    is_better = all(said and set(said.values()) == {BETTER} for said in words.values())
    texts = []
    for task, said in words.items():
        listed = ", ".join(f"“{plan.title_of(name)}” ({word})" for name, word in said.items())
        texts.append(f"{task}: {listed or 'none yet'}")
    return (
        f"Is “{plan.title_of(plan.own)}” better than the strongest d-OPSD and the best entry that"
        " knows as much, at equal sampled tokens, on every task?"
        f" {'Yes' if is_better else 'No claim of that'}. Its opponents by validation:"
        f" {'; '.join(texts)}."
    )


def _verdict(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not tested"
    if not row["is_claim"]:
        return "no claim"
    return BETTER if row["difference"] > 0 else "our own is worse"
