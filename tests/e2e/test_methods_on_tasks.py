"""Every method trains two updates on every task, by `dvc repro` and by the deployment."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
from conftest import ROOT
from deployed import run_by
from workspace import CHANGES, Workspace

from dopsd.algorithms.registry import ALGORITHMS

TASKS = ["sudoku", "gsm8k", "math500", "countdown", "chains"]
WANTS = {name: ALGORITHMS.config_class(name)().wants_solutions for name in ALGORITHMS.names}
Settings = dict[str, dict[str, object]]  # of each method
GOLD = {name for name in ALGORITHMS.names if ALGORITHMS.config_class(name)().wants_gold_answers}
ROUNDS: dict[str, Settings] = {
    "by answers": {
        name: {} for name, wants in WANTS.items() if not wants and name not in GOLD | {"vrpo"}
    }
    | {name: {"keep": "all"} for name in ("d_opsd", "rft")}  # the toy base is never right
    | {"temporal": {"weight": "none"}},
    "by puzzles": {name: {} for name in ("vrpo", *GOLD)},
    "by solutions": {name: {} for name, wants in WANTS.items() if wants},
    "squared": {  # GDSD, CJ-GRPO, JustGRPO on its most uncertain positions
        "espo": {"objective": "squared", "token_weight": "one"},
        "trace_rl": {"shrink": 1, "baseline": "mean", "kl_to": "base", "kl_reduction": "mean"},
        "just_grpo": {"positions": "entropy_top"},
    },
    "token": {  # coupled-GRPO, RLDF, JustGRPO on the steps that fell back
        "just_grpo": {"positions": "fallback", "threshold": 0.9},
        "espo": {"objective": "token", "masks": "share", "full_mask": True, "tail": "context"},
        "trace_rl": {"shrink": 1, "states": 4, "confident": 0.6}
        | {"reduction": "token", "kl_reduction": "mean"},
    },
}
PAIRS = [(a, b) for a in range(1, 9) for b in range(1, 9)]
ROWS = {  # of each file in data/external; the first 48 are for training
    "gsm8k": [{"question": f"{a} and {b}?", "answer": f"#### {a + b}"} for a, b in PAIRS],
    "math500": [
        {"problem": f"{a} x {b}", "answer": f"{a * b}", "solution": f"\\boxed{{{a * b}}}"}
        for a, b in PAIRS
    ],
}


def tasks_of(which: str) -> list[str]:
    """Tasks of a round. Pairs need a right and a wrong answer, and infilling an answer that the
    verifier reads: the toy base, which learned puzzles, answers no other problem.
    """
    return TASKS[:1] if which == "by puzzles" else TASKS


def settings(which: str, tasks: list[str], methods: list[str]) -> dict[str, object]:
    """Changes to the small settings, as keys of `small_params`."""
    changes: dict[str, object] = {"matrix__tasks": tasks, "matrix__methods": methods}
    changes["data__chains__model"] = {"path": "base/chains"}  # the toy base is never right there
    for name in ROWS:
        for split in ("train", "test"):
            changes[f"data__{name}__{split}__path"] = f"data/external/{name}-{split}.jsonl"
        changes[f"data__{name}__validation"] = 12
    for method, values in ROUNDS[which].items():
        has_groups = "temperature" in ALGORITHMS.config_class(method).model_fields
        hot = {"temperature": 3.0} if has_groups else {}  # rewards of a group must differ
        changes |= {f"method__{method}__{key}": value for key, value in (hot | values).items()}
    return changes


def workspace(folder: Path) -> Workspace:
    """A checkout with the rows of the tasks, and the base of chains."""
    made = Workspace(folder, is_warm=True)
    shutil.copytree(ROOT / "base/chains", folder / "base/chains")
    made.commit()
    external = folder / "data/external"
    external.mkdir(parents=True, exist_ok=True)
    for name, rows in ROWS.items():
        lines = [json.dumps(row) + "\n" for row in rows]
        (external / f"{name}-train.jsonl").write_text("".join(lines[:48]))
        (external / f"{name}-test.jsonl").write_text("".join(lines[48:]))
    return made


def updates(folder: Path, result: str) -> dict[tuple[str, ...], int]:
    """Updates of each run that has this result, by task and method."""
    runs = sorted(path.parent for path in folder.glob(f"runs/*/*/0/{result}"))
    return {
        run.parts[-3:-1]: json.loads((run / "train.json").read_text())["updates"] for run in runs
    }


@pytest.mark.nightly
@pytest.mark.parametrize("which", ROUNDS)
def test_each_method_trains_by_dvc(which: str, tmp_path: Path):
    made, tasks, methods = workspace(tmp_path), tasks_of(which), [*ROUNDS[which]]
    cells = [(tasks[i % len(tasks)], name) for i, name in enumerate(methods)]
    made.write(**CHANGES | settings(which, tasks, methods))
    made.repro(*(f"train@{task}-{name}-0" for task, name in cells))
    assert updates(tmp_path, "train.json") == dict.fromkeys(cells, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("which", ROUNDS)
@pytest.mark.parametrize("by", ["dvc", "deployment"])
def test_every_method_trains_on_every_task(by: str, which: str, tmp_path: Path):
    made, tasks, methods = workspace(tmp_path), tasks_of(which), [*ROUNDS[which]]
    changes = settings(which, tasks, methods)
    run_by(by, made, changes)
    assert updates(tmp_path, "test.json") == dict.fromkeys(product(tasks, methods), 2)
