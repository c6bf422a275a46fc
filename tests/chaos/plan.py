"""What happens in a trial: drawn from the campaign's seed and the trial's number alone."""

import random
from dataclasses import dataclass, field
from typing import Any

TRAINING = ("collecting", "updating", "saving", "publishing")
STAGES = ("evaluating", "evaluate", "select", "test", "report", "between")
UPDATES = 12  # of a trial's run
# how often each comes in a block of trials
KINDS = {"kill": 5, "term": 3, "int": 3, "slow": 2, "pipe": 2, "enospc": 3, "eio": 2}
KINDS |= {"checkpoint": 2, "rows": 1, "adapter": 1, "lock": 1, "evaluation": 2, "log": 1}
KINDS |= {"base": 1, "cache": 1, "twice": 2}
DAMAGES = ("checkpoint", "rows", "adapter", "lock", "evaluation", "log", "base", "cache")
# when the run is stopped before its files are damaged: earlier there would be nothing to damage
WHERE = {
    "checkpoint": ("updating", "collecting", "saving"),
    "log": ("updating", "collecting"),
    "rows": ("updating", "evaluate", "end"),
    "adapter": ("evaluating", "test", "end"),
    "lock": ("updating", "evaluate", "test", "end"),
    "evaluation": ("evaluating", "test"),
    "base": ("updating", "evaluating", "end"),
    "cache": ("test", "end"),
}
DISK = ("work/train-", "work/eval", "runs/", ".dvc/", "reports/", "dvc.lock", "mlflow", "work/")


@dataclass(frozen=True)
class Plan:
    """One trial: when the fault comes (`phase`, `update`), how long after (`delay`), details."""

    number: int
    seed: int
    kind: str
    command: str  # repro: train to report; train: training alone
    phase: str
    update: int
    delay: float
    target: str
    is_tracked: bool  # with MLflow, whose follower takes as long as a training does here
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_damage(self) -> bool:
        return self.kind in DAMAGES

    @property
    def is_stop(self) -> bool:
        """Whether training must save before it ends."""
        return self.kind in ("term", "int", "slow")


def kind_of(seed: int, number: int) -> str:
    """Every block has each kind as often as KINDS says; first comes every kind once."""
    total = sum(KINDS.values())
    once, others = [*KINDS], [kind for kind, count in KINDS.items() for _ in range(count - 1)]
    dice = random.Random(f"{seed} block {number // total}")
    dice.shuffle(once)
    dice.shuffle(others)
    return (once + others)[number % total]


def draw(seed: int, number: int) -> Plan:
    """The trial of this number."""
    kind, dice = kind_of(seed, number), random.Random(f"{seed} {number}")
    command = dice.choice(("repro", "repro", "train"))
    phases = WHERE.get(kind) or ((*STAGES, "preparing") if dice.random() < 0.3 else TRAINING)
    if kind == "slow":
        phases = ("updating", "collecting")
    if command == "train":
        phases = tuple(phase for phase in phases if phase in (*TRAINING, "preparing")) or ("end",)
    if kind in ("evaluation", "enospc", "eio"):  # their faults lie in later stages too
        command, phases = "repro", WHERE.get(kind, phases)
    phase = dice.choice(phases)
    update = dice.randrange(UPDATES - 3)  # the last collect begins after update 9
    delay = dice.choice((0.0, dice.uniform(0.0, 0.05), dice.uniform(0.0, 0.6)))
    details = vars_of(kind, dice)
    if kind == "twice":
        delay = dice.uniform(0.0, 6.0)
    target = target_of(kind, dice)
    if target == "follow":  # it is there while training is
        phase = dice.choice(TRAINING)
    is_mlflow = target == "follow" or details.get("class") == DISK.index("mlflow")
    is_tracked = is_mlflow or dice.random() < 0.4
    return Plan(number, seed, kind, command, phase, update, delay, target, is_tracked, details)


def target_of(kind: str, dice: random.Random) -> str:
    """Whom the signal is for."""
    if kind in ("kill", "term", "int"):
        return dice.choice(("stage", "dvc", "group", "follow" if kind == "kill" else "group"))
    return {"slow": "group", "pipe": "reader"}.get(kind, "run")


def vars_of(kind: str, dice: random.Random) -> dict[str, Any]:
    """What only this kind of fault needs."""
    if kind == "slow":  # a collect is 20 forward passes and more: longer than Slurm's KillWait
        number = dice.choice(("SIGINT", "SIGTERM"))
        return {"signal": number, "forward_seconds": dice.choice((1.0, 3.0))}
    if kind in ("enospc", "eio"):
        return {"class": dice.randrange(len(DISK)), "at": dice.random()}
    if kind == "pipe":
        return {"streams": dice.choice(("stdout", "stderr", "both"))}
    if kind == "twice":
        return {"first_ends": dice.random() < 0.3}
    if kind in DAMAGES:
        how = dice.choice(("flip", "flip", "truncate", "empty"))
        return {"how": how, "which": dice.random(), "at": dice.random()}
    return {}
