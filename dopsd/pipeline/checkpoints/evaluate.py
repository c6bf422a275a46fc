"""`dopsd evaluate --adapter FOLDER`: score one checkpoint on any split and protocol, with pass@k.

Results go to reports/evaluate/ and MLflow.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dopsd.core.errors import Code, DopsdError, unknown
from dopsd.core.files import write_atomically, write_json
from dopsd.core.paths import EVALUATED, REPORTS, run_folder
from dopsd.core.progress import is_main_rank, log
from dopsd.evaluation.evaluator import Evaluator
from dopsd.evaluation.generate import Trials
from dopsd.models.adapter_files import shape_of
from dopsd.models.backends import fields, in_words
from dopsd.models.config import ModelOverrides
from dopsd.pipeline.run.view import accuracy
from dopsd.rollout.config import EvalProtocol
from dopsd.tracking.client import (
    Identity,
    connect,
    find_run,
    log_once,
    one_line,
    tag_measured,
    tracking_uri,
)
from dopsd.training.run_identity import identify

if TYPE_CHECKING:
    from dopsd.config.params import Params

PUBLISHED = "published"


@dataclass(frozen=True)
class Request:
    """What to evaluate; None takes the value of params.yaml."""

    task: str
    split: str | None = None
    model: str | None = None  # base model folder
    adapter: Path | None = None  # checkpoint folder; None: the base alone
    protocol: str | None = None  # one of evaluate.protocols, or `published`
    gen_length: int | None = None  # tokens of an answer
    attempts: int = 1  # k of pass@k; the first attempt is greedy
    temperature: float = 1.0  # of later attempts
    prompt_file: str | None = None  # text that replaces the task's instructions
    merged: bool | None = None  # whether the adapter is added into the weights


LONG = 512  # tokens from which on the published evaluation halves its batches


def published_protocol(gen_length: int) -> EvalProtocol:
    """Return the protocol of the published accuracies, for answers of `gen_length` tokens.

    Batches hold 8 problems (4 from length 512), padding is not masked, autocast is float16, and
    scorers read the text after its first end too.
    """
    return EvalProtocol(
        gen_length=gen_length,
        block_length=32,
        steps=gen_length // 2,
        batch_size=8 if gen_length < LONG else 4,
        prefill="<reasoning>",
        mask_padding=False,
        autocast="float16",
        text_after_eos=True,
    )


def protocol_of(params: Params, request: Request) -> EvalProtocol:
    """Return the requested protocol; another length keeps the number of tokens per step."""
    protocols = params.evaluate.protocols | params.test_protocols
    name = request.protocol or params.select.protocol
    if name == PUBLISHED:
        protocol = published_protocol(request.gen_length or 256)
    elif name in protocols:
        protocol = protocols[name]
    else:
        message = unknown(f"--protocol {name}", [PUBLISHED, *protocols])
        raise Code.UNKNOWN_NAME.error(message)
    length = protocol.gen_length if request.gen_length is None else request.gen_length
    changes = {"gen_length": length, "steps": length * protocol.steps // protocol.gen_length}
    changes |= {"merged": protocol.merged if request.merged is None else request.merged}
    try:
        return EvalProtocol.model_validate(protocol.model_dump() | changes)
    except ValueError as error:
        expected = f"expected a multiple of block_length {protocol.block_length}"
        raise Code.ARGUMENT.error(f"--gen-length {length}: {expected}") from error


def with_request(params: Params, request: Request) -> Params:
    """Return the settings with the requested model and prompt."""
    if request.prompt_file and params.model_of(request.task).prompt_style == "compact":
        raise Code.OPTIONS.error(
            "--prompt-file: model.prompt_style compact reads no prompt file; run"
            " `dopsd params --set model.prompt_style=instructions` first"
        )
    section = params.data.tasks[request.task]
    changes: dict[str, Any] = {}
    if request.prompt_file:
        changes["prompt_file"] = request.prompt_file
    if request.model:
        model = section.model or ModelOverrides()
        changes["model"] = model.model_copy(update={"path": request.model})
    data = params.data.model_copy(update={request.task: section.model_copy(update=changes)})
    return params.model_copy(update={"data": data})


def measure(params: Params, request: Request, as_json: bool) -> dict[str, Any]:
    """Score a checkpoint; the main rank writes report and generations, and prints accuracies."""
    if request.merged and not request.adapter:
        raise Code.OPTIONS.error("--merged: no adapter; name one with --adapter")
    params, protocol = with_request(params, request), protocol_of(params, request)
    settings = params.evaluation(request.task)
    if request.adapter:
        settings = replace(settings, lora=shape_of(request.adapter))
    trials = Trials(request.attempts, request.temperature)
    evaluator = Evaluator(settings, request.split or params.select.split, trials)
    ((report,),) = evaluator.reports("evaluate", [request.adapter], protocol)
    if not is_main_rank():
        return report
    cache_path = evaluator.cached(request.adapter, protocol)
    folder = REPORTS / "evaluate" / f"{request.task}-{evaluator.split}-{cache_path.stem}"
    facts = {
        "model": settings.model.path,
        "adapter": str(request.adapter or ""),
        "scoring": evaluator.task.scoring,
    }
    write_json(folder / "report.json", facts | report)
    _write_generations(evaluator, request.adapter, protocol, folder / "generations.jsonl")
    if params.tracking.enabled:
        try:
            _track(params, request.task, cache_path.stem, facts | report, folder)
        except DopsdError as error:  # results are on disk; the same command sends them later
            log(error.coded)
    _show(facts | report, as_json)
    log(f"evaluate: report and generations in {folder}")
    return report


def _write_generations(
    evaluator: Evaluator, adapter: Path | None, protocol: EvalProtocol, path: Path
) -> None:
    """Write every attempt as a line that `dopsd score` reads."""
    answers = evaluator.answers(adapter, protocol)
    lines = [
        {
            "question": problem.prompt,
            "ground_truth": evaluator.task.ground_truth(problem),
            "generation": answer.text,
            "attempt": answer.attempt,
            **asdict(answer.score),
        }
        for problem in evaluator.problems
        for answer in answers[problem.id]
    ]
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


def _track(
    params: Params, task: str, fingerprint: str, report: dict[str, Any], folder: Path
) -> None:
    """Log the evaluation as an MLflow run of its own; the same one is never logged twice."""
    names: tuple[str, ...] = ("task", "model", "adapter", "scoring", "split", "attempts")
    run_params = {name: str(report[name]) for name in names}
    run_params |= {f"protocol.{name}": str(value) for name, value in report["protocol"].items()}
    tags = {"task": task, "kind": "evaluation", "model": report["model"], "split": report["split"]}
    name = f"evaluate-{task}-{report['split']}-{report['protocol']['gen_length']}"
    uri = tracking_uri(params.tracking.uri)
    with one_line(uri, "evaluate"):
        client = connect(uri)
        experiment = params.tracking.experiment
        run_id = find_run(client, Identity(uri, experiment, name, fingerprint, tags, run_params))
        names = ("accuracy", "whole", "n", "pass_at_k")
        metrics = {name: float(report[name]) for name in names} | report["figures"]
        metrics |= dict(zip(("low", "high"), report["interval"], strict=True))
        log_once(client, run_id, metrics, 0)
        tag_measured(client, run_id, fields(report["measured_on"]))
        client.log_artifacts(run_id, str(folder))
        client.set_terminated(run_id)


def _percent(value: float, interval: tuple[float, float]) -> str:
    return f"{100 * value:.2f}  [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"


def _show(report: dict[str, Any], as_json: bool) -> None:
    console = Console(soft_wrap=True)
    if as_json:
        console.out(
            json.dumps({k: v for k, v in report.items() if k != "per_problem"}, indent=1),
            highlight=False,
        )
        return
    p, name = report["protocol"], f"{report['task']} {report['split']}"
    scored = report["adapter"] or f"base {report['model']}"
    rows = {"accuracy": _percent(report["accuracy"], report["interval"])}
    if report["attempts"] > 1:
        rows[f"pass@{report['attempts']}"] = _percent(
            report["pass_at_k"], report["pass_at_k_interval"]
        )
    rows |= {
        label.replace("_", " "): f"{100 * v:.2f}"
        for label, v in report["figures"].items()
        if label != report["scoring"]
    }
    title = f"{scored} on {name}, {report['n']} problems, length {p['gen_length']}"
    table = Table("%", title, box=SIMPLE)
    for row in rows.items():
        table.add_row(*row)
    console.print(table)
    deviations = [] if p["mask_padding"] else ["unmasked padding"]
    deviations += ["text after its end scored"] if p.get("text_after_eos") else []
    deviations += [] if p["autocast"] == "none" else [p["autocast"]]
    deviations += ["adapter merged into the weights"] if p["merged"] else []
    deviations += [f"approximate: {word}" for word in EvalProtocol.model_validate(p).approximations]
    console.print(
        f"scoring {report['scoring']}, {p['steps']} steps, of which answers took"
        f" {report['steps']:.1f} ({1 - report['steps'] / p['steps']:.0%} saved)"
        + "".join(f", {word}" for word in deviations)
        + f"\nmeasured on {in_words(report['measured_on'])}",
        markup=False,
        highlight=False,
    )


def evaluate_updates(
    params: Params, task_name: str, method_name: str, seed: int, updates: list[int]
) -> None:
    """Score checkpoints of a finished or a running run; stage `evaluate` finds them in the cache.

    With `select.race` they run its first round.

    Raises:
        DopsdError: if there is no checkpoint of an update.
    """
    running_folder, finished_folder = (
        identify(params.run(task_name, method_name, seed)).folder,
        run_folder(task_name, method_name, seed) / "train",
    )
    folders = {update: _checkpoint(update, running_folder, finished_folder) for update in updates}
    train = params.run(task_name, method_name, seed).train
    race = params.select.race
    if race and -(-train.updates // train.checkpoint_every) <= race.leaders:
        race = None  # all are scored exactly
    first = race.first if race else None
    settings = params.evaluation(task_name, method_name)
    evaluator = Evaluator(settings, params.select.split, first=first)
    protocol = params.evaluate.protocols[race.protocol if race else params.select.protocol]
    for update, folder in folders.items():
        ((report,),) = evaluator.reports("evaluate", [folder], protocol)
        log(f"{EVALUATED}{update}: {accuracy(report)}")


def _checkpoint(update: int, *folders: Path) -> Path:
    name = f"step-{update:06d}"
    for folder in folders:
        if (folder / name).is_dir():
            return folder / name
    places = " or ".join(map(str, folders))
    raise Code.STAGE_MISSING.error(
        f"--update {update}: no {name} in {places}; run `dopsd train` first"
    )
