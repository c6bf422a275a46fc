"""Many methods on several tasks, with equal budgets, tuning and seeds, and one test at the end.

    python -m benchmarks.tournament [tune] [run] [switch] [test] [table] --plan FILE [--jobs 2]

Run this in the repository. README.md beside this file describes parts and plans. Each run is made
in a process with one thread, `--jobs` of them side by side. A stop loses nothing: the same command
continues.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from benchmarks.tournament import results
from benchmarks.tournament.make import IMPOSSIBLE
from benchmarks.tournament.plan import Plan, read_plan
from benchmarks.tournament.runs import FAILED, LOGS, RUN, SWITCH, TEST, TUNE, Run, leaders, runs_of
from dopsd.analysis.tables import print_markdown
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.errors import TEMPORARY, Code, DopsdError, unknown
from dopsd.core.files import write_json
from dopsd.core.progress import Progress, log
from dopsd.pipeline.stages.prepare import run as prepare
from dopsd.tasks.common.storage import DATA, data_files

PARTS = (TUNE, RUN, SWITCH, TEST)
TABLE = "table"
EVERY = 0.2  # seconds between two looks at the processes


def tournament(path: Path, parts: Sequence[str], tasks: Sequence[str], jobs: int) -> None:
    """Make parts of a tournament, then write its results and print the standings.

    Args:
        path: the plan.
        parts: those of PARTS to make, in their order.
        tasks: limits the parts to runs on these tasks; empty: all.
        jobs: runs side by side.

    Raises:
        DopsdError: if the plan is wrong, a run breaks, or the test would be early.
    """
    plan, params = read_plan(path), load_params()
    check(plan, params, tasks)
    for task in plan.tasks:
        if not (DATA / task / "train.jsonl").is_file():
            prepare(params, task)
    tasks = tasks or plan.tasks
    check_unused(plan, tasks)
    for part in parts:
        if part == TEST:
            runs = to_test(plan, tasks)
            make(TEST, [run for run in runs if not run.tested], path, jobs)
            continue
        for _ in range(2 if part == RUN else 1):  # after the first runs the leaders are known
            runs = [run for run in runs_of(plan, part) if run.task in tasks]
            make(part, [r for r in runs if not r.result and not r.failure], path, jobs)
    print_markdown(results.markdown(results.write(plan, path, params)))
    log(f"tournament: wrote {results.folder_of(plan) / 'results.json'}")


def check(plan: Plan, params: Params, tasks: Sequence[str]) -> None:
    """Check names of tasks, and the settings of every run, before the first starts."""
    known = [(f"tasks: {task}", task, params.tasks) for task in plan.tasks]
    for text, name, names in [*known, *((f"--task {task}", task, plan.tasks) for task in tasks)]:
        if name not in names:
            raise DopsdError(unknown(text, names), code=Code.UNKNOWN_NAME)
    rate = plan.tuning.rates[0]
    switches = [
        Run(plan, SWITCH, task, switch.entry, plan.seeds[0], rate, name)
        for name, switch in plan.switches.items()
        for task in plan.switch_tasks
    ]
    entries = [
        Run(plan, RUN, task, entry, plan.seeds[0], rate)
        for task in plan.tasks
        for entry in plan.entries
    ]
    for run in [*entries, *switches]:
        run.params(1)
    if params.select.split != "validation":
        raise DopsdError(
            f"select.split: {params.select.split}: a tournament chooses rates, checkpoints and"
            " leaders on validation; set select.split=validation",
            code=Code.CONTRADICTION,
        )


def check_unused(plan: Plan, tasks: Sequence[str]) -> None:
    """Check that each task has test problems that earlier tests have not used."""
    for task in tasks:
        problems = data_files(task, "test")[0]
        if len(problems.read_bytes().splitlines()) <= plan.used:
            raise DopsdError(
                f"used: earlier tests have used the first {plan.used} problems of {problems}, and"
                " it has no more; raise their number in section data (test; generate_test of"
                f" countdown) and run `dopsd prepare --task {task}`",
                code=Code.CONTRADICTION,
            )


def to_test(plan: Plan, tasks: Sequence[str]) -> list[Run]:
    """Return the finished runs on these tasks, and note that they are tested now.

    Raises:
        DopsdError: if runs are missing.
    """
    runs = [run for run in runs_of(plan, RUN) if run.task in tasks]
    missing = sum(run.result is None and not run.failure for run in runs)
    missing_tasks = [task for task in tasks if not leaders(plan, task)]
    if missing or missing_tasks or not runs:
        what = f"{missing} runs" if missing else f"the runs of {', '.join(missing_tasks)}"
        raise DopsdError(
            f"test: {what} are missing, and the test comes once, at the end; first make the parts"
            " tune and run",
            code=Code.STAGE_MISSING,
        )
    finished = [run for run in runs if run.result]
    for task in tasks:
        if untested := sum(run.tested is None for run in finished if run.task == task):
            results.note_look(plan, task, untested)
    return finished


def make(part: str, missing: Sequence[Run], plan: Path, jobs: int) -> None:
    """Make or test runs, each in a process with one thread, some side by side.

    Args:
        part: the part; TEST: test the runs.
        missing: the runs.
        plan: the plan's file.
        jobs: processes side by side.

    Raises:
        DopsdError: if a run breaks; finished runs stay, others continue later.
    """
    waiting = list(missing)
    running: dict[subprocess.Popen[bytes], Run] = {}
    LOGS.mkdir(parents=True, exist_ok=True)
    with Progress(f"tournament {part}", len(waiting), "run") as progress:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    run = waiting.pop(0)
                    running[start(part, run, plan)] = run
                time.sleep(EVERY)
                for process in [p for p in running if p.poll() is not None]:
                    run = running.pop(process)
                    if process.returncode == TEMPORARY:  # another process has it, for example
                        waiting.append(run)
                    else:
                        end(part, run, process.returncode, progress)
        finally:  # they save and end, so that the same command continues
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def start(part: str, run: Run, plan: Path) -> subprocess.Popen[bytes]:
    """Start the process that makes or tests a run; it ends when this process does."""
    names = ("part", "task", "entry", "seed", "rate", "switch")
    fields = json.dumps({name: getattr(run, name) for name in names})
    step = TEST if part == TEST else "make"
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with run.log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tournament.make", step, str(plan), fields],
            stdout=output,
            stderr=output,
            env={**os.environ, **threads},
            start_new_session=True,  # a Ctrl-C reaches this process alone, which tells them
        )


def end(part: str, run: Run, code: int, progress: Progress) -> None:
    """Report a run whose process has ended.

    Raises:
        DopsdError: if it broke.
    """
    lines = run.log.read_text(errors="replace", encoding="utf-8").splitlines() or ["no output"]
    if code == 0:
        note = "" if part == TEST else f": {run.best or 0.0:.1%} at best on validation"
    elif code == IMPOSSIBLE:
        write_json(run.key.folder / FAILED, {"identity": run.identity, "reason": lines[-1]})
        note = f": takes no part: {lines[-1]}"
    else:
        raise DopsdError(
            f"{run}: exit code {code}: {lines[-1]}; see {run.log}; the same command continues",
            1,
            code=Code.STAGE_FAILED,
        )
    progress.step(1, f"{run}{note}")


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, and make what it asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tournament", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"{', '.join(PARTS)}, or {TABLE} alone (default: all of them, in this order)",
    )
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE")
    parser.add_argument("--task", dest="tasks", action="append", default=[], metavar="TASK")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (default: 1)")
    a = parser.parse_args(words)
    if wrong := set(a.parts) - {*PARTS, TABLE}:
        parser.error(unknown(wrong.pop(), (*PARTS, TABLE)))
    try:
        parts = [part for part in PARTS if part in (a.parts or PARTS)]
        tournament(a.plan, parts, a.tasks, a.jobs)
    except DopsdError as error:
        log(f"tournament: {error.coded}")
        sys.exit(error.exit_code)
    except ValidationError as error:
        sys.exit(f"tournament: {a.plan}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
