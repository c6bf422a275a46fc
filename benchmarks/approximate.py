"""Compare approximate with exact decoding: accuracy and time on the embedded validation puzzles.

    python benchmarks/approximate.py [--adapter runs/sudoku/d_opsd/0/best]

Run `dvc repro` first. Decoding is greedy; differences are paired by puzzle.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dopsd.config.loading import load_params
from dopsd.core.statistics import bootstrap
from dopsd.evaluation.evaluator import Evaluator
from dopsd.rollout.config import EvalProtocol
from dopsd.rollout.engine import denoise_all
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest

WAYS = {
    "exact": {},
    "stopped at the end of the text": {"stop_after_eos": True},
    "prefix cache": {"cache": "prefix"},
    "dual cache": {"cache": "dual"},
    "threshold 0.95": {"threshold": 0.95},
    "threshold 0.9": {"threshold": 0.9},
    "threshold 0.7": {"threshold": 0.7},
    "threshold 0.9, dual cache": {"threshold": 0.9, "cache": "dual"},
}
TIMES = 3  # repeats, of which the fastest counts


def scores(
    evaluator: Evaluator, protocol: EvalProtocol, adapter: Path | None
) -> tuple[list[float], float, int]:
    """Return the score of every problem, the seconds, and the number of forwards."""
    policy = evaluator.with_adapter(adapter)
    prompts = evaluator.prompt_set.prompts(policy, protocol)
    requests = [
        GenerationRequest(problem.id, 0, ids, 0)
        for problem, ids in zip(evaluator.problems, prompts, strict=True)
    ]
    forwards = 0

    def count(*_: object) -> None:
        nonlocal forwards
        forwards += 1

    handle = policy.core.model.register_forward_hook(count)
    seconds = []
    for _ in range(TIMES):
        forwards, started = 0, time.perf_counter()
        rollouts = denoise_all(policy, requests, decoding(protocol))
        seconds.append(time.perf_counter() - started)
    handle.remove()
    texts = [policy.text.decode(rollout.completion_ids) for rollout in rollouts]
    values = [
        evaluator.task.verify(p, text).score
        for p, text in zip(evaluator.problems, texts, strict=True)
    ]
    return values, min(seconds), forwards


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--adapter", type=Path)
    a = parser.parse_args()
    params = load_params()
    evaluator = Evaluator(params.evaluation("sudoku"), "validation")
    base = params.evaluate.protocols[params.select.protocol].model_dump()
    table = Table(
        "decoding",
        "accuracy %",
        "difference to exact, 95%",
        "forwards",
        "seconds",
        "times faster",
        box=SIMPLE,
    )
    exact: tuple[list[float], float, int] | None = None
    with torch.no_grad():
        for name, changes in WAYS.items():
            values, seconds, forwards = scores(
                evaluator, EvalProtocol.model_validate(base | changes), a.adapter
            )
            exact = exact or (values, seconds, forwards)
            gaps = [one - other for one, other in zip(values, exact[0], strict=True)]
            low, high = bootstrap(gaps, params.evaluate.bootstrap)
            gap = f"{100 * sum(gaps) / len(gaps):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            row = (
                f"{100 * sum(values) / len(values):.1f}",
                gap,
                str(forwards),
                f"{seconds:.2f}",
                f"{exact[1] / seconds:.2f}",
            )
            table.add_row(name, *row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
