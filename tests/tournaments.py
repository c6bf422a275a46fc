"""A small tournament by hand: Sudoku is tested and has five seeds, Countdown neither."""

from __future__ import annotations

from typing import Any

BASES = {"sudoku": 0.5, "countdown": 0.25}
KNOWS = {"d_opsd": "reward", "infill": "gold answer", "sft": "solution"}
TITLES = {"d_opsd": "d-OPSD", "infill": "Answer infilling", "sft": "SFT"}
TOKENS = {"d_opsd": 100, "infill": 40, "sft": 0}  # an update
SUDOKU = {  # on test, by seed
    "d_opsd": [0.56, 0.57, 0.58, 0.59, 0.60],  # mean 0.58
    "infill": [0.66, 0.68, 0.67, 0.69, 0.70],  # mean 0.68
    "sft": [0.74, 0.76],
}
COUNTDOWN = {"d_opsd": [0.31, 0.33], "infill": [0.27, 0.29], "sft": [0.40]}  # on validation


def run(task: str, entry: str, seed: int, accuracy: float) -> dict[str, Any]:
    """A run whose second checkpoint of three is the best: 10 updates, 20 CPU seconds."""
    is_tested = task == "sudoku"
    validation = round(accuracy + 0.02, 4) if is_tested else accuracy
    curve = [
        {
            "update": update,
            "accuracy": value,
            "rollouts": 4 * update,
            "tokens": TOKENS[entry] * update,
            "cpu_seconds": 2.0 * update,
            "seconds": 3.0 * update,
            "flops": 1e9 * update,
        }
        for update, value in ((0, BASES[task]), (10, validation), (20, round(validation - 0.01, 4)))
    ]
    chosen = {
        "update": 10,
        "validation": validation,
        "test": accuracy if is_tested else None,
        "interval": [accuracy - 0.03, accuracy + 0.03] if is_tested else None,
        "tokens": 10 * TOKENS[entry],
        "cpu_seconds": 20.0,
    }
    reached = {name: value for name, value in curve[1].items() if name != "accuracy"}
    return {
        "task": task,
        "entry": entry,
        "seed": seed,
        "folder": f"runs/{task}/{entry}-final/{seed}",
        "rate": 0.001,
        "settings": {"train.learning_rate": "0.001", f"method.{entry}.unheard_of": "8"},
        "command": f"dopsd tournament run --task {task} --entry {entry} --seed {seed}",
        "fingerprint": "train-0123",
        "curve": curve,
        "chosen": {"tokens": chosen, "seconds": chosen},
        "reached": reached if validation >= BASES[task] + 0.05 else None,
    }


def standing(budget: str, task: str, entry: str, values: list[float]) -> dict[str, Any]:
    """The mean of the runs of an entry."""
    mean, is_tested = sum(values) / len(values), task == "sudoku"
    gain = mean - BASES[task]
    return {
        "budget": budget,
        "task": task,
        "entry": entry,
        "seeds": len(values),
        "test": mean if is_tested else None,
        "validation": mean + 0.02 if is_tested else mean,
        "by_seed": {str(seed): value for seed, value in enumerate(values)},
        "over_base": {"difference": gain, "interval": [gain - 0.04, gain + 0.04]}
        if is_tested
        else None,
        "reached": {"update": 10, "tokens": 10 * TOKENS[entry], "cpu_seconds": 20.0},
        "reached_by": 1,
        "reached_first": entry == "infill",
        "checkpoints": 2 if is_tested else 0,
    }


def pair(budget: str, task: str, first: str, second: str, **changes: Any) -> dict[str, Any]:
    """A pair that may be claimed: five seeds, and both intervals are clear of 0."""
    row = {
        "budget": budget,
        "task": task,
        "first": first,
        "second": second,
        "seeds": 5,
        "difference": -0.1,
        "by_seed": {"0": -0.1, "1": -0.11, "2": -0.09, "3": -0.1, "4": -0.1},
        "t": [-0.11, -0.09],
        "bootstrap": [-0.14, -0.06],
        "interval": [-0.14, -0.06],
        "is_claim": True,
    }
    return row | changes


def results() -> dict[str, Any]:
    """The file of the tournament."""
    values = {"sudoku": SUDOKU, "countdown": COUNTDOWN}
    few = {"seeds": 2, "difference": 0.04, "by_seed": {"0": 0.04, "1": 0.04}, "is_claim": False}
    few |= {"t": None, "bootstrap": [0.01, 0.07], "interval": [0.01, 0.07]}
    return {
        "version": 1,
        "answer": "Is it ahead? No claim of that.",
        "rules": {
            "tasks": {"sudoku": {}, "countdown": {}, "chains": {}},
            "own": "infill",
            "seeds": [0, 1],
            "more_seeds": [2, 3, 4],
            "best": 2,
            "tokens": 64000,
            "seconds": 150.0,
            "gain": 0.05,
            "notes": ["See the trials of infill."],
            "tuning": {"seed": 100, "rates": [0.0003, 0.001, 0.003], "share": 0.5},
        },
        "bases": {
            task: {
                "path": f"base/{task}",
                "digest": "ab12",
                "validation": share,
                "validation_n": 256,
                "test": share if task == "sudoku" else None,
                "test_n": 256,
            }
            for task, share in BASES.items()
        }
        | {"chains": {"path": "base/chains", "digest": "ab12"}},  # nothing has run
        "entries": {
            name: {
                "method": name,
                "title": title,
                "knowledge": KNOWS[name],
                "knows": {"sudoku": KNOWS[name], "countdown": KNOWS[name]},
                "settings": {"sudoku": {"updates_per_trajectory": 1}, "countdown": {}},
                "rates": {
                    "sudoku": {
                        "tried": {"0.0003": 0.51, "0.001": 0.61, "0.003": 0.55},
                        "chosen": 0.003 if name == "sft" else 0.001,
                    },
                    "chains": {"tried": {}, "chosen": None},
                },
            }
            for name, title in TITLES.items()
        },
        "runs": [
            run(task, entry, seed, value)
            for task, rows in values.items()
            for entry, by_seed in rows.items()
            for seed, value in enumerate(by_seed)
        ],
        "standings": [
            standing(budget, task, entry, by_seed)
            for budget in ("tokens", "seconds")
            for task, rows in values.items()
            for entry, by_seed in rows.items()
        ],
        "pairs": [
            pair("tokens", "sudoku", "d_opsd", "infill"),
            pair("seconds", "sudoku", "d_opsd", "infill", is_claim=False),
            pair("tokens", "sudoku", "d_opsd", "sft"),  # sft samples nothing
            pair("tokens", "countdown", "d_opsd", "infill", **few),
        ],
        "switches": [
            {
                "task": "sudoku",
                "switch": "teacher ema",
                "entry": "d_opsd",
                "seed": 0,
                "validation": 0.6,
                "over_default": -0.013,
            },
            {
                "task": "sudoku",
                "switch": "wide",
                "entry": "d_opsd",
                "seed": 0,
                "validation": None,
                "over_default": None,
            },
        ],
        "warnings": ["countdown/sft/0: stopped early"],
    }
