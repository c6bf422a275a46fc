"""`dopsd test --task sudoku --method d_opsd --seed 0`: score base and best checkpoint on test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import BlockSchedule, reveal
from dopsd.core.errors import Code, unknown
from dopsd.core.files import read_json, write_json
from dopsd.core.paths import RunKey, run_folder
from dopsd.core.progress import is_main_rank, log
from dopsd.core.rng import key_from
from dopsd.core.statistics import bootstrap, gap
from dopsd.evaluation.evaluator import Evaluator, drawn_answers
from dopsd.evaluation.speed import areas
from dopsd.models.backends import distinct
from dopsd.models.checkpoint_files import base_digest
from dopsd.pipeline.dvc.pruning import remove_unwanted
from dopsd.pipeline.run.view import accuracy
from dopsd.pipeline.stages.prepare import prepare_watched
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest, denoise
from dopsd.tasks.common.task import grid_values

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.training.run_settings import RunSettings

KEPT = ["accuracy", "interval", "n", "whole", "figures", "steps", "per_problem", "protocol"]
KEPT += ["measured_on"]


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    """Score base and best checkpoint with every protocol, and write test/ and test.json.

    The tasks of `evaluate.watch` are scored too. Then the checkpoints go that `checkpoints.keep`
    does not keep.
    """
    folder = run_folder(task_name, method_name, seed)
    prepare_watched(params)
    selection = read_json(folder / "best" / "select.json", "dopsd select")
    run_settings = params.run(task_name, method_name, seed)
    evaluator = Evaluator(params.evaluation(task_name, method_name), "test")
    protocols = params.test_protocols
    order = params.test_order
    reports = evaluator.reports(
        "test", [None, folder / "best"], *(protocols[name] for name in order)
    )
    watched = _watched(params, run_settings.key, evaluator)
    if not is_main_rank():
        evaluator.take_part()
        return
    facts = {"task": task_name, "method": method_name, "seed": seed, "selected": selection}
    facts["base_files"] = base_digest(run_settings.model)
    comparisons = {}
    for name in protocols:
        base, best = reports[order.index(name)]
        comparisons[name] = compare(base, best, params.evaluate.bootstrap)
    if watched:
        resamples = params.evaluate.bootstrap
        scored = {n: compare(base, best, resamples) for n, (base, best) in watched.items()}
        _say_falls(scored)
        facts["watched"] = scored
    if found := areas(comparisons, selection["protocol"], params.evaluate.bootstrap):
        facts["area"] = found
    write_json(
        folder / "test" / "trajectory.json",
        trajectory(run_settings, evaluator, folder / "best"),
    )
    evaluator.take_part()
    answers = drawn_answers(evaluator, folder / "best", protocols[selection["protocol"]])
    write_json(folder / "test" / "answers.json", {"answers": answers})
    write_json(folder / "test" / "paired.json", facts | {"protocols": comparisons})
    write_json(
        folder / "test.json", {name: _flat(comparison) for name, comparison in comparisons.items()}
    )
    remove_unwanted(params, run_settings.key)


def score_point(params: Params, key: RunKey, name: str) -> None:
    """Score base and best checkpoint with one protocol of the test, for the stage to find."""
    read_json(key.folder / "best" / "select.json", "dopsd select")
    if name not in params.test_protocols:
        message = unknown(f"--point {name}", params.test_protocols)
        raise Code.UNKNOWN_NAME.error(message)
    evaluator = Evaluator(params.evaluation(key.task, key.method), "test")
    (pair,) = evaluator.reports(
        f"test {name}", [None, key.folder / "best"], params.test_protocols[name]
    )
    base, best = (accuracy(report) for report in pair)
    log(f"test: {name}: base {base}, trained {best}")


def _watched(params: Params, key: RunKey, evaluator: Evaluator) -> dict[str, list[dict[str, Any]]]:
    """Return the reports of base and best checkpoint on the tasks of `evaluate.watch`."""
    protocol, found = params.evaluate.protocols[params.select.protocol], {}
    for name in params.evaluate.watch:
        if name != key.task:
            other = Evaluator(params.evaluation(name, key.method, base_of=key.task), "test")
            other.take_model(evaluator)
            (found[name],) = other.reports(f"watch {name}", [None, key.folder / "best"], protocol)
            evaluator.take_model(other)
    return found


def _say_falls(watched: dict[str, dict[str, Any]]) -> None:
    for name, comparison in watched.items():
        paired = comparison["paired"]
        if paired["interval"][1] < 0:
            change = gap(paired["difference"], paired["interval"])
            log(f"test: warning: {name}, which is not trained, falls: {change}")


def compare(base: dict[str, Any], best: dict[str, Any], resamples: int) -> dict[str, Any]:
    """Return both reports, and their paired difference with its 95% bootstrap interval."""
    gaps = [best["per_problem"][name] - value for name, value in base["per_problem"].items()]
    paired = {"difference": sum(gaps) / len(gaps), "interval": bootstrap(gaps, resamples)}
    sides = {"base": base, "best": best}
    return {side: {key: report[key] for key in KEPT} for side, report in sides.items()} | {
        "paired": paired
    }


def _flat(comparison: dict[str, Any]) -> dict[str, Any]:
    low, high = comparison["paired"]["interval"]
    base, best, difference = comparison["base"], comparison["best"], comparison["paired"]
    accuracies = {"base": base["accuracy"], "best": best["accuracy"]}
    return accuracies | {
        "difference": difference["difference"],
        "low": low,
        "high": high,
        "measured_on": distinct([*base["measured_on"], *best["measured_on"]]),
    }


def trajectory(run: RunSettings, evaluator: Evaluator, adapter: Path) -> dict[str, Any]:
    """Denoise one test problem at the training temperature, for the trajectory figure.

    Returns:
        Tokens, the step that revealed each, and for every step the positions a teacher would see.
    """
    policy, problem = evaluator.with_adapter(adapter), evaluator.problems[0]
    prompt = evaluator.prompt_of(problem)
    algorithm = run.algorithm
    config = (
        algorithm
        if isinstance(algorithm, DOpsdConfig) and algorithm.reveals_own_future
        else DOpsdConfig()
    )  # methods that reveal nothing show the paper's teacher
    request = GenerationRequest(problem.id, 0, prompt, key_from("trajectory", problem.id))
    exact = run.sampling.model_copy(update={"threshold": None})
    rollout = denoise(policy, [request], decoding(exact, config.first_temperature))[0]
    blocks = BlockSchedule.of(policy, exact)
    steps = range(blocks.count(rollout) * len(blocks.num_transfer_tokens))
    text = policy.text.decode(rollout.completion_ids, run.sampling.text_after_eos)
    return {
        "problem": problem.prompt,
        "answer": problem.answer,
        "text": text,
        "verdict": evaluator.task.verify(problem, text).__dict__,
        "grid": grid_values(evaluator.task, problem, text),
        "pieces": policy.text.pieces(rollout.completion_ids),
        "has_own_teacher": config is algorithm,
        "tokens": policy.tokenizer.convert_ids_to_tokens(rollout.completion_ids.tolist()),
        "revealed_at": rollout.revealed_at.tolist(),
        "block_length": blocks.block_length,
        "shown": [
            torch.nonzero(shown)[:, 0].tolist()
            for shown in reveal(rollout, steps, config, blocks, request.key)
        ],
    }
