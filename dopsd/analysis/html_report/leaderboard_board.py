"""A tournament's results as the leaderboard asks for them: order, tests, claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BUDGETS = {"tokens": "equal sampled tokens", "seconds": "equal CPU seconds"}


def run_name(run: dict[str, Any]) -> str:
    """Return the name of a run: task/entry/seed."""
    return f"{run['task']}/{run['entry']}/{run['seed']}"


def anchor(task: str, entry: str, seed: object = None) -> str:
    """Return the id of a run on the page, or of all runs of an entry on a task."""
    return f"runs-{task}-{entry}" if seed is None else f"run-{task}-{entry}-{seed}"


@dataclass(frozen=True)
class Board:
    """What `dopsd.pipeline.leaderboard_results.read_results` returns, with questions to it."""

    results: dict[str, Any]

    @property
    def tasks(self) -> list[str]:
        """The tasks in which something has run, in the order of the rules."""
        names = self.results["rules"]["tasks"]
        return [name for name in names if self.runs(name)]

    @property
    def own(self) -> str:
        """The entry that claims are about; empty: none."""
        name: str = self.results["rules"]["own"]
        return name

    def knows(self, entry: str, task: str) -> str:
        """Return what an entry learns from on a task."""
        described = self.results["entries"][entry]
        text: str = described["knows"].get(task, described["knowledge"])
        return text

    def title(self, entry: str) -> str:
        """Return how people call an entry."""
        title: str = self.results["entries"][entry]["title"]
        return title

    def runs(self, task: str, entry: str | None = None) -> list[dict[str, Any]]:
        """Return the runs of a task, of one entry or of all."""
        return [
            run
            for run in self.results["runs"]
            if run["task"] == task and entry in (None, run["entry"])
        ]

    def entries(self, task: str) -> list[str]:
        """Return the entries with a run or a standing on a task, in the file's order."""
        rows = [*self.runs(task), *(s for s in self.results["standings"] if s["task"] == task)]
        present = {row["entry"] for row in rows}
        return [name for name in self.results["entries"] if name in present]

    def samples_nothing(self, task: str, entry: str) -> bool:
        """Return whether the runs of an entry sample no token, such as those of sft."""
        runs = self.runs(task, entry)
        return bool(runs) and not any(point["tokens"] for run in runs for point in run["curve"])

    def standing(self, budget: str, task: str, entry: str) -> dict[str, Any] | None:
        """Return the standing of an entry, if it has one."""
        rows = (s for s in self.standings(budget, task) if s["entry"] == entry)
        return next(rows, None)

    def standings(self, budget: str, task: str) -> list[dict[str, Any]]:
        """Return the standings within a budget: tested ones first, then by accuracy."""
        rows = [
            row
            for row in self.results["standings"]
            if (row["budget"], row["task"]) == (budget, task)
        ]
        return sorted(rows, key=lambda row: (row["test"] is None, -accuracy(row)))

    def is_tested(self, task: str) -> bool:
        """Return whether a task has standings, and all of them were tested."""
        rows = [row for budget in BUDGETS for row in self.standings(budget, task)]
        return bool(rows) and all(row["test"] is not None for row in rows)

    def is_pair_tested(self, pair: dict[str, Any]) -> bool:
        """Return whether both entries of a pair were tested."""
        rows = [
            self.standing(pair["budget"], pair["task"], pair[side]) for side in ("first", "second")
        ]
        return all(row is not None and row["test"] is not None for row in rows)

    def pairs(self, task: str, budget: str | None = None) -> list[dict[str, Any]]:
        """Return a task's pairs: those of the own entry first, then claims, then large ones."""
        rows = [
            pair
            for pair in self.results["pairs"]
            if pair["task"] == task and budget in (None, pair["budget"])
        ]
        return sorted(rows, key=self._order)

    def _order(self, pair: dict[str, Any]) -> tuple[bool, bool, bool, float]:
        is_other, size = not self.is_of_own(pair), abs(pair["difference"])
        return is_other, pair["budget"] != "tokens", not pair["is_claim"], -size

    def is_of_own(self, pair: dict[str, Any]) -> bool:
        """Return whether one entry of a pair is the own one."""
        return self.own in (pair["first"], pair["second"])

    def claims(self, task: str, budget: str) -> list[dict[str, Any]]:
        """Return the pairs that may be claimed, each with the better entry as `first`."""
        rows = [pair for pair in self.pairs(task, budget) if pair["is_claim"]]
        return [pair if pair["difference"] > 0 else _swapped(pair) for pair in rows]

    def at_edge(self, entry: str, task: str) -> bool:
        """Return whether the chosen rate is the lowest or highest of those that were tried."""
        chosen = self.results["entries"][entry]["rates"][task]["chosen"]
        tried = self.results["rules"]["tuning"]["rates"]
        return len(tried) > 1 and chosen in (min(tried), max(tried))


def accuracy(standing: dict[str, Any]) -> float:
    """Return the mean accuracy of a standing: on test, or on validation before the test."""
    value: float = standing["validation" if standing["test"] is None else "test"]
    return value


def _swapped(pair: dict[str, Any]) -> dict[str, Any]:
    low, high = pair["interval"]
    return pair | {
        "first": pair["second"],
        "second": pair["first"],
        "difference": -pair["difference"],
        "interval": [-high, -low],
    }
