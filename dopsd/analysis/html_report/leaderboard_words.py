"""Sentences of the leaderboard: its words, what may not be compared, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report.verdicts import ENOUGH_SEEDS
from dopsd.analysis.html_report.words import GLOSSARY, count

if TYPE_CHECKING:
    from dopsd.analysis.html_report.leaderboard_board import Board

SHARED = ("Accuracy", "Base", "Checkpoint", "Points", "Rollout", "Seed", "Update")
WORDS = {word: GLOSSARY[word] for word in (*SHARED, "Validation and test")} | {
    "Bootstrap interval": (
        "a 95% interval from drawing seeds and problems again, with replacement. It is too narrow"
        " with few seeds."
    ),
    "Claim": (
        f"a difference over at least {ENOUGH_SEEDS} seeds whose wider interval does not include 0."
    ),
    "CPU seconds": "processor time of training on one thread, without what other programs used.",
    "Entry": "a method with its settings, which takes part under a name of its own.",
    "FLOPs": "floating-point operations of all passes, an upper bound from shapes.",
    "Knows": (
        "what an entry learns from besides the problems: a reward for its own answers, the gold"
        " answer, or a whole solution."
    ),
    "t interval": (
        "a 95% interval from the differences by seed, with Student's t. It needs two seeds, and is"
        " wide with few of them."
    ),
}
PUBLISHED = (
    "Accuracies as papers report them, of LLaDA-8B-Instruct and on other splits; nothing of this"
    " was run here. They may not be compared with the entries above: the model has thousands of"
    " times as many parameters, the problems, prompts, lengths and steps differ, and papers choose"
    " checkpoints in other ways. Each table has its own protocol; compare within one table only."
)


def limits(board: Board) -> list[str]:
    """Return what may not be compared, and why."""
    rules = board.results["rules"]
    return [
        _test_looks(board),
        *_knowledge(board),
        *_without_samples(board),
        *rules.get("notes", []),
        *_choices(board),
        "CPU seconds are those of a small model on one thread. On a GPU sampling, forward and"
        " backward passes cost other shares of the time, and another entry may be the cheapest:"
        " the second table does not carry over to LLaDA-8B.",
        "A t interval holds the test problems fixed, and the bootstrap takes each problem for"
        " itself, though some are alike. Both intervals may be a little too narrow.",
        *_edges(board),
        f"Rates were tuned on seed {rules['tuning']['seed']} with"
        f" {100 * rules['tuning']['share']:g}% of the budget, at equal sampled tokens; the table of"
        " CPU seconds has the same rates, though another may be better there. One seed cannot tell"
        " rates apart that differ by a point or two. Other settings are those of params.yaml and of"
        " the plan.",
        *_more_seeds(rules),
        "The base is no candidate: an entry that only loses is shown by its least bad checkpoint."
        " Pairs are over the seeds that both entries have, so a difference need not be that of the"
        " two means in the standings.",
        *_many_pairs(board),
        "Another base, another size of model or another budget may order the entries in another"
        " way.",
    ]


def _test_looks(board: Board) -> str:
    untested = [task for task in board.tasks if not board.is_tested(task)]
    first = (
        f"The test has not run for every entry of {', '.join(untested)}: the numbers there are on"
        " validation, which also chose the rates and the checkpoints, so they are too high."
        if untested
        else "Validation chose rates, checkpoints and leaders; the test split chose nothing here. A"
        " test split that was used before this tournament is not untouched: see its task."
    )
    return (
        f"{first} Each further look at the same test problems, to choose between entries, makes the"
        " best one look better than it is."
    )


def _knowledge(board: Board) -> list[str]:
    groups: dict[str, list[str]] = {}
    for name, entry in board.results["entries"].items():
        by_task = {task: board.knows(name, task) for task in board.tasks}
        is_one = len(set(by_task.values())) == 1
        for task, knows in list(by_task.items())[: 1 if is_one else None]:
            groups.setdefault(knows, []).append(
                entry["title"] if is_one else f"{entry['title']} on {task}"
            )
    told = "; ".join(f"{knows}: {', '.join(titles)}" for knows, titles in groups.items())
    text = (
        f"Entries know different things ({told}). One that is told more may be better for that"
        " alone; compare methods within one group."
    )
    return [text] if len(groups) > 1 else []


def _without_samples(board: Board) -> list[str]:
    names = [
        name
        for name in board.results["entries"]
        if any(board.samples_nothing(task, name) for task in board.tasks)
    ]
    told = ", ".join(map(board.title, names))
    text = (
        f"Training of {told} samples no tokens, so the first budget does not limit it. Neither"
        " table counts what the solutions cost that it learns from."
    )
    return [text] if names else []


def _choices(board: Board) -> list[str]:
    counts = [row["checkpoints"] for row in board.results["standings"]]
    text = (
        f"Entries choose from unequal numbers of checkpoints, from {min(counts):.0f} to"
        f" {max(counts):.0f} within a budget, because their updates cost different amounts. More to"
        " choose from raises validation accuracy, and a little that on test. No budget counts"
        " these evaluations."
    )
    return [text] if counts else []


def _edges(board: Board) -> list[str]:
    at_edge = [
        f"{board.title(name)} on {task}"
        for name, entry in board.results["entries"].items()
        for task in entry["rates"]
        if board.at_edge(name, task)
    ]
    text = (
        f"The chosen learning rate is at the edge of the tried ones for {', '.join(at_edge)}: a"
        " rate beyond it may be better, so these entries may be undervalued."
    )
    return [text] if at_edge else []


def _more_seeds(rules: dict[str, Any]) -> list[str]:
    text = (
        f"After {count(len(rules['seeds']), 'seed')} {count(len(rules['more_seeds']), 'more seed')}"
        " went, by validation, to our own entry, the strongest d-OPSD, the strongest that knows"
        " just as much as our own (both by either budget), and the best others until there were"
        f" {rules['best']}. An entry below"
        f" {ENOUGH_SEEDS} seeds can neither be claimed to be better nor to be worse."
    )
    return [text] if rules["more_seeds"] else []


def _many_pairs(board: Board) -> list[str]:
    pairs = len(board.results["pairs"])
    text = (
        f"The table of pairs has {pairs} intervals of 95%, not corrected for their number: about"
        f" {max(1, round(pairs / 20))} of them would exclude 0 by chance if all entries were equal."
    )
    return [text] if pairs > 1 else []
