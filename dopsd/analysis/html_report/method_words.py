"""Sentences on how a method with a teacher works, from the settings of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.percent import percent

if TYPE_CHECKING:
    from dopsd.analysis.html_report.facts import RunFacts

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
    divergence = DIVERGENCES[facts.of_method("divergence") or "forward_kl"]
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
