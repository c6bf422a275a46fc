"""Train each policy-gradient objective on Sudoku: at its published settings, and at a tuned rate.

    python benchmarks/objectives.py tune|run|table [--only NAME ...] [--jobs 2]

Run the parts in this order, in a project with `dopsd repro prepare` done.
benchmarks/objectives.md has the rules, fixed before the runs, and objectives.yaml the settings:

* `tune` trains at two learning rates for half of the updates, with a seed of its own, and scores
  validation alone.
* `run` trains at the published rate and at the better of the two, and tests the checkpoint that
  validation chose.
* `table` prints the table, and the command that makes the page of the runs at tuned rates.

Each run has one thread, and `--jobs` of them go side by side. Finished runs are left alone, others
continue.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dopsd.analysis.results import Finished
from dopsd.analysis.tables import head, line, means
from dopsd.config.profiles.layers import completed
from dopsd.core.statistics import gap, percent, within

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
WORK = Path("work/objectives")  # settings and logs
SEED, TUNING_SEED, RESAMPLES = 0, 100, 2000
SHARE = {"tune": 0.5, "run": 1.0}  # of an objective's updates
STAGES = {"tune": ["train", "evaluate"], "run": ["train", "evaluate", "select", "test"]}
CHECKPOINTS = {"tune": 2, "run": 4}
COSTS = ["updates", "rollouts", "sampled_tokens", "seconds"]
RESULT = {"tune": "evaluate.json", "run": "test/paired.json"}


@dataclass(frozen=True)
class Cell:
    """One run: an objective at a learning rate, or with no variant a method as in params.yaml."""

    part: str  # tune or run
    name: str  # of the objective, or of the method
    variant: str = ""  # published, tuned, or a rate
    rate: float | None = None

    @property
    def finished(self) -> Finished:
        """Where the results are."""
        method = TABLE["objectives"][self.name]["method"] + "-" if self.variant else ""
        suffix = f"_{self.variant}" if self.variant else ""
        return Finished("sudoku", f"{method}{self.name}{suffix}", self.seed)

    @property
    def seed(self) -> int:
        """Tuning has a seed of its own."""
        return TUNING_SEED if self.part == "tune" else SEED

    def settings(self) -> Path:
        """Write params.yaml with this run's settings to a file, and return its path."""
        params = completed(yaml.safe_load(Path("params.yaml").read_text()))
        objective = TABLE["objectives"].get(self.name) or {
            "method": self.name,
            "settings": {},
            "updates": TABLE["as_shipped"][self.name],
        }
        method, updates = objective["method"], round(objective["updates"] * SHARE[self.part])
        overrides = params["method"][method]["train"] | {
            "updates": updates,
            "checkpoint_every": -(-updates // CHECKPOINTS[self.part]),
        }
        if self.rate:
            overrides["learning_rate"] = self.rate
        params["method"][method] |= objective["settings"] | {"train": overrides}
        params["train"] |= objective.get("train", {})
        variants = {"default": {}, f"{self.name}_{self.variant}": {}}
        params["ablate"] |= {"method": method, "variants": variants, "run": [], "tables": {}}
        path = WORK / f"{self.name}_{self.variant}.yaml"
        path.write_text(yaml.safe_dump(params, sort_keys=False))
        return path

    def make(self) -> None:
        """Run the stages of this run, unless it is finished; they write to its log."""
        run = self.finished
        if (run.folder / RESULT[self.part]).is_file():
            return
        words = ["--params", str(self.settings()), *run.words]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (WORK / f"{run.method}-{run.seed}.log").open("a") as log:
            for stage in STAGES[self.part]:
                subprocess.run(
                    [sys.executable, "-m", "dopsd", stage, *words],
                    check=True,
                    stdout=log,
                    stderr=log,
                    env=env,
                )
        sys.stdout.write(f"{run}: {self.best_on_validation():.1%} at best on validation\n")
        sys.stdout.flush()

    def best_on_validation(self) -> float:
        """Return the best accuracy of the checkpoints on validation."""
        with (self.finished.folder / "curve.csv").open() as file:
            rows = list(csv.DictReader(file))
        return max(float(row["accuracy"]) for row in rows if row["update"] != "0")


def tuning(name: str) -> list[Cell]:
    """Return the runs that try a learning rate for an objective."""
    return [Cell("tune", name, f"rate_{i}", rate) for i, rate in enumerate(TABLE["rates"], start=1)]


def final(name: str) -> list[Cell]:
    """Return an objective's runs: at the published rate, and at the best of the tuned ones."""
    best = max(tuning(name), key=Cell.best_on_validation).rate
    published = TABLE["objectives"][name]["rate"]
    return [Cell("run", name, "published", published), Cell("run", name, "tuned", best)]


def as_shipped() -> list[Cell]:
    """Return the runs of methods with their settings in params.yaml."""
    return [Cell("run", name) for name in TABLE["as_shipped"]]


def table(names: list[str]) -> str:
    """Return the table of the finished runs as Markdown."""
    cells = [*as_shipped(), *(c for n in names for c in final(n))]
    columns = ["rate", "trained", "minus the base", "learns", "last on validation", *COSTS]
    lines = head("objective", *columns)
    for cell in cells:
        run = cell.finished
        ((_, _, _, accuracy, over_base, _),) = means([run], RESAMPLES)
        costs = run.costs()
        spent = costs[max(costs)]  # of the whole run
        lines.append(
            line(
                f"{cell.name} {cell.variant}".strip(),
                f"{cell.rate:g}" if cell.rate else "params.yaml",
                within(*accuracy),
                gap(*over_base),
                "yes" if over_base[1][0] > 0 else "no",
                percent(run.points()[-1][1]),
                *(f"{spent[name]:.0f}" for name in COSTS),
            )
        )
    tuned = [str(c.finished) for c in cells if c.variant != "published"]
    return "\n".join([*lines, "", f"dopsd compare {' '.join(tuned)}", ""])


def main() -> None:
    """Make one part of the experiment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=["tune", "run", "table"])
    known = list(TABLE["objectives"])
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side (default: 2)")
    a = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    if a.part == "table":
        sys.stdout.write(table(a.only))
        return
    cells = [cell for name in a.only for cell in (tuning if a.part == "tune" else final)(name)]
    if a.part == "run":
        cells = [*as_shipped(), *cells]
    with ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(Cell.make, cells))


if __name__ == "__main__":
    main()
