"""The report of one run as an HTML page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dopsd.analysis.figures import GROUPS, WINDOW
from dopsd.analysis.html_report import words
from dopsd.analysis.html_report.page import render_page
from dopsd.analysis.html_report.paired import outcomes
from dopsd.analysis.html_report.run_charts import (
    AXES,
    accuracy_chart,
    constant_metrics,
    overlap_charts,
    training_charts,
)
from dopsd.analysis.html_report.words import how_it_works
from dopsd.analysis.results import records_of
from dopsd.core.statistics import percent, points, within
from dopsd.models.backends import in_words
from dopsd.tasks.registry import score_name

if TYPE_CHECKING:
    from dopsd.analysis.html_report.facts import RunFacts

IDLE = 0.01  # nats
TOTALS = {  # counter of train.json: what it counts
    "updates": "updates",
    "rollouts": "rollouts (sampled answers)",
    "trajectories": "sequences that were trained on",
    "sampled_tokens": "sampled tokens",
}


def run_page(facts: RunFacts, digest: str) -> str:
    """Return the page."""
    charts = {
        "accuracy": [accuracy_chart(facts)],
        "training": training_charts(facts),
        "overlap": overlap_charts(facts),
    }
    values = {
        "facts": facts,
        "title": f"{facts.method} on {facts.key.task}, seed {facts.key.seed}",
        "headline": words.headline(facts),
        "marks": words.marks(facts),
        "warnings": words.warnings(facts),
        "how_it_works": how_it_works(facts),
        "rows": _result_rows(facts),
        "area": facts.tested.get("area"),
        "watched": facts.tested.get("watched", {}),
        "points": points,
        "scores": _score_rows(facts),
        "costs": _cost_rows(facts),
        "has_seconds": "seconds" in facts.costs[0],
        "devices": _devices(facts),
        "tested_on": in_words(records_of(facts.comparison)),
        "trajectory": _trajectory(facts),
        "percent": percent,
        "axes": AXES,
        "constants": constant_metrics(facts),
        "block_texts": _block_texts(facts),
        "keep_threshold": _keep_threshold(facts),
        "trains_last_block": facts.of_method("record_last_block") != "false",
        "outcomes": outcomes(facts.comparison),
        "mean_of": WINDOW,
        "groups": GROUPS,
        "glossary": words.GLOSSARY,
    }
    return render_page("run.html", digest, charts, values)


def _result_rows(facts: RunFacts) -> list[dict[str, str]]:
    """Return a row of the results table for each protocol."""
    rows = []
    for name, comparison in facts.tested["protocols"].items():
        base, best, paired = (comparison[part] for part in ("base", "best", "paired"))
        is_apart = outcomes(comparison).tells_apart(paired["interval"])
        change = ("better" if paired["difference"] > 0 else "worse") if is_apart else "no clear"
        rows.append(
            {
                "protocol": name,
                "decoding": words.decoding_text(base["protocol"]) + words.saved_text([base, best]),
                "base": within(base["accuracy"], base["interval"]),
                "best": within(best["accuracy"], best["interval"]),
                "base_marks": percent(base["whole"]),
                "best_marks": percent(best["whole"]),
                "gap": points(paired["difference"], paired["interval"]),
                "verdict": f"{change} difference" if change == "no clear" else change,
            }
        )
    return rows


def _score_rows(facts: RunFacts) -> list[tuple[str, str, str, str]]:
    """Return protocol, meaning, base and trained of each score that the task's verifier gives."""
    return [
        (name, score_name(facts.key.task, score), percent(value), percent(trained))
        for name, comparison in facts.tested["protocols"].items()
        for score, value in comparison["base"].get("figures", {}).items()
        for trained in [comparison["best"]["figures"][score]]
    ]


def _block_texts(facts: RunFacts) -> list[str]:
    """Return the text of each block of the answer that is shown step by step."""
    pieces, length = facts.trajectory.get("pieces", []), facts.trajectory["block_length"]
    return ["".join(pieces[i : i + length]) for i in range(0, len(pieces), length)]


def _keep_threshold(facts: RunFacts) -> float | None:
    """Return the score from which on training keeps an answer; None where scores are not graded."""
    text = facts.of_method("keep_threshold")
    return float(text) if text and facts.description.is_graded else None


def _cost_rows(facts: RunFacts) -> list[tuple[str, ...]]:
    """Return each cost until half of the gain, until the selected checkpoint, until the end."""
    last = facts.totals | {"seconds": list(facts.costs.values())[-1].get("seconds")}
    half = half_of_gain(facts)
    ends = [None if half is None else facts.costs.get(half, {})]
    ends += [facts.costs.get(facts.selected["update"], {}), last]

    def cell(end: dict[str, Any] | None, name: str, share: float) -> str:
        if end is None:
            return "–"
        return words.grouped(None if end.get(name) is None else end[name] * share)

    def row(text: str, name: str, share: float = 1.0) -> tuple[str, ...]:
        return text, *(cell(end, name, share) for end in ends)

    settings = facts.settings.values
    steps, length = (int(settings.get(f"sampling.{key}", 1)) for key in ("steps", "gen_length"))
    is_counted = settings.get("sampling.threshold") in (None, "null")
    forwards = row("forwards of sampling, of one row, at most", "sampled_tokens", steps / length)
    return [
        *(row(text, name) for name, text in (TOTALS | {"seconds": AXES["seconds"]}).items()),
        *([forwards] if is_counted else []),
        *_idle_updates(facts),
    ]


def half_of_gain(facts: RunFacts) -> int | None:
    """Return the first checkpoint with half of the gain on the selection split.

    The gain is that of the selected checkpoint over what training began with.

    Returns:
        None without a gain or the start's score, and after a race: few checkpoints have exact ones.
    """
    chosen = facts.selected
    base = None if facts.description.start else chosen["base_accuracy"]
    start = chosen.get("start_accuracy", base)
    if start is None or chosen["accuracy"] <= start or "raced" in chosen:
        return None
    half = (start + chosen["accuracy"]) / 2
    return min(
        int(row["update"]) for row in facts.curve if row["update"] and row["accuracy"] >= half
    )


def _idle_updates(facts: RunFacts) -> list[tuple[str, ...]]:
    """Return how many updates had next to no loss, of a method whose loss is a distance."""
    has_rewards = facts.of_method("least_shift") not in (None, "0.0")
    is_bounded = facts.of_method("clip") not in (None, "null")
    if facts.of_method("teacher") is None or has_rewards or is_bounded:
        return []
    idle = [row["update"] for row in facts.training if row["loss"] < IDLE]
    ends = half_of_gain(facts), facts.selected["update"], math.inf
    counts = ("–" if end is None else f"{sum(u <= end for u in idle)}" for end in ends)
    return [(f"updates that taught next to nothing (loss under {IDLE})", *counts)]


def _devices(facts: RunFacts) -> list[str]:
    """Return the devices of each part of the training, in words."""
    return [
        f"{', '.join(dict.fromkeys(part['devices']))},"
        f" {words.counted(len(part['devices']), 'process', 'es')}"
        + (f", from update {part['after_update'] + 1} on" if part["after_update"] else "")
        for part in facts.machine
    ]


def _trajectory(facts: RunFacts) -> dict[str, Any] | None:
    """Return what the page's script needs to draw the trajectory; None from older runs."""
    trajectory = facts.trajectory
    if "pieces" not in trajectory:
        return None
    names = ("pieces", "revealed_at", "shown", "block_length", "grid")
    return {name: trajectory[name] for name in names}
