"""One trial: a copy of the template is disturbed, repaired as a user would, and judged."""

import json
import re
import shutil
import signal
import time
from pathlib import Path

from chaos import damage, judge, processes, repairs
from chaos.attempt import SIGNALS, Ended, Run, ask_to_stop, saved_update, targets, wait_for_fault
from chaos.disk import Disk, library
from chaos.folders import copy, read_reference, state_of
from chaos.outcomes import Facts
from chaos.plan import DISK, UPDATES, Plan

MOST_RERUNS = 6
HOOK = "hook.json"
IN_TRAINING = ("collecting", "updating", "saving")


class Trial:
    def __init__(self, plan: Plan, place: Path) -> None:
        self.plan, self.place, self.facts = plan, place, Facts()
        self.reference = read_reference(place)
        self.folder = copy(place / "template", place / "trials" / str(plan.number))
        self.state = state_of(self.folder)
        self.env: dict[str, str] = {}
        self.disk: Disk | None = None

    def run(self) -> Facts:
        try:
            self._disturb()
            if not self.facts.skipped:
                self._repair()
                self._judge()
        finally:
            processes.end_all(self.state)
        return self.facts

    def start(self, number: int) -> Run:
        piped = "" if number else self.plan.details.get("streams", "")
        return Run(self.folder, self.plan.command, number, self.env, piped)

    def _disturb(self) -> None:
        """The first attempt, with its fault; what it left is looked at before any repair."""
        plan = self.plan
        self._prepare()
        if self.facts.skipped:
            return
        ended = self._with_fault(self.start(0))
        self._look_at(ended)
        saved = saved_update(self.folder)
        if not plan.is_damage:
            self.facts.wrong += judge.half_published(self.folder, self.reference)
        (self.state / HOOK).unlink(missing_ok=True)
        self._between()
        self.saved = 0 if plan.kind in ("checkpoint", "log", "base", "rows") else saved

    def _prepare(self) -> None:
        plan = self.plan
        if not plan.is_tracked:
            file, on = self.folder / "params.yaml", "tracking:\n  enabled: true"
            file.write_text(file.read_text().replace(on, on.replace("true", "false")))
        if "forward_seconds" in plan.details:
            self._slow_down(plan.details["forward_seconds"], max(plan.update, 1))
        elif plan.target == "dvc":  # whether its orphan goes on training shows only after a while
            self._slow_down(0.3, 0)
        if plan.kind in ("enospc", "eio"):
            preloaded = library(self.place)
            if preloaded is None:
                self.facts.skipped = "no C compiler"
                return
            self.disk = Disk(self.folder, self.state, preloaded)
            writes = self.reference["writes"][plan.details["class"]]
            at = 1 + int(plan.details["at"] * max(writes - 1, 0))
            self.disk.fail(plan.details["class"], at, plan.kind)
            self.env = self.disk.env

    def _slow_down(self, seconds: float, after: int) -> None:
        settings = {"forward_seconds": seconds, "after_update": after}
        (self.state / HOOK).write_text(json.dumps(settings))

    def _with_fault(self, run: Run) -> Ended:
        plan, facts = self.plan, self.facts
        if plan.kind == "twice":
            return self._twice(run)
        if self.disk:
            ended = run.wait()
            facts.phase = DISK[plan.details["class"]]
            facts.did = f"{self.disk.hit} failed" if self.disk.hit else ""
            facts.phase = facts.phase if facts.did else "not hit"
            if facts.did and ended.status:
                facts.cannot_save = ended.line
            return ended
        hit = wait_for_fault(run, plan) if plan.phase != "end" else None
        if plan.phase == "end" or (hit is None and plan.is_damage):
            facts.phase = "end"
            return run.wait()
        if hit is None:
            return run.wait()
        facts.phase, update = hit
        facts.did = f"at update {update}" if facts.phase in IN_TRAINING else ""
        self._deliver(run)
        return run.wait()

    def _deliver(self, run: Run) -> None:
        plan = self.plan
        if plan.kind == "pipe":
            run.close_pipes()
        elif plan.is_damage:  # the run is stopped first
            processes.send([*processes.found(self.state)], signal.SIGKILL)
        else:
            self._signal(run)

    def _signal(self, run: Run) -> None:
        plan = self.plan
        is_slow = plan.kind == "slow"
        number = signal.Signals[plan.details["signal"]] if is_slow else SIGNALS[plan.kind]
        is_there = bool(processes.of_part(self.state, "stage"))
        is_training = is_there and self.facts.phase in IN_TRAINING

        def deliver() -> None:
            reached = targets(run, plan.target)
            self.facts.phase = self.facts.phase if reached else "not hit"
            processes.send(reached, number)

        if plan.is_stop and is_training:
            fault = ask_to_stop(run, deliver)
            self.facts.lost += [f"{number.name} to {plan.target}: {fault}"] if fault else []
        else:
            deliver()

    def _twice(self, run: Run) -> Ended:
        """A second run of the same workspace, started while the first is there."""
        time.sleep(self.plan.delay)
        self.facts.phase = processes.phase(self.state)[0]
        second = Run(self.folder, self.plan.command, 1, {})
        if self.plan.details["first_ends"]:
            time.sleep(1.0)
            processes.send(run.group(), signal.SIGINT)
        run.process.wait()
        self.facts.reruns = 1
        self.facts.did = f"first run ended with exit code {run.process.returncode}"
        ended = second.wait()
        self.facts.did += f", second with {ended.status}" + f": {ended.line}" * bool(ended.status)
        return ended

    def _between(self) -> None:
        """What the fault leaves: damaged files, space that is free again."""
        if self.plan.is_damage:
            self.facts.did = damage.apply(self.folder, self.plan) or "no such file yet"
        if self.disk:
            self.disk.free()

    def _look_at(self, ended: Ended) -> None:
        facts, again = self.facts, self.facts.reruns
        if ended.status is None:
            facts.lost.append("did not end")
        if ended.orphaned > 1:  # the update in progress may end
            facts.lost.append(f"trained for {ended.orphaned} updates after the end of its command")
        if ended.left:
            facts.lost.append(f"processes left after the run: {'; '.join(ended.left.values())}")
        if "Traceback (most recent call last)" in ended.said:
            trace = re.findall(r"^\w*(?:Error|Exception|Interrupt)\b.*$", ended.said, re.MULTILINE)
            message = f"traceback in attempt {again}: {(trace or ['?'])[-1][:200]}"
            (facts.notes if self.plan.is_stop and not again else facts.wrong).append(message)

    def _repair(self) -> None:
        """The same command again, after the repair that a message names, until it ends well."""
        facts = self.facts
        for number in range(facts.reruns + 1, facts.reruns + 1 + MOST_RERUNS):
            facts.reruns = number
            ended = self.start(number).wait()
            self._look_at(ended)
            self._look_at_resume(ended)
            if ended.status == 0:
                return
            repair = repairs.find(ended)
            if repair is None:
                status = f"{ended.status} (stage: {ended.stage_status})"
                facts.wrong.append(f"attempt {number} ended with exit code {status}: {ended.line}")
                facts.lost += ["no known repair"]
                return
            if repair.is_refusal:
                facts.refusals.append(ended.line)
            repair.act(self.folder)
        facts.lost.append(f"not finished after {facts.reruns} attempts: {ended.line}")

    def _look_at_resume(self, ended: Ended) -> None:
        """A rerun continues from the newest checkpoint that was whole."""
        saved, self.saved = self.saved, 0
        if saved in (0, UPDATES) or "Running stage 'train" not in ended.said:
            return
        found = re.search(r"continuing after update (\d+)", ended.said)
        if (update := int(found[1] if found else 0)) < saved:
            self.facts.lost.append(f"saved at update {saved}, continued after update {update}")

    def _judge(self) -> None:
        facts, command = self.facts, self.plan.command
        differences = judge.differences(self.folder, self.reference, command)
        if self.plan.is_damage:  # DVC keeps the digests of these checkpoints, not their bytes
            differences = [line for line in differences if "/train/step-" not in line]
        facts.differences += differences
        facts.wrong += judge.unclean(self.folder, command) + judge.leftovers(self.folder)
        if self.plan.is_tracked:
            facts.lost += judge.untracked(self.folder, command)

    def remove(self) -> None:
        for path in (self.folder, self.state):
            shutil.rmtree(path, ignore_errors=True)
