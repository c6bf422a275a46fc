"""Sentences of the reports: results, warnings, how sure a comparison is, and the words used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from dopsd.analysis.html_report.page import FOLDER
from dopsd.analysis.html_report.paired import outcomes
from dopsd.analysis.results import between_sides
from dopsd.core.statistics import percent, points

if TYPE_CHECKING:
    from dopsd.analysis.html_report.facts import RunFacts

GLOSSARY: dict[str, str] = YAML(typ="safe", pure=True).load(
    FOLDER.joinpath("templates/words.yaml").read_text(encoding="utf-8")
)


def headline(facts: RunFacts) -> str:
    """Return the result of a run in a sentence."""
    best, paired = facts.comparison["best"], facts.comparison["paired"]
    count = facts.comparison["base"]["n"]
    does = (
        f"scores {percent(best['accuracy'])}% on average over {count} test problems"
        if facts.description.is_graded
        else f"answers {percent(best['accuracy'])}% of {count} test problems correctly"
    )
    return (
        f"The trained model {does}, {points(paired['difference'], paired['interval'])} against the"
        f" base. {outcomes(facts.comparison).meaning(paired['difference'], paired['interval'])}"
    )


def marks(facts: RunFacts) -> str:
    """Return how full marks and mean score differ in a graded task; empty for other tasks."""
    if not facts.description.is_graded:
        return ""
    base, best = (facts.comparison[side] for side in ("base", "best"))
    return (
        "This task is graded: the score of an answer is the share of it that is right. Accuracy is"
        f" the mean score. Full marks go to {percent(best['whole'])}% of the trained model's"
        f" answers, and to {percent(base['whole'])}% of the base's."
    )


def warnings(facts: RunFacts) -> list[tuple[str, str]]:
    """Return title and text of each reason to be careful with a run's result."""
    chosen, last = facts.selected, max(row["update"] for row in facts.curve)
    collapse = [row["update"] for row in facts.training if row.get("collapsed")]
    planned, made = facts.settings.planned_updates, facts.totals["updates"]
    checks = [
        ("Stale run", bool(facts.settings.stale), facts.settings.stale),
        (
            "Selected on the test set",
            chosen["split"] == "test",
            "The test problems chose the checkpoint, so its test accuracy is too high. Set"
            " `select.split: validation` for a fair number.",
        ),
        (
            "Collapse",
            bool(collapse),
            "First attempts have scored far below their best since update"
            f" {collapse[0] if collapse else ''}. Better checkpoints were kept. Later updates were"
            " lost time.",
        ),
        (
            "Ended early",
            planned is not None and made < planned,
            f"Training ended after {made} of {planned} updates: it collapsed, or found nothing more"
            " to learn from.",
        ),
        (
            "The last checkpoint is the best",
            0 < chosen["update"] == last and not collapse,
            f"Accuracy was highest at the last of {last} updates. More updates (`train.updates`)"
            " may help.",
        ),
        (
            "No better than the base",
            chosen["accuracy"] <= chosen["base_accuracy"],
            f"No checkpoint beats the base on {chosen['split']}.",
        ),
        (
            "No better than its start",
            chosen["accuracy"] <= chosen.get("start_accuracy", -1),
            "No checkpoint beats the one that training started from, which has"
            f" {percent(chosen.get('start_accuracy', 0))}% on {chosen['split']}.",
        ),
        (
            "Started from a checkpoint",
            bool(facts.description.start),
            f"Training started from `{facts.description.start}`. The difference to the base is that"
            " of both trainings together. Costs are those of the second training alone.",
        ),
    ]
    measured = [("Measured differently", text) for text in between_sides(facts.comparison)]
    return [(title, text) for title, is_true, text in checks if is_true] + measured


def grouped(value: float | None) -> str:
    """Return a count or seconds without decimals."""
    return "not recorded" if value is None else f"{value:,.0f}"


def counted(number: int, noun: str, ending: str = "s") -> str:
    """Return a number with its noun: 1 seed, 3 seeds."""
    return f"{number} {noun}{'' if number == 1 else ending}"


def decoding_text(protocol: dict[str, Any]) -> str:
    """Return how a protocol decodes an answer, in words; its common defaults are left out."""
    named = ("gen_length", "block_length", "steps")
    length, block, steps = (protocol[name] for name in named)
    usual = {"autocast": "none", "cache": "none", "gumbel_dtype": "float32", "mask_padding": True}
    others = [
        f"`{name}: {value}`"
        for name, value in protocol.items()
        if name not in (*named, "batch_size")
        and value not in (None, "", False)
        and usual.get(name) != value
    ]
    text = f"greedy (temperature 0), {length} tokens in blocks of {block}, {steps} steps"
    return ", ".join([text, *others])


def saved_text(sides: Sequence[dict[str, Any]]) -> str:
    """Return the share of forward passes that ending early saved, of base and trained model."""
    shares = [1 - side["steps"] / side["protocol"]["steps"] for side in sides]
    if max(shares) < LEAST_SAVED:
        return ""
    return f". {' and '.join(f'{share:.0%}' for share in shares)} of the steps were not needed"


LEAST_SAVED = 0.005  # share of the steps that is worth a word
TEACHERS = {
    "base": "the unchanged base",
    "start": "the checkpoint that training started from, unchanged",
    "live": "the student itself",
    "ema": "a moving average of the student's weights",
}
DIVERGENCES = {
    "forward_kl": "the forward KL divergence",
    "reverse_kl": "the reverse KL divergence",
    "jsd": "the Jensen-Shannon divergence",
}


def how_it_works(facts: RunFacts) -> str:
    """Return how the run's method learns from a teacher; empty for methods without a teacher."""
    teacher = facts.of_method("teacher")
    if teacher is None:
        return ""
    if teacher == "base" and facts.settings.values.get("train.reference") == "start":
        teacher = "start"
    name = facts.of_method("divergence") or "forward_kl"
    divergence = DIVERGENCES.get(name, f"the divergence `{name}`")  # a plug-in's own
    return (
        f"{_answers(facts)} At {_steps(facts)}, the student learns to predict what the teacher"
        f" predicts: an update lowers {divergence} (`divergence`) between their predictions."
        f" The teacher is {TEACHERS[teacher]}. {_sees(facts)}"
    )


def _answers(facts: RunFacts) -> str:
    """Return which sampled answers the method learns from."""
    number, keeps_all = int(facts.of_method("attempts") or 1), facts.of_method("keep") == "all"
    first, later = (facts.of_method(f"{name}_temperature") for name in ("first", "retry"))
    heat = f"at temperature {first}"
    if number > 1 and first != later:
        heat = f"at temperature {first} the first time and {later} after that"
    is_graded = facts.description.is_graded
    bar = f"scores at least {percent(float(facts.of_method('keep_threshold') or 0))}%"
    bar = bar if is_graded else "is right"
    end = ", right or wrong" if keeps_all else f" if it {bar}"
    trains_all = facts.settings.values.get("train.weights") == "all"
    student = (
        "a copy of the base that training changes" if trains_all else "the base with the adapter"
    )
    start = f"For each training problem the student, which is {student}, samples"
    if number == 1:
        return f"{start} one answer {heat}, and learns from it{end}."
    if is_graded:
        return f"{start} {number} answers {heat}, and learns from the best one{end}."
    rest = ", or from the last one if none is" if keeps_all else ""
    return f"{start} up to {number} answers {heat}, and learns from the first right one{rest}."


def _steps(facts: RunFacts) -> str:
    """Return the denoising steps that are trained on."""
    states = int(facts.of_method("state_sample") or 0)
    steps = f"{states} of its steps, drawn at random" if states else "each of its denoising steps"
    limits = {"before the last block": facts.of_method("record_last_block") == "false"}
    limits["up to the end of the text"] = facts.of_method("record") == "until_eos"
    return " ".join([steps, " and ".join(text for text, holds in limits.items() if holds)]).strip()


def _sees(facts: RunFacts) -> str:
    """Return what the teacher sees and the student does not."""
    share, sights = float(facts.of_method("reveal_ratio") or 0), []
    if facts.of_method("max_teacher_prompt") is not None:
        sights.append("a reference solution in its prompt")
    if share:
        is_later = facts.of_method("reveal_scope") == "future_blocks"
        where = "in later blocks" if is_later else "that are still masked for the student"
        sights.append(f"{100 * share:g}% of the answer's tokens {where}, drawn anew at each step")
    return f"It also sees {' and '.join(sights)}." if sights else "It sees what the student sees."
