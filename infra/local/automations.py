"""Make the automation of Prefect's server that answers a run without updates.

The flow tags such a run `stalled` and emits `dopsd.run.stalled`; the automation records it in the
event feed, and a notification can be added to it in the UI. It neither stops a run nor names its
state: on a run that is being cancelled or has ended, that would undo the end.
"""

from __future__ import annotations

from typing import Any

from runs import ask_prefect

NAME = "dopsd run stalled"
AUTOMATION: dict[str, Any] = {
    "name": NAME,
    "description": "A run has made no update for ten times its usual time. Add a notification.",
    "enabled": True,
    "trigger": {
        "type": "event",
        "expect": ["dopsd.run.stalled"],
        "match": {"prefect.resource.id": "prefect.flow-run.*"},
        "for_each": ["prefect.resource.id"],
        "posture": "Reactive",
        "threshold": 1,
        "within": 0,
    },
    "actions": [{"type": "do-nothing"}],
}


def make_automation(api: str) -> None:
    """Create the automation if the server lacks it; one that a person changed stays as it is."""
    if not ask_prefect(f"{api}/automations/filter", {"automations": {"name": {"any_": [NAME]}}}):
        ask_prefect(f"{api}/automations/", AUTOMATION)
