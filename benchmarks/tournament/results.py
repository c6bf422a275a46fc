"""Collect the results of a tournament in one file, with what limits them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.tournament.plan import Plan
from benchmarks.tournament.runs import (
    PARAMS,
    RUN,
    SWITCH,
    Run,
    best_rate,
    finals,
    opponents,
    ranking,
    runs_of,
    tried_rates,
    tuning,
)
from benchmarks.tournament.standings import (
    CLAIM_SEEDS,
    Rows,
    answer,
    areas,
    pairs,
    reached,
    standings,
)
from dopsd.analysis.figures import axes_of, legend_below, percent_axis, save_figure
from dopsd.analysis.tables import head, line
from dopsd.config.params import Params
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import append_lines, read_lines, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.palette import NEUTRAL, PALETTE
from dopsd.core.paths import REPORTS
from dopsd.core.statistics import gap, percent
from dopsd.models.checkpoint_files import base_digest

LOOKS = "tests.jsonl"  # beside the results: when the test split was looked at
MARKERS = "osD^vP*X"


def folder_of(plan: Plan) -> Path:
    """Return the folder of a tournament's results."""
    return REPORTS / plan.name


def note_look(plan: Plan, task: str, tested: int) -> None:
    """Note that chosen checkpoints are scored on a test split, and of how many runs."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    append_lines(folder_of(plan) / LOOKS, [{"at": at, "task": task, "tested": tested}])


def write(plan: Plan, path: Path, params: Params) -> dict[str, Any]:
    """Write all results that are there by now to the tournament's folder, and return them.

    Args:
        plan: the rules.
        path: the plan's file.
        params: settings of this folder.

    Raises:
        DopsdError: if no run has finished.
    """
    made = [run for run in runs_of(plan, RUN) if run.result]
    if not made:
        text = f"{path}: no run that counts has finished; make the parts tune and run first"
        raise DopsdError(text, code=Code.NO_RESULTS)
    resamples, looks = params.evaluate.bootstrap, list(read_lines(folder_of(plan) / LOOKS))
    differences = pairs(made, resamples)
    named = {task: opponents(plan, task, ranking(plan, task, "tokens")) for task in plan.tasks}
    results = {
        "plan": str(path),
        "rules": plan.model_dump(mode="json"),
        "params": sha256(PARAMS),
        "bases": {task: _base(params, made, task) for task in plan.tasks},
        "entries": {entry: _entry(plan, entry) for entry in plan.entries},
        "runs": [_run(run) for run in made],
        "standings": standings(made, resamples),
        "pairs": differences,
        "areas": areas(made, resamples),
        "answer": answer(plan, named, differences),
        "switches": [_switch(run, made) for run in runs_of(plan, SWITCH) if run.result],
        "warnings": warnings_of(plan, made, looks),
        "looks": looks,
    }
    write_json(folder_of(plan) / "results.json", results)
    if results["areas"]:
        draw_curves(results, folder_of(plan) / "curves.png")
    return results


def _base(params: Params, made: list[Run], task: str) -> dict[str, Any]:
    model = params.model_of(task)
    base: dict[str, Any] = {"path": model.path, "digest": base_digest(model)}
    base |= dict.fromkeys(("validation", "validation_n", "test", "test_n"))
    for run in made:
        if run.task == task and run.result:
            first = run.result["curve"][0]
            base |= {"validation": first["accuracy"], "validation_n": run.result["n"]}
            if found := run.tested:
                base |= {"test": found["base"]["accuracy"], "test_n": found["base"]["n"]}
    return base


def _entry(plan: Plan, entry: str) -> dict[str, Any]:
    rates = {}
    for task in plan.tasks:
        tried = {f"{rate:g}": best for rate, best in tried_rates(plan, task, entry).items()}
        rates[task] = {"tried": tried, "chosen": best_rate(plan, task, entry)}
    return {
        "method": plan.method_of(entry),
        "title": plan.title_of(entry),
        "knowledge": plan.entries[entry].knows,
        "knows": {task: plan.knows(entry, task) for task in plan.tasks},
        "settings": {task: plan.settings_of(entry, task) for task in plan.tasks},
        "rates": rates,
    }


def _run(run: Run) -> dict[str, Any]:
    result, tested = run.result or {}, run.tested
    chosen: dict[str, Any] = dict.fromkeys(run.plan.budgets)
    for budget, row in run.chosen.items():
        if row:
            report = tested["budgets"][budget] if tested else {"accuracy": None, "interval": None}
            chosen[budget] = {"update": row["update"], "validation": row["accuracy"]}
            chosen[budget] |= {"test": report["accuracy"], "interval": report["interval"]}
            chosen[budget] |= {name: row[name] for name in ("tokens", "cpu_seconds")}
    return {
        **{name: getattr(run, name) for name in ("task", "entry", "seed", "rate")},
        "folder": str(run.key.folder),
        **{name: result[name] for name in ("fingerprint", "code", "ended", "curve")},
        "chosen": chosen,
        "reached": reached(result["curve"], run.plan.gain),
    }


def _switch(run: Run, made: list[Run]) -> dict[str, Any]:
    named = (run.task, run.entry, run.seed)
    before = next((r.best for r in made if (r.task, r.entry, r.seed) == named), None)
    return {
        **{name: getattr(run, name) for name in ("task", "switch", "entry", "seed")},
        "settings": run.plan.switches[run.switch].settings,
        "validation": run.best,
        "over_default": None if run.best is None or before is None else run.best - before,
    }


def warnings_of(plan: Plan, made: list[Run], looks: Rows) -> list[str]:
    """Return what limits the results beyond their intervals, the worst first.

    Args:
        plan: the rules.
        made: the finished runs.
        looks: when the test split of a `task` was looked at.
    """
    warnings, further = [], []
    if any(run.tested is None for run in made):
        warnings.append("Not tested: all accuracies are of the validation split, which chose them.")
    warnings += [
        f"The test split of {task} was looked at {times} times, so the best may be too high."
        for task, times in Counter(row["task"] for row in looks).items()
        if times > 1
    ]
    for task in plan.tasks:
        for entry in plan.entries:
            runs = [run for run in made if (run.task, run.entry) == (task, entry)]
            warnings += _missing(plan, task, entry, runs)
            further += _limits(plan, task, entry, runs)
    return warnings + further


def _missing(plan: Plan, task: str, entry: str, runs: list[Run]) -> list[str]:
    """Return which runs of an entry on a task are not in the tables, and why."""
    tuned = tuning(plan, task, entry)
    seeds = finals(plan, task, entry, [*plan.seeds, *plan.more_seeds])
    name, warnings = f"{entry} on {task}", []
    if failures := [run.failure for run in [*tuned, *seeds] if run.failure]:
        warnings.append(
            f"{name}: runs that could not be made: {len(failures)}; the first: {failures[0]}"
        )
    elif not runs and all(run.result for run in tuned):
        warnings.append(f"{name}: no checkpoint of the tuning runs is within a budget.")
    for budget in plan.budgets:
        if empty := sum(not run.chosen[budget] for run in runs):
            warnings.append(
                f"{name}: {empty} of {len(runs)} runs have no checkpoint within the budget of"
                f" {budget}."
            )
    return warnings


def _limits(plan: Plan, task: str, entry: str, runs: list[Run]) -> list[str]:
    """Return what limits the finished runs of an entry on a task."""
    results = [result for run in runs if (result := run.result)]
    name, rates, warnings = f"{entry} on {task}", plan.tuning.rates, []
    if len({result["code"] for result in results}) > 1:
        warnings.append(f"{name}: different versions of the code trained its runs.")
    if ends := [r["ended"] for r in results if r["ended"] and not _is_used(plan, r["curve"][-1])]:
        why = f"at {plan.most_updates} updates" if ends[0] == "most_updates" else ends[0]
        warnings.append(
            f"{name}: {len(ends)} of {len(runs)} runs ended before every budget was used: {why}."
        )
    last = [(r["curve"][0]["accuracy"], r["curve"][-1]["accuracy"]) for r in results]
    if fallen := [end for base, end in last if end < base - plan.gain]:
        warnings.append(
            f"{name}: {len(fallen)} of {len(runs)} runs collapsed: the last checkpoint has"
            f" {percent(min(fallen))}% on validation at worst, below the base. The accuracy is that"
            " of a checkpoint before, and no tried rate may suit the method."
        )
    chosen = best_rate(plan, task, entry)
    if runs and len(rates) > 1 and chosen in (min(rates), max(rates)):
        warnings.append(f"{name}: {chosen:g} is at the edge of the rates that were tried.")
    return warnings


def _is_used(plan: Plan, last: dict[str, Any]) -> bool:
    """Return whether a run had used every budget at its last checkpoint."""
    return all(last[cost] >= vars(plan)[budget] for budget, cost in plan.budgets.items())


def markdown(results: dict[str, Any]) -> str:
    """Return the standings as Markdown tables, one for each budget and task."""
    lines = [f"**{results['answer']}**", ""]
    lines += [f"Warning: {text}\n" for text in results["warnings"]]
    against = {(p["budget"], p["task"], p["second"]): p for p in results["pairs"]}
    rules, shown = results["rules"], None
    for row in results["standings"]:
        group = (row["budget"], row["task"])
        split = "validation" if row["test"] is None else "test"
        if group != shown:
            shown = group
            unit = "sampled tokens" if row["budget"] == "tokens" else "CPU seconds, one thread"
            limit = f"at most {rules[row['budget']]:g} {unit}"
            columns = ["knows", "seeds", "accuracy", "by seed", "minus the base"]
            lines += ["", f"{row['task']}, {limit}, accuracy on {split} in %:", ""]
            lines += head("entry", *columns, f"{rules['own']} minus it")
        entry, over, pair = (
            results["entries"][row["entry"]],
            row["over_base"],
            against.get((*group, row["entry"])),
        )
        lines.append(
            line(
                entry["title"],
                entry["knows"][row["task"]],
                row["seeds"],
                percent(row[split]),
                ", ".join(percent(value) for value in row["by_seed"].values()),
                gap(over["difference"], over["interval"]) if over else "",
                gap(pair["difference"], pair["interval"]) + " *" * pair["is_claim"] if pair else "",
            )
        )
    lines += _area_tables(results)
    note = (
        "Differences are over the seeds that both entries have. The interval is the wider one of"
        " Student's t over seeds and the bootstrap over seeds and problems. \\*:"
        f" a claim, which needs {CLAIM_SEEDS} seeds and an interval without 0."
    )
    return "\n".join([*lines, "", note, ""])


def _area_tables(results: dict[str, Any]) -> list[str]:
    """Return a table of areas and of accuracy by steps for each task."""
    lines, shown, own = [], None, results["rules"]["own"]

    def points(row: dict[str, Any], key: str = "points") -> str:
        found = sorted(row[key].items(), key=lambda item: item[1][0])
        return ", ".join(f"{percent(accuracy)} ({steps:.1f})" for _, (steps, accuracy) in found)

    for row in results["areas"]:
        if row["task"] != shown:
            shown = row["task"]
            lines += ["", f"{shown}, area under accuracy by steps on test, in %:", ""]
            columns = ["seeds", "area", "minus the base", f"{own} minus it", "accuracy (steps)"]
            lines += head("entry", *columns)
            lines.append(line("base", "", percent(row["base"]), "", "", points(row, "base_points")))
        over, minus = row["over_base"], row["own_minus"]
        lines.append(
            line(
                results["entries"][row["entry"]]["title"],
                row["seeds"],
                percent(row["area"]),
                gap(over["difference"], over["interval"]) + " *" * over["is_claim"],
                gap(minus["difference"], minus["interval"]) + " *" * minus["is_claim"]
                if minus
                else "",
                points(row),
            )
        )
    return lines


def draw_curves(results: dict[str, Any], path: Path) -> None:
    """Draw accuracy on test against the steps taken, for each task: every entry, and the base.

    Bars are Student's 95% intervals over seeds. Points of a threshold are left out: their steps
    differ between the entries.
    """
    tasks = list(dict.fromkeys(row["task"] for row in results["areas"]))
    figure, axes = axes_of(len(tasks), 1, 3.2 * len(tasks) + 1.0)
    entries = list(results["entries"])
    for axis, task in zip(axes[:, 0], tasks, strict=True):
        rows = [row for row in results["areas"] if row["task"] == task]
        rows.sort(key=lambda row: entries.index(row["entry"]))
        names = [name for name in rows[0]["points"] if "threshold" not in name]
        base = sorted(rows[0]["base_points"][name] for name in names)
        axis.plot(*zip(*base, strict=True), "--", color=NEUTRAL, label="base")
        for row in rows:
            number = entries.index(row["entry"])
            points = sorted((*row["points"][name], row["intervals"][name]) for name in names)
            steps = [point[0] * (1 + 0.012 * (number - len(entries) / 2)) for point in points]
            bars = [[abs(p[1] - p[2][side]) if p[2] else 0.0 for p in points] for side in (0, 1)]
            axis.errorbar(
                steps,
                [point[1] for point in points],
                bars,
                marker=MARKERS[number % len(MARKERS)],
                color=PALETTE[number % len(PALETTE)],
                lw=2.4 if row["entry"] == results["rules"]["own"] else 1.2,
                elinewidth=0.7,
                ms=4,
                label=results["entries"][row["entry"]]["title"],
            )
        axis.set_title(f"{task}: accuracy on test, mean of the seeds", loc="left", fontsize=10)
        axis.set_xscale("log")
        axis.set_xticks([steps for steps, _ in base], [f"{steps:.3g}" for steps, _ in base])
        axis.minorticks_off()
        axis.set_xlabel("denoising steps taken for an answer")
        percent_axis(axis)
    legend_below(figure, axes[:, 0], 2)
    save_figure(figure, path)
