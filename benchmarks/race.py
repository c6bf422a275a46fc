"""Does a race choose worse checkpoints than exact scores? race.md has the rules and the result.

    dopsd init race --profile embedded && cd race
    dopsd params --set train.checkpoint_every=5
    for t in sudoku chains countdown; do dopsd prepare --task $t; done
    PYTHONPATH=.. python -m benchmarks.race > race.jsonl

Runs are trained where they are missing. Choices are scored on training problems that no run
reached.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from benchmarks.tournament.standings import difference
from dopsd.cli.main import main as dopsd
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.progress import log
from dopsd.core.types import Problem
from dopsd.evaluation.config import RaceConfig
from dopsd.evaluation.evaluator import Evaluator
from dopsd.evaluation.race import race
from dopsd.models.adapter_files import run_checkpoints
from dopsd.training.prompt_sampler import PromptSampler

TASKS, SEEDS = ("sudoku", "chains", "countdown"), range(5)
HELD, UPDATES, THRESHOLD = 1024, 100, 0.9
RACE = RaceConfig(protocol="fast", first=32, leaders=2)  # as in the preset `fast`


class Counted(Evaluator):
    """Counts the denoising steps of new answers."""

    steps = 0

    def _evaluate(self, adapter: Any, protocol: Any, progress: Any) -> None:
        before = {*self.answering(adapter, protocol).found()}
        super()._evaluate(adapter, protocol, progress)
        found = self.answering(adapter, protocol).found()
        Counted.steps += sum(a[0].steps for name, a in found.items() if name not in before)


def compared(task: str, seed: int) -> dict[str, Any]:
    """Return what each way to choose costs, chooses, and what the choice scores."""
    if dopsd(["train", "--task", task, "--method", "d_opsd", "--seed", str(seed)]):
        raise SystemExit(1)
    params = load_params()
    adapters = run_checkpoints(Path("runs") / task / "d_opsd" / str(seed) / "train")
    of_run, exact = params.evaluation(task, "d_opsd"), params.evaluate.protocols["greedy"]
    fast = exact.model_copy(update={"threshold": THRESHOLD})
    whole = Counted(of_run, "validation")
    evaluators = [whole]

    def of_first(problems: int) -> Evaluator:
        evaluators.append(Counted(of_run, "validation", first=problems))
        evaluators[-1].take_model(evaluators[-2])
        return evaluators[-1]

    Counted.steps = 0
    leaders, _ = race(of_first, [*adapters], fast, RACE, len(whole.problems))
    whole.take_model(evaluators[-1])
    finalists = [a for a in adapters if a in leaders or a == adapters[-1]]
    (scored,) = whole.reports("leaders", [None, *finalists], exact)
    raced = {"steps": Counted.steps, "chosen": best(finalists, scored[1:])}
    (every,) = whole.reports("exact", [None, *adapters], exact)
    steps = sum(r["steps"] * r["n"] for r in every)
    exactly = {"steps": round(steps), "chosen": best(adapters, every[1:])}
    held = Counted(of_run, "train")
    held.problems = unreached(held.problems, params)
    held.prompt_set = replace(held.prompt_set, problems=held.problems)
    held.is_whole = False
    held.take_model(whole)
    ways: dict[str, dict[str, Any]] = {"race": raced, "exact": exactly}
    for way in ways.values():
        ((report,),) = held.reports("held out", [way["chosen"]], exact)
        way |= {"per_problem": report["per_problem"], "accuracy": report["accuracy"]}
    return ways


def unreached(problems: Sequence[Problem], params: Params) -> list[Problem]:
    """Return the first problems that no collect of any seed has."""
    own, reached = params.of("d_opsd"), set()
    collects = -(-UPDATES // own.method.d_opsd.updates_of_collect)
    for seed in SEEDS:
        order = PromptSampler(problems, own.train.prompts_per_collect, seed, Accelerator(cpu=True))
        reached |= {p.id for collect in range(collects) for p in order.of(collect)}
    found = [problem for problem in problems if problem.id not in reached][:HELD]
    assert len(found) == HELD
    return found


def best(adapters: list[Path], reports: list[dict[str, Any]]) -> Path:
    """Return the checkpoint with the highest accuracy, the earliest of equals."""
    return max(zip(reports, adapters, strict=True), key=lambda pair: pair[0]["accuracy"])[1]


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each task."""
    for task in TASKS:
        found = {seed: compared(task, seed) for seed in SEEDS}
        gaps = {}
        for seed, ways in found.items():
            a, b = (ways[way].pop("per_problem") for way in ("race", "exact"))
            gaps[seed] = [a[name] - value for name, value in b.items()]
        yield {"task": task, "runs": found, "difference": difference(gaps, 2000)}


def main() -> None:
    """Print a line of JSON for each task."""
    for row in rows():
        log(f"race: {row['task']}: {row['difference']}")
        sys.stdout.write(json.dumps(row, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
