"""Files as finished runs leave them."""

import json
from pathlib import Path

from dopsd.core.files import write_json
from dopsd.core.tables import write_table

MEASURED = {"device": "CPU", "packages": {}}


def cost(update: int) -> dict[str, int]:
    counts = {"rollouts": 2 * update, "trajectories": update, "sampled_tokens": 80 * update}
    return {"update": update} | {f"count/{name}": count for name, count in counts.items()}


def finished(
    method: str,
    seed: int,
    scores: dict[str, float],
    seconds: list[float] | None = None,
    base_score: float = 0.25,
    split: str = "validation",
    measured_on: tuple[dict, dict] = (MEASURED, MEASURED),
) -> None:
    """The files that a run of two updates, two rollouts each, leaves."""
    cell = Path("runs/sudoku") / method / str(seed)
    cell.mkdir(parents=True)
    mean = sum(scores.values()) / len(scores)
    protocol = {"gen_length": 40, "steps": 20}
    base = {"accuracy": 0.25, "n": len(scores), "per_problem": dict.fromkeys(scores, base_score)}
    base |= {"interval": [0.2, 0.3], "protocol": protocol, "whole": 0.0}
    best = {"accuracy": mean, "interval": [mean - 0.1, mean + 0.1], "per_problem": scores}
    sides = {"base": base, "best": best | {"whole": 0.0}}
    for side, record in zip(sides.values(), measured_on, strict=True):
        side["measured_on"] = [record]
    paired = {"difference": mean - 0.25, "interval": [mean - 0.35, mean - 0.15]}
    chosen = {"update": 2, "protocol": "greedy", "split": split}
    tested = {"selected": chosen, "protocols": {"greedy": sides | {"paired": paired}}}
    write_json(cell / "test" / "paired.json", tested | {"base_files": "01"})
    write_json(cell / "best" / "select.json", chosen)
    write_json(cell / "train.json", {"fingerprint": f"train-{method}{seed}"})
    write_table(cell / "train.csv", [cost(1), cost(2)])
    points = [(0, 0.25), (2, mean)]
    curve = [{"update": u, "accuracy": a, "protocol": "greedy"} for u, a in points]
    write_table(cell / "curve.csv", curve)
    if seconds:
        log = Path("work") / f"train-{method}{seed}" / "log.jsonl"
        log.parent.mkdir(parents=True)
        rows = [{"update": i, "time/update_seconds": s} for i, s in enumerate(seconds, 1)]
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))


def trained_with(method: str, seed: int, **settings: object) -> None:
    """The record of a finished run's training, with these settings; `method` names a section."""
    kind = method.partition("-")[0]
    record = {"settings": {"method": kind, kind: {}, "seed": seed, "task": "sudoku"} | settings}
    train = {"weights": "lora", "reference": "base"} | record["settings"].get("train", {})
    record["settings"]["train"] = train
    record |= {"ends": {}, "inputs": {}, "code": {}, "history": [], "cells": []}
    write_json(Path("work") / f"train-{method}{seed}" / "run.json", record)
