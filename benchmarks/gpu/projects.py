"""The projects of real_model.py: how much is done, the settings, and the data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from stages import Stages

from dopsd.config import profiles
from dopsd.config.layout import render
from dopsd.config.params_file import with_changes
from dopsd.tasks.gsm8k.task import Gsm8k

DATA = "data/external"  # of a project
PROTOCOL = "eval"


class Sizes(NamedTuple):
    """How much is done."""

    length: int  # tokens of an answer; half as many steps
    sft_updates: int
    sft_batch: int  # solutions of an update
    updates: int  # of d-OPSD
    prompts: int  # of a collect
    validation: int  # problems
    test: int


SIZES = {
    "countdown": Sizes(64, 500, 64, 30, 32, 256, 512),
    "gsm8k": Sizes(192, 700, 64, 60, 32, 256, 512),
}
TOY = Sizes(64, 4, 4, 4, 2, 6, 6)
SFT = [  # all weights of a model that never saw a mask
    "matrix.methods=[sft]",
    "train.weights=all",
    "train.schedule=cosine",
    "train.warmup_updates=20",
    "train.grad_clip=1.0",
    "train.weight_decay=0.01",
    "method.sft.train.lora=null",
    "method.sft.train.learning_rate=2e-4",
]
D_OPSD = [  # an adapter of 9 MB
    "matrix.methods=[d_opsd]",
    "train.learning_rate=5e-5",
    "train.max_empty_collects=3",
    "train.micro_batch_states=64",
    "train.lora={r: 16, alpha: 16, dropout: 0.0, targets: [q_proj, k_proj, v_proj, up_proj]}",
    "method.d_opsd.updates_per_trajectory=1",
]
QUICK = ["train.micro_batch_states=4", "method.d_opsd.keep=all", "method.d_opsd.attempts=2"]


class Run(NamedTuple):
    """What is asked for, and where it is done."""

    stages: Stages
    folder: Path
    gguf: Path
    rows: Path | None
    task: str
    hardware: str
    is_toy: bool

    @property
    def sizes(self) -> Sizes:
        """The sizes of the task, or of a rehearsal."""
        return TOY if self.is_toy else SIZES[self.task]

    def project(self, name: str, changes: list[str]) -> Path:
        """Make a folder with the data and params.yaml; return it."""
        folder = self.folder / name
        (folder / DATA).mkdir(parents=True)
        if self.rows:
            copy_rows(self.rows, folder / DATA, self.sizes.test)
        self.write_params(folder, changes)
        return folder

    def write_params(self, folder: Path, changes: list[str]) -> None:
        """Write params.yaml: the profile with one short protocol, and these changes."""
        raw = profiles.resolve(f"smollm2-135m-{self.task}", "paper", self.hardware)
        protocol = next(iter(raw["evaluate"]["protocols"].values()))
        protocol |= {"gen_length": self.sizes.length, "steps": self.sizes.length // 2}
        raw["evaluate"]["protocols"] = {PROTOCOL: protocol}
        raw = with_changes(raw, [*changes, *self.common()])
        (folder / "params.yaml").write_text(render(raw))

    def common(self) -> list[str]:
        """Return the changes of both trainings; what a rehearsal changes comes last."""
        size = self.sizes
        return [
            *data_changes(self.task, size),
            f"data.{self.task}.validation={size.validation}",
            f"sampling.gen_length={size.length}",
            f"sampling.steps={size.length // 2}",
            f"select.protocol={PROTOCOL}",
            "tracking.enabled=false",
            *([f"data.{self.task}.limit={size.test}", *QUICK] if self.is_toy else []),
        ]


def data_changes(task: str, size: Sizes) -> list[str]:
    """Return where the problems come from: made here, or the rows of GSM8K."""
    if task == "countdown":
        made = {"generate": 16384, "generate_test": size.test, "largest": 50, "test": "null"}
        return [f"data.countdown.{key}={value}" for key, value in made.items()]
    sources = {split: f"{{path: {DATA}/{split}.jsonl}}" for split in ("train", "test")}
    return [f"data.gsm8k.{split}={source}" for split, source in sources.items()]


def copy_rows(rows: Path, folder: Path, test: int) -> None:
    """Copy GSM8K's rows, few of its test set, and write its solutions in the prompt's layout."""
    train = (rows / "train.jsonl").read_text().splitlines()
    (folder / "train.jsonl").write_text("\n".join(train) + "\n")
    lines = (rows / "test.jsonl").read_text().splitlines()[:test]
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n")
    traces = (json.dumps(trace(**json.loads(line))) for line in train)
    (folder / "traces.jsonl").write_text("\n".join(traces) + "\n")


def trace(question: str, answer: str) -> dict[str, str]:
    """Return a row of GSM8K as a row of `method.sft.traces`."""
    steps, _, number = re.sub(r"<<.*?>>", "", answer).rpartition("####")
    boxed = f"\\boxed{{{number.strip().replace(',', '')}}}"
    response = f"<reasoning>\n{steps.strip()}\n</reasoning>\n<answer>\n{boxed}\n</answer>"
    return {"question": f"{Gsm8k.instructions}\n\n{question.strip()}", "response": response}
