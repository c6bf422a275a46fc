"""Loaded by every Python process of a trial: notes a stage's phase in a file, and makes forward
passes slow where asked.

The folder $CHAOS_STATE holds `hook.json` (what to slow down) and `phases/<pid>` (what each process
is doing now).
"""

import json
import os
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path

STATE = Path(os.environ.get("CHAOS_STATE", "/nowhere"))
IS_TRIAL = "CHAOS_STATE" in os.environ
PHASES = {  # module: {class or function: {method: phase}}
    "dopsd.training.trainer": {
        "Trainer": {"collect": "collecting", "accumulate": "updating", "step": "updating"}
    },
    "dopsd.training.training_folder": {"TrainingFolder": {"save": "saving"}},
    "dopsd.training.resume": {"write_stage_outputs": "publishing"},
    "dopsd.evaluation.evaluator": {"Evaluator": {"_evaluate": "evaluating"}},
    "dopsd.models.llm_policy": {"LlmPolicy": {"hidden": ""}},
}


def asked() -> dict:
    try:
        return json.loads((STATE / "hook.json").read_text())
    except (OSError, ValueError):
        return {}


class Phase:
    """What this process is doing, in a file of its own; a fixed width makes each note one write."""

    def __init__(self) -> None:
        self.handle: int | None = None
        self.stack: list[str] = []
        self.update = 0
        is_of_dopsd = IS_TRIAL and sys.orig_argv[1:3] == ["-m", "dopsd"] and sys.orig_argv[3:]
        self.stage = sys.orig_argv[3] if is_of_dopsd else ""
        if self.stage:
            self.note()

    def note(self) -> None:
        if self.handle is None:
            (STATE / "phases").mkdir(exist_ok=True)
            self.handle = os.open(STATE / "phases" / str(os.getpid()), os.O_WRONLY | os.O_CREAT)
        text = f"{self.stage} {self.stack[-1] if self.stack else 'other'} {self.update}"
        os.pwrite(self.handle, text.ljust(60).encode(), 0)

    def during(self, name: str, function):
        def noted(*words, **named):
            self.update = getattr(words[0], "update", self.update) if words else self.update
            self.stack.append(name)
            self.note()
            try:
                return function(*words, **named)
            finally:
                self.stack.pop()
                self.note()

        return noted

    def slowed(self, function):
        settings = asked()
        seconds, after = settings.get("forward_seconds", 0.0), settings.get("after_update", 0)

        def slow(*words, **named):
            if self.update >= after and self.stack and self.stack[-1] in ("collecting", "updating"):
                time.sleep(seconds)
            return function(*words, **named)

        return slow if seconds else function


PHASE = Phase()


def patch(module) -> None:
    for name, inner in PHASES[module.__name__].items():
        found = vars(module).get(name)
        if found is None:
            continue
        if isinstance(inner, str):
            setattr(module, name, PHASE.during(inner, found))
            continue
        for method, phase in inner.items():
            function = vars(found).get(method)
            if function:
                new = PHASE.during(phase, function) if phase else PHASE.slowed(function)
                setattr(found, method, new)


class Finder:
    """Finds the few modules of PHASES as usual, and patches them after they are executed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name in PHASES else None
        if spec:
            execute = spec.loader.exec_module

            def exec_module(module) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module
        return spec


if IS_TRIAL:
    sys.meta_path.insert(0, Finder)
