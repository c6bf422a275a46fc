"""Files as finished runs leave them."""

from __future__ import annotations

import json
from pathlib import Path

from dopsd.layout import write_table
from dopsd.progress import write_json


def cost(update: int) -> dict[str, int]:
    return {"update": update, "count/rollouts": 2 * update, "count/trajectories": update, "count/sampled_tokens": 80 * update}


def finished(method: str, seed: int, scores: dict[str, float], seconds: list[float] | None = None) -> None:
    """The files that a run of two updates, two rollouts each, leaves."""
    cell = Path("runs/sudoku") / method / str(seed)
    cell.mkdir(parents=True)
    mean = sum(scores.values()) / len(scores)
    base = {"accuracy": 0.25, "n": len(scores), "per_problem": dict.fromkeys(scores, 0.25)}
    sides = {"base": base, "best": {"accuracy": mean, "per_problem": scores}}
    paired = {"difference": mean - 0.25, "interval": [mean - 0.35, mean - 0.15]}
    chosen = {"update": 2, "protocol": "greedy"}
    write_json(cell / "test" / "paired.json", {"selected": chosen, "protocols": {"greedy": sides | {"paired": paired}}})
    write_json(cell / "best" / "select.json", chosen)
    write_json(cell / "train.json", {"fingerprint": f"train-{method}{seed}"})
    write_table(cell / "train.csv", [cost(1), cost(2)])
    write_table(cell / "curve.csv", [{"update": u, "accuracy": a, "protocol": "greedy"} for u, a in ((0, 0.25), (2, mean))])
    if seconds:
        log = Path("work") / f"train-{method}{seed}" / "log.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text("".join(json.dumps({"update": i + 1, "time/update_seconds": s}) + "\n" for i, s in enumerate(seconds)))
