"""Run a campaign of fault trials: `make chaos`, or `PYTHONPATH=tests python -m chaos --help`.

A trial runs a copy of this checkout with small settings, disturbs the run, repairs it as a user
would, and compares every byte with an undisturbed run. Each trial appends a JSON line to `--out`;
trials of the same seed and commit that are in the file do not run again. The exit code is 1 if a
trial ended otherwise than RECOVERED, REFUSED, CANNOT_SAVE or SKIPPED.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from chaos.attempt import Run
from chaos.disk import Disk, library
from chaos.folders import ROOT, commit, copy, digests, locked, make_template, state_of
from chaos.outcomes import RIGHT, record_of
from chaos.plan import DISK, KINDS, Plan, draw
from chaos.trial import Trial

PLACE = ROOT / "work" / "chaos"


def prepare(place: Path, at: str) -> None:
    """The template and what an undisturbed run leaves, made once for this commit."""
    made = place / "commit"
    if made.is_file() and made.read_text() == at:
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    log(f"creating the template workspace of commit {at}")
    template = make_template(place)
    folder = copy(template, place / "reference")
    disk = Disk(folder, state_of(folder), preloaded) if (preloaded := library(place)) else None
    ended = Run(folder, "repro", 0, disk.env if disk else {}).wait()
    if ended.status != 0 or ended.left:
        raise SystemExit(f"chaos: the undisturbed run failed: {ended.said[-3000:]} {ended.left}")
    counts = disk.counts if disk else [0] * len(DISK)
    (place / "reference.json").write_text(
        json.dumps({"files": digests(folder), "lock": locked(folder), "writes": counts})
    )
    made.write_text(at)


def hold(place: Path) -> IO[str]:
    """The folder of workspaces for this campaign alone."""
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = place.with_suffix(".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(
            f"chaos: another campaign runs in {place}; wait for its end, or name another folder"
            " with --place"
        ) from None
    return lock


def log(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def read_results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []


def append(out: Path, record: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as lines:
        fcntl.flock(lines, fcntl.LOCK_EX)
        lines.write(json.dumps(record) + "\n")


def run_one(plan: Plan, place: Path, at: str, out: Path, is_kept: bool) -> dict[str, Any]:
    """One trial to its line in the results; its folder stays where something was lost."""
    began = time.monotonic()
    trial = Trial(plan, place)
    try:
        facts = trial.run()
    except Exception:
        facts = trial.facts
        facts.lost.append(f"the harness failed: {traceback.format_exc()[-600:]}")
    record = record_of(plan, facts, time.monotonic() - began, at)
    append(out, record)
    is_right = record["outcome"] in RIGHT
    if is_right and not is_kept:
        trial.remove()
    log(
        f"trial {plan.number}: {plan.kind} ({plan.command}, {plan.target}) at {record['phase']}:"
        f" {record['outcome']}"
    )
    if not is_right:
        log(f"  !!! {json.dumps(record['detail'])[:1500]}")
        log(f"  kept in {trial.folder}; repeat with --seed {plan.seed} --only {plan.number}")
    return record


def table(records: list[dict[str, Any]]) -> str:
    """Outcomes by kind and by phase."""
    outcomes = sorted(
        {record["outcome"] for record in records}, key=lambda name: (name not in RIGHT, name)
    )
    lines = []
    for column in ("kind", "phase"):
        lines += [
            f"| {column} | trials | {' | '.join(outcomes)} |",
            "|---" * (2 + len(outcomes)) + "|",
        ]
        for name in sorted({record[column] for record in records}):
            found = Counter(record["outcome"] for record in records if record[column] == name)
            lines.append(
                f"| {name} | {sum(found.values())} |"
                f" {' | '.join(str(found[one]) for one in outcomes)} |"
            )
        lines.append("")
    return "\n".join(lines)


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tests python -m chaos", description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=len(KINDS), help="number of trials (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all trials (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="trials at once (default: 2)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=90.0,
        help="start no trial after so many minutes; the same command continues (default: 90)",
    )
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="N", help="run these trials, also if run before"
    )
    parser.add_argument("--kinds", nargs="+", help="run only trials of these kinds (default: all)")
    parser.add_argument(
        "--out",
        type=Path,
        default=PLACE / "results.jsonl",
        help="file of results (default: work/chaos/results.jsonl)",
    )
    parser.add_argument(
        "--place",
        type=Path,
        default=PLACE / "now",
        help="folder of the workspaces (default: work/chaos/now)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders of all trials")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    asked, at = parse(words), commit()
    began = time.monotonic()
    place, out = asked.place.resolve(), asked.out.resolve()
    log(f"seed {asked.seed}, commit {at}, results in {out}")
    held = hold(place)
    prepare(place, at)
    done = {
        record["trial"]
        for record in read_results(out)
        if (record["seed"], record["commit"]) == (asked.seed, at)
    }
    plans = [
        draw(asked.seed, n)
        for n in asked.only or range(asked.trials)
        if asked.only or n not in done
    ]
    plans = [plan for plan in plans if not asked.kinds or plan.kind in asked.kinds]

    def one(plan: Plan) -> bool:
        if time.monotonic() - began > asked.minutes * 60:
            return False
        run_one(plan, place, at, out, asked.keep)
        return True

    try:
        with ThreadPoolExecutor(asked.jobs) as pool:
            left = [*pool.map(one, plans)].count(False)
    finally:
        held.close()
    records = {
        r["trial"]: r for r in read_results(out) if (r["seed"], r["commit"]) == (asked.seed, at)
    }
    log(f"{len(records)} trials of seed {asked.seed} at {at}\n\n{table([*records.values()])}")
    if left:
        log(f"{left} trials left; the same command continues")
    bad = [
        str(number) for number, record in sorted(records.items()) if record["outcome"] not in RIGHT
    ]
    if bad:
        log(
            f"failed: {', '.join(bad)}; repeat with PYTHONPATH=tests python -m chaos --seed"
            f" {asked.seed} --only N"
        )
    return 1 if bad else 0
