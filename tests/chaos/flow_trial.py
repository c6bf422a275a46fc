"""A trial of a flow run: the faults of trial.py, in a workspace whose servers serve several
trials.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from chaos import judge, processes
from chaos.attempt import SIGNALS, Ended, ask_to_stop
from chaos.folders import read_reference
from chaos.outcomes import Facts
from chaos.plan import TRAINING, Plan
from chaos.servers import FlowRun, Platform
from chaos.trial import HOOK, Trial

_platforms: dict[tuple[Path, int], Platform] = {}
_lock = threading.Lock()


def platform_of(place: Path) -> Platform:
    """This thread's platform, started when it is first needed."""
    key = (place, threading.get_ident())
    with _lock:
        if key not in _platforms:
            _platforms[key] = Platform(place, f"flows-{len(_platforms)}")
        return _platforms[key]


def end_platforms() -> None:
    for platform in _platforms.values():
        platform.down()
    _platforms.clear()


class FlowTrial(Trial):
    """A run of Prefect's deployment, disturbed; a retry or a new run of it is the repair."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self.plan, self.place, self.facts = plan, place, Facts()
        self.reference, self.platform = read_reference(place), platform_of(place)
        self.folder, self.state = self.platform.folder, self.platform.state
        self.env, self.disk, self.first = {}, None, ""
        self.experiment = f"trial-{plan.seed}-{plan.number}"

    def run(self) -> Facts:
        (self.state / HOOK).unlink(missing_ok=True)
        self.platform.reset(self.experiment)
        told = self.platform.up()
        if told:
            raise RuntimeError(f"make up: {told}")
        try:
            self._disturb()
            self._repair()
            self._judge()
        finally:
            processes.send([*self.platform.run_processes()], 9)
        return self.facts

    def start(self, number: int) -> FlowRun:
        self.platform.up()
        run = FlowRun(self.platform, self.first if self.plan.kind.endswith("cancel") else "")
        self.first = self.first or run.id
        return run

    def _prepare(self) -> None:
        details = self.plan.details
        if "forward_seconds" in details:
            settings = {
                "forward_seconds": details["forward_seconds"],
                "after_update": max(self.plan.update, 1),
            }
            (self.state / HOOK).write_text(json.dumps(settings))
        elif self.plan.target == "dvc":
            (self.state / HOOK).write_text('{"forward_seconds": 0.3, "after_update": 0}')

    def _look_at(self, ended: Ended) -> None:
        if (
            self.facts.reruns == 0
        ):  # a traceback in the log of the run that was disturbed is Prefect's
            ended.said = ended.said.replace("Traceback (most recent call last)", "traceback")
        super()._look_at(ended)

    def _deliver(self, run: FlowRun) -> None:
        plan, kind = self.plan, self.plan.kind.removeprefix("flow-")

        def deliver() -> None:
            if kind.endswith("cancel"):
                run.cancel()
            else:
                reached = run.targets(plan.target)
                self.facts.phase = self.facts.phase if reached else "not hit"
                processes.send(reached, SIGNALS[kind])

        is_asked = (
            plan.is_stop
            and plan.target not in ("worker", "prefect", "mlflow")
            and self.facts.phase in TRAINING
        )
        fault = (
            ask_to_stop(run, deliver)
            if is_asked and self.facts.phase != "publishing"
            else deliver()
        )
        self.facts.lost += [f"{kind} of {plan.target}: {fault}"] if fault else []

    def _judge(self) -> None:
        facts = self.facts
        facts.differences += judge.differences(self.folder, self.reference, "flow")
        facts.wrong += judge.unclean(self.folder, "flow") + judge.leftovers(self.folder)
        facts.lost += judge.untracked(self.folder, "flow", self.experiment)

    def remove(self) -> None:
        """The next trial of this platform makes the workspace new."""
