"""Tables of results, from the archives beside benchmarks/: no figure of them is typed."""

from __future__ import annotations

import json
import math
import tarfile
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from scipy.stats import t as student
from settings_reference import table

from dopsd.analysis.results import paired_over_seeds
from dopsd.core.statistics import bootstrap, gap, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
H200 = BENCHMARKS / "gpu/results/2026-11-27-h200/runs.tar.gz"
RESAMPLES = 2000  # as params.yaml
OF_H200 = 10_000  # as the report of that run
TITLES = {
    "sudoku": "4x4 Sudoku",
    "countdown": "Countdown",
    "chains": "chains of arithmetic",
    "gym_mini_sudoku": "mini Sudoku",
    "gym_binary_matrix": "distances to 0",
    "gym_shortest_path": "shortest paths",
    "smollm2_chains": "SmolLM2, chains modulo 10",
}
README_TITLES = {"sudoku": "4x4 Sudoku, blank cells"}  # its accuracy is partial
CLAIM = r" \*"
Row = dict[str, Any]


@cache
def results_of(plan: str) -> Row:
    """Return what a plan of benchmarks/tournament/ printed: its accuracies, gaps and costs."""
    return json.loads((BENCHMARKS / "tournament" / plan / "results.json").read_text())


def standing(plan: str, task: str, entry: str, budget: str = "tokens") -> Row:
    """Return the accuracies and costs of an entry on a task; `KeyError` if it took no part."""
    rows = results_of(plan)["standings"]
    return {(row["budget"], row["task"], row["entry"]): row for row in rows}[budget, task, entry]


def base(plan: str, task: str) -> str:
    """Return the accuracy of a task's base on test."""
    return percent(results_of(plan)["bases"][task]["test"])


def pair_of(plan: str, task: str, entry: str) -> Row:
    """Return the plan's own entry less another."""
    pairs = results_of(plan)["pairs"]
    return next(p for p in pairs if (p["task"], p["second"]) == (task, entry))


def less_own(plan: str, task: str, entry: str) -> str:
    """Return an entry less the plan's own one, with the wider interval, and `*` for a claim."""
    pair = pair_of(plan, task, entry)
    low, high = pair["interval"]
    return gap(0.0 - pair["difference"], [0.0 - high, 0.0 - low]) + CLAIM * pair["is_claim"]


def over_base(row: Row) -> str:
    """Return a gain over the base with its interval, and `*` for a claim."""
    over = row["over_base"]
    return gap(over["difference"], over["interval"]) + CLAIM * over["is_claim"]


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95% interval of a mean over seeds."""
    mean = fmean(values)
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def of_seeds(values: Sequence[float]) -> str:
    """Return a mean over seeds with Student's 95% interval."""
    return gap(fmean(values), student_interval(values))


@cache
def scores(plan: str) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """Return the test scores of a plan's runs within its tokens: by seed, then by problem."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for path in sorted((BENCHMARKS / "tournament" / plan).glob("*.tar.gz")):
        for name, report in reports(path, "/tournament_test.json"):
            _, task, folder, seed, _ = name.split("/")
            entry = folder.partition(f"-{plan}_")[2].removesuffix("_final")
            tested = report["budgets"]["tokens"]["per_problem"]
            found.setdefault((task, entry), {})[seed] = tested
    return found


def reports(archive: Path, ending: str) -> Iterator[tuple[str, Row]]:
    """Yield the name and the contents of each JSON file of an archive whose name ends so."""
    with tarfile.open(archive) as files:
        for name in sorted(files.getnames()):
            if name.endswith(ending) and (file := files.extractfile(name)):
                yield name, json.load(file)


def less(plan: str, task: str, first: str, second: str) -> str:
    """Return an entry less another over the seeds that both have, with the wider interval.

    As in the tournament: Student's t over seeds, or the bootstrap over seeds and problems.
    """
    a, b = (scores(plan)[task, entry] for entry in (first, second))
    gaps = [
        [a[seed][name] - b[seed][name] for name in sorted(a[seed])] for seed in sorted(a.keys() & b)
    ]
    mean, drawn = paired_over_seeds(gaps, RESAMPLES)
    of_t = student_interval([fmean(values) for values in gaps])
    interval = max(drawn, of_t, key=lambda ends: ends[1] - ends[0])
    return f"{gap(mean, interval)} ({len(gaps)})"


TASKS = ("sudoku", "countdown", "chains")


def rlvr() -> str:
    """Return d-OPSD and TraceRL, each at its tuned rate, with intervals."""
    rows = []
    for task in TASKS:
        both = [standing("reveal", task, entry) for entry in ("half_shown", "trace_rl")]
        cells = [f"{percent(row['test'])} ({over_base(row)})" for row in both]
        minus = less_own("reveal", task, "trace_rl")
        rows.append([TITLES[task], base("reveal", task), *cells, minus])
    head = ["accuracy in %", "base", "d-OPSD (less base)", "TraceRL (less base)"]
    return table([*head, "TraceRL less d-OPSD [95%]"], rows)


def readme_results() -> str:
    """Return the same in whole numbers, with a verdict in place of intervals."""
    rows = []
    for task in TASKS:
        pair = pair_of("reveal", task, "trace_rl")
        both = [standing("reveal", task, entry)["test"] for entry in ("half_shown", "trace_rl")]
        cells, verdict = [f"{100 * share:.0f}" for share in both], "no difference found"
        if pair["is_claim"]:
            ahead = int(pair["difference"] < 0)
            cells[ahead] = f"**{cells[ahead]}**"
            verdict = f"{('d-OPSD', 'TraceRL')[ahead]} ahead"
        start = results_of("reveal")["bases"][task]["test"]
        rows.append([README_TITLES.get(task, TITLES[task]), f"{100 * start:.0f}", *cells, verdict])
    return table(["accuracy in %", "base", "d-OPSD", "TraceRL (RLVR)", ""], rows)


@cache
def last_checkpoints(plan: str) -> dict[tuple[str, str], list[tuple[Row, int]]]:
    """Return the last checkpoint of each run within its tokens, and how many there are."""
    found: dict[tuple[str, str], list[tuple[Row, int]]] = {}
    budget = results_of(plan)["rules"]["tokens"]
    path = BENCHMARKS / "tournament" / plan / "runs.tar.gz"
    for name, run in reports(path, "/tournament.json"):
        _, task, folder, _, _ = name.split("/")
        curve = [row for row in run["curve"] if row["tokens"] <= budget]
        if folder.endswith("_final"):
            entry = folder.partition(f"-{plan}_")[2].removesuffix("_final")
            found.setdefault((task, entry), []).append((curve[-1], len(curve) - 1))
    return found


def costs() -> str:
    """Return what d-OPSD and TraceRL spent until the last checkpoint within the same tokens."""
    rows = []
    for task in TASKS:
        for entry, title in (("half_shown", "d-OPSD"), ("trace_rl", "TraceRL")):
            runs = last_checkpoints("reveal")[task, entry]
            updates, choices = [row["update"] for row, _ in runs], [n for _, n in runs]
            seconds = fmean(row["cpu_seconds"] for row, _ in runs)
            rows.append([TITLES[task], title, span(updates), span(choices), f"{seconds:.0f}"])
    return table(["", "", "updates", "checkpoints to choose from", "CPU seconds, mean"], rows)


def span(values: Sequence[int]) -> str:
    """Return the least and the largest of some counts: 43 to 48."""
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def tournament_rlvr() -> str:
    """Return d-OPSD less RLVR in the tournament, over the seeds that both have."""
    names = {"d_opsd_one": "one update a trajectory", "d_opsd": "four updates, as published"}
    rows = [
        [
            f"{title}, less {rival_title}",
            *(less("tournament", task, entry, rival) for task in TASKS),
        ]
        for entry, title in names.items()
        for rival, rival_title in (("trace_rl", "TraceRL"), ("diffu_grpo", "diffu-GRPO"))
    ]
    return table(["d-OPSD with", *(TITLES[task] for task in TASKS)], rows)


def solutions() -> str:
    """Return SFT on worked solutions beside d-OPSD, in the tournament."""
    rows = []
    for task in TASKS:
        found = {e: standing("tournament", task, e) for e in ("d_opsd_one", "d_opsd", "sft")}
        cells = [percent(found[entry]["test"]) for entry in ("d_opsd_one", "d_opsd", "sft")]
        difference = less("tournament", task, "sft", "d_opsd_one")
        rows.append([TITLES[task], base("tournament", task), *cells, difference])
    head = ["base", "d-OPSD, one update", "d-OPSD, four updates", "SFT"]
    return table(["accuracy in %", *head, "SFT less d-OPSD, one update (seeds)"], rows)


def standings_table(budget: str) -> str:
    """Return all entries of the tournament with their test accuracy on each task.

    Args:
        budget: `tokens`, with our own entry less each; or `seconds`, without.
    """
    results = results_of("tournament")
    own = results["rules"]["own"]
    pairs = {(p["budget"], p["task"], p["second"]): p for p in results["pairs"]}
    gains: dict[str, list[float]] = {}
    for row in results["standings"]:
        if row["budget"] == budget:
            gain = row["test"] - results["bases"][row["task"]]["test"]
            gains.setdefault(row["entry"], []).append(gain)
    with_gaps = budget == "tokens"
    lines = [
        [
            "base",
            *(cell for task in TASKS for cell in (base("tournament", task), "")[: 1 + with_gaps]),
        ]
    ]
    for entry in sorted(gains, key=lambda name: fmean(gains[name]), reverse=True):
        title, cells = results["entries"][entry]["title"], []
        for task in TASKS:
            row = standing("tournament", task, entry, budget)
            cells.append(f"{percent(row['test'])} ({row['seeds']})")
            pair = pairs.get((budget, task, entry))
            if with_gaps:
                minus = gap(pair["difference"], pair["interval"]) if pair else "–"
                cells.append(minus + CLAIM * bool(pair and pair["is_claim"]))
        lines.append([f"**{title}**" if entry == own else title, *cells])
    columns = (f"{task} (seeds)" for task in TASKS)
    head = [word for name in columns for word in (name, "own less it")[: 1 + with_gaps]]
    return table(["entry", *head], lines)


def divergences() -> str:
    """Return d-OPSD with each divergence, less forward KL."""
    names = {
        "d_opsd_reverse": "reverse KL",
        "d_opsd_jsd": "JSD",
        "d_opsd_clipped": "reverse KL, a position's loss at most 1",
    }
    first = ["forward KL, accuracy"]
    first += [percent(standing("speed", task, "d_opsd_forward")["test"]) for task in TASKS]
    rows = [
        [f"{title}, less forward KL", *(less("speed", t, entry, "d_opsd_forward") for t in TASKS)]
        for entry, title in names.items()
    ]
    return table(["points (seeds)", *(TITLES[task] for task in TASKS)], [first, *rows])


def tuned_settings() -> str:
    """Return all revealed, and the published loss, less half revealed, each at its tuned rate."""
    names = {"all_shown": "all revealed", "published_loss": "the published loss"}
    return _less_own("reveal", names, "half revealed")


def switches() -> str:
    """Return the settings that were tried at one rate, less forward KL."""
    names = {
        "anchored": "anchor to the base, weight 0.2",
        "refreshed": "teacher copied from the student every 4 updates",
        "banded": "the largest reveal that leaves 85% shared",
        "all_shown": "all revealed",
    }
    return _less_own("switches", names, "forward KL, half revealed")


def chunks() -> str:
    """Return other ways to deal the states of an answer, less four updates of dealt states."""
    names = {
        "four": "four updates of neighbouring states",
        "two_dealt": "two updates, states dealt",
        "one": "one update of all states",
    }
    plans = {"countdown": "chunks_countdown"}
    return _less_own("chunks", names, "four updates, states dealt", plans)


def _less_own(
    plan: str, names: Mapping[str, str], own: str, plans: Mapping[str, str] | None = None
) -> str:
    """Return entries less the plan's own one: on each task, and the mean of the tasks by seed.

    Args:
        plans: plans of tasks that have another one.
    """
    of_task = {task: (plans or {}).get(task, plan) for task in TASKS}
    name = results_of(plan)["rules"]["own"]
    rows = [[own, *(percent(standing(of_task[t], t, name)["test"]) for t in TASKS), ""]]
    for entry, title in names.items():
        by_seed = [pair_of(of_task[task], task, entry)["by_seed"] for task in TASKS]
        means = [-fmean(values[seed] for values in by_seed) for seed in sorted(by_seed[0])]
        cells = [less_own(of_task[task], task, entry) for task in TASKS]
        rows.append([title, *cells, of_seeds(means)])
    return table(["", *(TITLES[task] for task in TASKS), "mean of the tasks"], rows)


def gym_bases() -> str:
    """Return how often the base of ten tasks is right: once, of eight, and as its own teacher."""
    bases = json.loads((BENCHMARKS / "tournament/gym/bases.json").read_text())
    columns = ("pass@1", "pass@8", "teacher at 0.25")
    rows = [
        [f"`{task}`", *(percent(row[c]["accuracy"]) for c in columns)]
        for task, row in bases.items()
    ]
    return table(["accuracy in %", "right at once", "right within eight", "seeing a quarter"], rows)


def gym() -> str:
    """Return base and d-OPSD on tasks of reasoning-gym, and the other methods less d-OPSD."""
    results = results_of("gym")
    own, tasks = results["rules"]["own"], results["rules"]["tasks"]
    rows = [["base", *(base("gym", task) for task in tasks)]]
    found = [standing("gym", task, own) for task in tasks]
    rows += [["d-OPSD", *(percent(row["test"]) for row in found)]]
    rows += [["d-OPSD, less the base", *(over_base(row) for row in found)]]
    for entry, row in results["entries"].items():
        if entry != own:
            cells = [less_own("gym", task, entry) for task in tasks]
            rows.append([f"{row['title']}, less d-OPSD", *cells])
    return table(["accuracy in %", *(TITLES[task] for task in tasks)], rows)


def race() -> str:
    """Return what a race of checkpoints chose, less what exact scores of all chose."""
    rows = []
    for line in (BENCHMARKS / "race.jsonl").read_text().splitlines():
        found = json.loads(line)
        raced, exact = ([run[way] for run in found["runs"].values()] for way in ("race", "exact"))
        same = sum(a["chosen"] == b["chosen"] for a, b in zip(raced, exact, strict=True))
        steps = [sum(run["steps"] for run in way) for way in (raced, exact)]
        means = (percent(fmean(run["accuracy"] for run in way)) for way in (exact, raced))
        pair = found["difference"]
        less = gap(pair["difference"], pair["interval"])
        share = f"{steps[0] / steps[1]:.0%}"
        rows.append([TITLES[found["task"]], *means, less, f"{same} of {len(raced)}", share])
    head = ["accuracy in %", "chosen by exact scores", "by a race", "race less exact [95%]"]
    return table([*head, "same choice", "steps"], rows)


def temporal() -> str:
    """Return temporal self-distillation at lower rates."""
    rows = []
    for task in TASKS:
        for entry in ("commit", "all_future", "own"):
            row = standing("temporal_rates", task, entry)
            title = results_of("temporal_rates")["entries"][entry]["title"]
            accuracy = percent(row["test"])
            rows.append(
                [TITLES[task], title, base("temporal_rates", task), accuracy, over_base(row)]
            )
    return table(["", "target", "base", "accuracy in %", "less the base [95%]"], rows)


def few_steps() -> str:
    """Return accuracy with a quarter, half and all of the steps."""
    rows = []
    for task in TASKS:
        areas = {row["entry"]: row for row in results_of("reveal")["areas"] if row["task"] == task}
        found = {
            "base": areas["half_shown"]["base_points"],
            "d-OPSD": areas["half_shown"]["points"],
            "TraceRL": areas["trace_rl"]["points"],
        }
        for title, points in found.items():
            ordered = sorted(points.values())
            rows.append([TITLES[task], title, *(percent(share) for _, share in ordered)])
    return table(["accuracy in %", "", "a quarter of the steps", "half", "all"], rows)


@cache
def h200_scores() -> dict[str, dict[str, list[dict[str, dict[str, float]]]]]:
    """Return scores by problem: of each method, protocol and seed, with its base's."""
    found: dict[str, dict[str, list[dict[str, dict[str, float]]]]] = {}
    for name, report in reports(H200, "paired.json"):
        for protocol, measured in report["protocols"].items():
            sides = {side: measured[side]["per_problem"] for side in ("base", "best")}
            found.setdefault(name.split("/")[2], {}).setdefault(protocol, []).append(sides)
    return found


def real_model() -> str:
    """Return the language model that was trained on an H200: gains over its base, by steps."""
    protocols = {"eval": "24 steps", "eval-steps12": "12", "eval-steps6": "6", "eval-steps3": "3"}
    names = {"d_opsd": "d-OPSD", "d_opsd-jsd": "d-OPSD, JSD", "rft": "RFT", "trace_rl": "TraceRL"}
    found = h200_scores()
    first = [percent(fmean(found["d_opsd"][p][0]["base"].values())) for p in protocols]
    rows = [["base, accuracy in %", *first]]
    for method, title in names.items():
        cells = []
        for protocol in protocols:
            runs = found[method][protocol]
            problems = sorted(runs[0]["base"])
            gaps = [fmean(r["best"][p] - r["base"][p] for r in runs) for p in problems]
            cells.append(gap(fmean(gaps), bootstrap(gaps, OF_H200)))
        rows.append([f"{title}, less the base", *cells])
    return table(["", *protocols.values()], rows)


RESULT_TABLES: dict[str, Callable[[], str]] = {
    "readme_results": readme_results,
    "rlvr": rlvr,
    "rlvr_costs": costs,
    "tournament_rlvr": tournament_rlvr,
    "solutions": solutions,
    "tournament_tokens": lambda: standings_table("tokens"),
    "tournament_seconds": lambda: standings_table("seconds"),
    "divergences": divergences,
    "tuned_settings": tuned_settings,
    "switches": switches,
    "chunks": chunks,
    "gym_bases": gym_bases,
    "gym": gym,
    "race": race,
    "temporal": temporal,
    "few_steps": few_steps,
    "real_model": real_model,
}
