"""Terminal output of `dopsd summary` and `dopsd sample`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dopsd.algorithms.registry import label
from dopsd.analysis.results import between_sides
from dopsd.config.params import Params
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import read_json
from dopsd.core.paths import LOG, PUBLISHED, report_folder
from dopsd.core.progress import table_console
from dopsd.core.statistics import gap, percent, within
from dopsd.core.tables import read_log
from dopsd.core.types import NEVER
from dopsd.pipeline.results.ablate import variant_of_run
from dopsd.pipeline.results.run_report import refresh
from dopsd.tasks.registry import RULES, is_graded, score_name
from dopsd.tracking.client import shown, start_command, tracking_uri
from dopsd.training.run_identity import scratch_folder
from dopsd.training.run_settings import RunSettings


def summary(params: Params) -> None:
    """Print a table of test accuracies, then the facts of each finished run, one a line.

    Raises:
        DopsdError: if no run of params.yaml's matrix is finished.
    """
    console = table_console()
    table = Table(box=SIMPLE, pad_edge=False, collapse_padding=True)  # for 80 columns
    for column in ("run", "base", "trained", "difference"):
        table.add_column(column, no_wrap=column != "run", overflow="fold")
    facts = []
    tested_runs = [run for run in params.runs if run.key.is_tested]
    pages = refresh(params, [run.key for run in tested_runs], "summary")
    for run in tested_runs:
        tested = read_json(run.key.folder / "test" / "paired.json", "dopsd test")
        made = read_json(run.key.folder / "train.json", "dopsd train")
        comparison = tested["protocols"][tested["selected"]["protocol"]]
        sides = [
            within(comparison[side]["accuracy"], comparison[side]["interval"])
            for side in ("base", "best")
        ]
        paired = comparison["paired"]
        name = label(str(run.key), variant_of_run(run, made["fingerprint"]))
        table.add_row(name, *sides, gap(paired["difference"], paired["interval"]))
        facts += [f"{run.key}:", *(f"  {text}" for text in _scores(run, comparison))]
        facts += [f"  {text}" for text in _costs(run, tested, made)]
        facts += [f"  warning: {text}" for text in between_sides(comparison)]
        for task, one in tested.get("watched", {}).items():
            best, paired = one["best"], one["paired"]
            change = gap(paired["difference"], paired["interval"])
            scored = within(best["accuracy"], best["interval"])
            facts.append(f"  not trained: {task}: {scored}, difference {change}")
        if str(run.key) in pages:
            facts.append(f"  report: {pages[str(run.key)]}")
    if not facts:
        raise DopsdError(
            "summary: no finished run of params.yaml's matrix; run `dopsd repro` first",
            code=Code.NO_RESULTS,
        )
    console.print("Accuracy on test in %, with its 95% interval.", highlight=False)
    console.print("The difference is trained minus base, paired by problem.")
    console.print(table)
    # soft_wrap: a link that breaks over two lines cannot be clicked
    for line in (*facts, _links(params, {run.key.task for run in tested_runs})):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _scores(run: RunSettings, comparison: dict[str, Any]) -> list[str]:
    """Return what accuracy is in a graded task, and the scores that the task adds to it."""
    base, best = (comparison[side].get("figures", {}) for side in ("base", "best"))
    lines = ["accuracy: mean share of an answer that is right"] * is_graded(run.key.task, run.data)
    return lines + [
        f"{score_name(run.key.task, name)}: {percent(score)}% before, {percent(best[name])}% after"
        for name, score in base.items()
        if name not in RULES
    ]


def _costs(run: RunSettings, tested: dict[str, Any], made: dict[str, Any]) -> list[str]:
    """Return checkpoint, costs and paths of a run, from test/paired.json and train.json."""
    scratch, n = scratch_folder(run), next(iter(tested["protocols"].values()))["base"]["n"]
    number = made["collects"] * run.train.prompts_per_collect  # a prompt may come several times
    seconds = "not known, the run is from DVC's cache"
    if (log_file := scratch / LOG).is_file():
        seconds = f"{sum(row['time/update_seconds'] for row in read_log(log_file)):.0f} s"
    facts = {
        "test problems": n,
        "checkpoint": f"update {tested['selected']['update']} of {made['updates']}",
        "started from": made.get("started_from"),
        "prompts": number if made["fingerprint"] == scratch.name else None,
        "rollouts": made["rollouts"],
        "kept for training": made["trajectories"],
        "sampled tokens": made["sampled_tokens"],
        "training time": seconds,
        "adapter" if run.train.adapter else "all weights": run.key.folder / "best",
        "figures": report_folder(*run.key.parts),
    }
    return [f"{name}: {fact}" for name, fact in facts.items() if fact is not None]


def _links(params: Params, tasks: set[str]) -> str:
    """Return where MLflow is, and the links of these tasks to their runs side by side."""
    uri = tracking_uri(params.tracking.uri)
    heading = f"MLflow, while `{start_command('MLflow')}` runs:"
    heading = heading if uri.startswith("sqlite") else f"MLflow: {shown(uri)}"
    links = read_json(PUBLISHED, "dopsd publish")["comparison"] if PUBLISHED.is_file() else {}
    links = {task: link for task, link in links.items() if task in tasks}
    if not links:
        return f"{heading} run `dopsd publish` to send what is missing and print links"
    return "\n".join([heading, *(f"  {task} side by side: {link}" for task, link in links.items())])


def sample(
    params: Params,
    task_name: str,
    puzzle: str | None,
    adapter: Path | None,
    temperature: float,
    seed: int,
) -> None:
    """Denoise one answer and print the state after every step: new tokens green, masks as dots.

    Args:
        params: All settings.
        task_name: Task that asks the problem and verifies the answer.
        puzzle: Problem as text; None takes the first test problem.
        adapter: Checkpoint folder; None takes the base model.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of the sampling noise.
    """
    from dopsd.core.fingerprint import key_from
    from dopsd.evaluation.evaluator import Evaluator
    from dopsd.models.adapter_files import shape_of
    from dopsd.rollout.engine import sampler_of
    from dopsd.rollout.prompts import decoding
    from dopsd.rollout.sampler import GenerationRequest

    settings = params.evaluation(task_name)
    if adapter:
        settings = replace(settings, lora=shape_of(adapter))
    evaluator = Evaluator(settings, "test")
    problem = evaluator.task.ask(puzzle) if puzzle else evaluator.problems[0]
    policy = evaluator.with_adapter(adapter)
    prompt = evaluator.prompt_of(problem)
    request = GenerationRequest(problem.id, 0, prompt, key_from("sample", seed, problem.id))
    how = decoding(params.sampling, temperature)
    (rollout,) = sampler_of(how)(policy, [request], how)
    console = Console()
    console.print(f"problem {problem.prompt}", markup=False)
    tokens = policy.tokenizer.convert_ids_to_tokens(rollout.completion_ids.tolist())
    made = {*rollout.revealed_at.tolist()} - {NEVER}
    for step in range(how.steps) if how.threshold is None else sorted(made):
        console.print(
            Text(f"{step:4} ").append_text(_state(tokens, rollout.revealed_at.tolist(), step)),
            soft_wrap=True,
        )
    text = policy.text.decode(rollout.completion_ids, params.sampling.text_after_eos)
    score = evaluator.task.verify(problem, text)
    console.print(
        f"answer {score.answer}   score {score.score:.2f}   solution {problem.answer}",
        markup=False,
    )


def _state(tokens: Sequence[str], revealed: list[int], step: int) -> Text:
    line = Text()
    for token, revealed_step in zip(tokens, revealed, strict=True):
        displayed = "_" if token.startswith("<|") else token
        line.append(
            displayed if revealed_step <= step else "·",
            style="bold green" if revealed_step == step else "",
        )
    return line
