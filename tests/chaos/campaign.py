"""Run a campaign of fault trials: `make chaos`, or `PYTHONPATH=tests python -m chaos --help`.

A trial runs a copy of this checkout with small settings, disturbs the run, repairs it as a user
would, and compares every byte with an undisturbed run. Each appends a line to results.jsonl; trials
of the same seed and commit that are in the file do not run again. The exit code is 1 if a
trial ended otherwise than RECOVERED, REFUSED, CANNOT_SAVE or SKIPPED; its folder stays.
"""

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
from typing import Any

from chaos.attempt import Run
from chaos.disk import Disk, library
from chaos.folders import ROOT, commit, copy, digests, locked, make_template, state_of
from chaos.outcomes import RIGHT, record_of
from chaos.plan import DISK, KINDS, Plan, draw
from chaos.trial import Trial

PLACE = ROOT / "work" / "chaos" / "now"  # of the workspaces
RESULTS = ROOT / "work" / "chaos" / "results.jsonl"


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
    reference = {"files": digests(folder), "lock": locked(folder), "writes": counts}
    (place / "reference.json").write_text(json.dumps(reference))
    made.write_text(at)


def log(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def results(seed: int, at: str) -> dict[int, dict[str, Any]]:
    """The newest line of each trial of a seed and commit, by number."""
    lines = RESULTS.read_text().splitlines() if RESULTS.is_file() else []
    records = map(json.loads, lines)
    return {r["trial"]: r for r in records if (r["seed"], r["commit"]) == (seed, at)}


def run_one(plan: Plan, at: str) -> None:
    """One trial to its line in the results; its folder stays where something was lost."""
    began = time.monotonic()
    trial = Trial(plan, PLACE)
    try:
        facts = trial.run()
    except Exception:
        facts = trial.facts
        facts.lost.append(f"the harness failed: {traceback.format_exc()[-600:]}")
    record = record_of(plan, facts, time.monotonic() - began, at)
    with RESULTS.open("a") as lines:
        lines.write(json.dumps(record) + "\n")
    what = f"{plan.kind} ({plan.command}, {plan.target})"
    log(f"trial {plan.number}: {what} at {record['phase']}: {record['outcome']}")
    if record["outcome"] in RIGHT:
        trial.remove()
    else:
        log(f"  !!! {json.dumps(record['detail'])[:1500]}")
        log(f"  kept in {trial.folder}; repeat with --seed {plan.seed} --only {plan.number}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tests python -m chaos", description=__doc__)
    parser.add_argument("--trials", type=int, default=len(KINDS), help="number of trials")
    parser.add_argument("--seed", type=int, default=0, help="seed of all trials (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="trials at once (default: 2)")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="run these trials again")
    asked, at = parser.parse_args(), commit()
    log(f"seed {asked.seed}, commit {at}, results in {RESULTS}")
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one campaign at a time
        prepare(PLACE, at)
        done = results(asked.seed, at)
        numbers = asked.only or [n for n in range(asked.trials) if n not in done]
        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(lambda n: run_one(draw(asked.seed, n), at), numbers))
    found = results(asked.seed, at)
    counts = Counter((record["kind"], record["outcome"]) for record in found.values())
    for (kind, outcome), count in sorted(counts.items()):
        log(f"{kind}: {outcome} {count}")
    bad = [number for number, record in sorted(found.items()) if record["outcome"] not in RIGHT]
    log(f"{len(found)} trials of seed {asked.seed} at {at}; failed: {bad or 'none'}")
    return 1 if bad else 0
