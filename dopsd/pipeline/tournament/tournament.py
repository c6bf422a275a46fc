"""`dopsd tournament`: tune, run, test once, and print the standings.

The order is fixed: learning rates by short runs on validation, then the runs that count, further
seeds of the leaders, switches, and the test at the end, once. A stop loses nothing; the same
command continues.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dopsd.analysis.tables import head, line, print_markdown
from dopsd.config.loading import checked, read_yaml
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError, unknown
from dopsd.core.percent import gap, percent
from dopsd.core.progress import log
from dopsd.pipeline.stages.prepare import run as prepare
from dopsd.pipeline.tournament import results
from dopsd.pipeline.tournament.cells import PARAMS, RUN, SWITCH, TEST, TUNE, Cell
from dopsd.pipeline.tournament.choice import Chosen, cells_of, leaders, reason_of
from dopsd.pipeline.tournament.plan import Plan, merged, read_plan
from dopsd.pipeline.tournament.schedule import Schedule
from dopsd.tasks.common.storage import DATA

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from dopsd.config.params import Params

PARTS = (TUNE, RUN, SWITCH, TEST)
TABLE = "table"


def tournament(
    params: Params, path: Path, parts: list[str], chosen: Chosen, jobs: int, minutes: float | None
) -> None:
    """Make parts of a tournament, then write its results and print the standings.

    Args:
        params: settings of params.yaml.
        path: the plan.
        parts: those of PARTS to make, in their order; TABLE alone: none.
        chosen: limits the runs of TUNE, RUN and SWITCH; TEST is limited by its tasks alone.
        jobs: runs side by side.
        minutes: time after which running ones save and the command ends; None: no limit.

    Raises:
        DopsdError: if the plan is wrong, a run breaks, time is up, or the test would be early.
    """
    plan = read_plan(path)
    for task in plan.tasks:
        if task not in params.tasks:
            text = unknown(f"{path}: tasks: {task}", params.tasks)
            raise DopsdError(text, code=Code.UNKNOWN_NAME)
    _check(params, plan, chosen)
    deadline = time.monotonic() + (minutes * 60 if minutes else float("inf"))
    schedule = Schedule(path, jobs, deadline)
    _prepare(plan)
    for part in parts:
        if part == TEST:
            _test(plan, chosen.tasks or list(plan.tasks), schedule)
            continue
        schedule.make(part, [cell for cell in cells_of(plan, part) if chosen.has(cell)])
        if part == RUN:  # leaders are known now
            schedule.make(part, [cell for cell in cells_of(plan, part) if chosen.has(cell)])
    if parts and not any(cell.result for cell in cells_of(plan, RUN)):
        log("tournament: no run that counts has finished yet")
        return
    found = results.write(plan, path, params)
    print_markdown(markdown(found))
    log(f"tournament: wrote {results.folder_of(plan) / 'results.json'}")


def _check(params: Params, plan: Plan, chosen: Chosen) -> None:
    """Check names of the command line, and the settings of every run, before the first starts."""
    seeds = [*plan.seeds, *plan.more_seeds, plan.tuning.seed]
    words = [(f"--task {name}", name in plan.tasks, list(plan.tasks)) for name in chosen.tasks]
    words += [(f"--entry {e}", e in plan.entries, list(plan.entries)) for e in chosen.entries]
    words += [(f"--seed {seed}", seed in seeds, list(map(str, seeds))) for seed in chosen.seeds]
    for word, is_known, known in words:
        if not is_known:
            raise DopsdError(unknown(word, known), code=Code.UNKNOWN_NAME)
    for cell in cells_of(plan, TUNE):
        cell.params(1)
    for name, switch in plan.switches.items():
        for task in plan.switch_tasks:
            rate = plan.tuning.rates[0]
            Cell(plan, SWITCH, task, switch.entry, plan.seeds[0], rate, name).params(1)
    if params.select.split != "validation":
        raise DopsdError(
            f"select.split: {params.select.split}: a tournament chooses rates, checkpoints and"
            " leaders on validation; set select.split=validation",
            code=Code.CONTRADICTION,
        )


def _prepare(plan: Plan) -> None:
    """Write the problems of tasks that have none."""
    for task, changes in plan.tasks.items():
        if not (DATA / task / "train.jsonl").is_file():
            prepare(checked(merged(read_yaml(PARAMS), changes), PARAMS), task)


def _test(plan: Plan, tasks: Sequence[str], schedule: Schedule) -> None:
    """Test the chosen checkpoints of all runs of these tasks, once all are made.

    Raises:
        DopsdError: if runs are missing.
    """
    runs = [cell for cell in cells_of(plan, RUN) if cell.task in tasks]
    missing = [cell for cell in runs if cell.result is None and not reason_of(cell)]
    missing_tasks = [task for task in tasks if not leaders(plan, task)]
    if missing or missing_tasks or not runs:
        what = f"{len(missing)} runs" if missing else f"the runs of {', '.join(missing_tasks)}"
        raise DopsdError(
            f"tournament test: {what} are missing, and the test comes once, at the end; first run"
            f" `dopsd tournament run --plan {schedule.path}`",
            code=Code.STAGE_MISSING,
        )
    finished = [cell for cell in runs if cell.result]
    for task in tasks:
        if untested := sum(cell.tested is None for cell in finished if cell.task == task):
            results.note_look(plan, task, untested)
    schedule.make(TEST, finished)


def markdown(found: dict[str, Any]) -> str:
    """Return the standings as Markdown tables, one for each budget and task."""
    lines = [f"**{found['answer']}**", ""]
    lines += [f"Warning: {text}\n" for text in found["warnings"]]
    against = {(p["budget"], p["task"], p["second"]): p for p in found["pairs"]}
    shown: tuple[str, str] | None = None
    own = found["rules"]["own"]
    for row in found["standings"]:
        group = (row["budget"], row["task"])
        if group != shown:
            shown = group
            limit = found["rules"][row["budget"]]
            unit = "sampled tokens" if row["budget"] == "tokens" else "CPU seconds, one thread"
            split = "validation" if row["test"] is None else "test"
            title = f"{row['task']}, at most {limit:g} {unit}, accuracy on {split} in %:"
            columns = ["knows", "seeds", "accuracy", "by seed", "minus the base"]
            lines += ["", title, "", *head("entry", *columns, f"{own} minus it")]
        accuracy = row["validation"] if row["test"] is None else row["test"]
        over = row["over_base"]
        pair = against.get((*group, row["entry"]))
        lines.append(
            line(
                found["entries"][row["entry"]]["title"],
                found["entries"][row["entry"]]["knows"][row["task"]],
                row["seeds"],
                percent(accuracy),
                ", ".join(percent(value) for value in row["by_seed"].values()),
                gap(over["difference"], over["interval"]) if over else "",
                gap(pair["difference"], pair["interval"]) + " *" * pair["is_claim"] if pair else "",
            )
        )
    note = (
        "Differences are over the seeds that both entries have. The interval is the wider one of"
        " Student's t over seeds and the bootstrap over seeds and problems. \\*:"
        " a claim, which needs 5 seeds and an interval without 0."
    )
    return "\n".join([*lines, "", note, ""])
