"""The results of finished runs in a terminal: `dopsd summary`, and the last lines of a run."""

from io import StringIO
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dopsd.algorithms.registry import label
from dopsd.analysis.results import between_sides
from dopsd.config.params import Params
from dopsd.core.errors import Code
from dopsd.core.files import read_json
from dopsd.core.paths import LOG, MLFLOW_PAGES, report_folder
from dopsd.core.statistics import gap, percent, within
from dopsd.core.tables import read_log
from dopsd.pipeline.dvc.previous import changed_settings, is_kept, previous_folder
from dopsd.pipeline.results.ablate import variant_of_run
from dopsd.pipeline.results.run_report import refresh
from dopsd.tasks.registry import RULES, is_graded, score_name
from dopsd.tracking.client import shown, start_command, tracking_uri
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import RunSettings


def summary(params: Params) -> str:
    """Return a table of test accuracies, then the facts of each finished run, one a line."""
    rows, facts = [], []
    tested_runs = [run for run in params.runs if run.key.is_tested]
    pages = refresh(params, [run.key for run in tested_runs], "summary")
    for run in tested_runs:
        tested = read_json(run.key.folder / "test" / "paired.json", "dopsd test")
        made = read_json(run.key.folder / "train.json", "dopsd train")
        comparison = tested["protocols"][tested["selected"]["protocol"]]
        name = label(str(run.key), variant_of_run(run, made["fingerprint"]))
        rows.append((name, comparison))
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
        if is_kept(run.key):
            facts.append("  replaced: other results; `dopsd summary --previous` shows them")
    if not facts:
        raise Code.NO_RESULTS.error(
            "summary: no finished run of params.yaml's matrix; run `dopsd repro` first"
        )
    # a link that breaks over two lines cannot be clicked: only the table has a width
    return "\n".join([_table(rows), *facts, _links(params, {run.key.task for run in tested_runs})])


def previous(params: Params) -> str:
    """Return a table of results that other settings have replaced, and how to go back."""
    rows, facts = [], []
    for key in [run.key for run in params.runs if is_kept(run.key)]:
        tested = read_json(previous_folder(key) / "paired.json", "dopsd train")
        rows.append((str(key), tested["protocols"][tested["selected"]["protocol"]]))
        facts += [f"{key}:", *(f"  {line}" for line in changed_settings(key))]
        facts.append(f"  to bring it back: dopsd restore {key}")
    return "\n".join([_table(rows), *facts]) if rows else "no run has replaced other results"


def _table(rows: list[tuple[str, dict[str, Any]]]) -> str:
    """Return names with the accuracies of base and trained model, as text of 80 columns or more."""
    table = Table(box=SIMPLE, pad_edge=False, collapse_padding=True)
    for column in ("run", "base", "trained", "difference"):
        table.add_column(column, no_wrap=True)
    for name, comparison in rows:
        sides = [comparison[side] for side in ("base", "best")]
        paired = comparison["paired"]
        cells = [within(side["accuracy"], side["interval"]) for side in sides]
        table.add_row(name, *cells, gap(paired["difference"], paired["interval"]))
    console = Console(file=StringIO(), width=200)
    console.print("Accuracy on test in %, with its 95% interval.")
    console.print("The difference is trained minus base, paired by problem.")
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


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
    identity, n = identify(run), next(iter(tested["protocols"].values()))["base"]["n"]
    number = made["collects"] * run.train.prompts_per_collect  # a prompt may come several times
    seconds = "not known, the run is from DVC's cache"
    if (log_file := identity.folder / LOG).is_file():
        seconds = f"{sum(row['time/update_seconds'] for row in read_log(log_file)):.0f} s"
    facts = {
        "test problems": n,
        "checkpoint": f"update {tested['selected']['update']} of {made['updates']}",
        "started from": made.get("started_from"),
        "prompts": number if identity.has_made(made) else None,
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
    links = read_json(MLFLOW_PAGES, "dopsd publish")["comparison"] if MLFLOW_PAGES.is_file() else {}
    links = {task: link for task, link in links.items() if task in tasks}
    if not links:
        return "MLflow: `dopsd publish` sends what is missing there and prints links"
    uri = tracking_uri(params.tracking.uri)
    heading = f"MLflow, while `{start_command('MLflow')}` runs:"
    heading = heading if uri.startswith("sqlite") else f"MLflow: {shown(uri)}"
    return "\n".join([heading, *(f"  {task} side by side: {link}" for task, link in links.items())])
