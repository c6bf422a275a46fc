"""What was seen in a trial, and the one word for it."""

from dataclasses import dataclass, field
from typing import Any

from chaos.plan import Plan

RECOVERED, REFUSED, CANNOT_SAVE, SKIPPED = "RECOVERED", "REFUSED", "CANNOT_SAVE", "SKIPPED"
LOST, WRONG, SILENT, WRONG_REFUSAL = "LOST", "WRONG", "SILENT", "WRONG_REFUSAL"
RIGHT = (RECOVERED, REFUSED, CANNOT_SAVE, SKIPPED)


@dataclass
class Facts:
    """What was seen in a trial; `lost` and `wrong` say what must not be."""

    phase: str = "not hit"
    did: str = ""
    refusals: list[str] = field(default_factory=list)
    cannot_save: str = ""
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reruns: int = 0
    skipped: str = ""


def outcome(plan: Plan, facts: Facts) -> str:
    """One word for a trial. Results that differ though nothing was said are the worst."""
    if facts.skipped:
        return SKIPPED
    if facts.differences and plan.is_damage and not facts.refusals:
        return SILENT
    if facts.lost or facts.differences:
        return LOST
    if facts.wrong:
        return WRONG
    if facts.refusals:
        return REFUSED if plan.is_damage else WRONG_REFUSAL
    return CANNOT_SAVE if facts.cannot_save else RECOVERED


def record_of(plan: Plan, facts: Facts, seconds: float, commit: str) -> dict[str, Any]:
    """A line of the results file."""
    seen = vars(facts).items()
    detail = {name: value for name, value in seen if value and name not in ("phase", "reruns")}
    asked = {name: vars(plan)[name] for name in ("seed", "kind", "command", "target")}
    found = {"phase": facts.phase, "outcome": outcome(plan, facts), "reruns": facts.reruns}
    found |= {"seconds": round(seconds, 1), "detail": detail}
    return {"trial": plan.number, "commit": commit} | asked | found
