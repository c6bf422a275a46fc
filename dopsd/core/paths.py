"""Where files lie: folders of runs and reports, names of the files in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dopsd.core.files import WORK

RUNS = Path("runs")
REPORTS = Path("reports")
BASES = Path("base")  # a folder in it for each embedded base
LOG = "log.jsonl"
ORIGIN = "pretrain.json"  # in a base of `dopsd pretrain`: what it was made from
PUBLISHED = WORK / "publish.json"  # links that the last `dopsd publish` made
EVALUATED = (  # `dopsd evaluate --update` says it, then the update, for who waits for one
    "evaluate: done with checkpoint "
)


def is_base(folder: Path) -> bool:
    """Whether a model lies in this folder itself, or what is left of an embedded one."""
    return any((folder / name).is_file() for name in ("config.json", ORIGIN))


def run_folder(task: str, method: str, seed: int) -> Path:
    return RUNS / task / method / str(seed)


@dataclass(frozen=True)
class RunKey:
    """One task x method x seed: what DVC's stages from `train` on run for."""

    task: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}/{self.method}/{self.seed}"

    @property
    def parts(self) -> tuple[str, str, int]:
        return self.task, self.method, self.seed

    @property
    def folder(self) -> Path:
        return run_folder(self.task, self.method, self.seed)

    @property
    def stage(self) -> str:
        """As DVC names a cell of its matrix."""
        return f"{self.task}-{self.method}-{self.seed}"

    @property
    def key(self) -> str:
        """As servers want names: lowercase letters, digits and dashes."""
        return self.stage.replace("_", "-").lower()

    @property
    def words(self) -> tuple[str, ...]:
        """As the command line takes them."""
        return ("--task", self.task, "--method", self.method, "--seed", str(self.seed))


def report_folder(task: str, method: str, seed: int) -> Path:
    return REPORTS / task / method / str(seed)
