"""Folders of runs and reports, and the names of the files in them."""

from dataclasses import dataclass
from pathlib import Path

from dopsd.core.files import WORK

RUNS = Path("runs")
REPORTS = Path("reports")
BASES = Path("base")  # one folder for each embedded base
LOG = "log.jsonl"
ADAPTED = "adapt.json"  # in a base made by `dopsd adapt`: the run that made it, and its files
ORIGIN = "pretrain.json"  # in a base made by `dopsd pretrain`: its settings, data and recipe
MLFLOW_PAGES = WORK / "publish.json"  # links from the last `dopsd publish`
# start of the line that `dopsd evaluate --update` logs when done; the update's number follows
EVALUATED = "evaluate: done with checkpoint "


def run_folder(task: str, method: str, seed: int) -> Path:
    """Return the folder of a run's results: runs/<task>/<method>/<seed>."""
    return RUNS / task / method / str(seed)


@dataclass(frozen=True)
class RunKey:
    """One task x method x seed, for which DVC's stages from `train` on run."""

    task: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}/{self.method}/{self.seed}"

    @property
    def parts(self) -> tuple[str, str, int]:
        """Task, method and seed."""
        return self.task, self.method, self.seed

    @property
    def folder(self) -> Path:
        """Folder of the run's results."""
        return run_folder(self.task, self.method, self.seed)

    @property
    def stage(self) -> str:
        """Name of the run's cell in DVC's matrix."""
        return f"{self.task}-{self.method}-{self.seed}"

    @property
    def is_tested(self) -> bool:
        """Whether the run has test results."""
        return (self.folder / "test" / "paired.json").is_file()

    @property
    def page(self) -> Path:
        """The run's report as one HTML file."""
        return REPORTS / f"{self.stage}.html"

    @property
    def key(self) -> str:
        """Name of the run for servers: lowercase letters, digits and dashes."""
        return self.stage.replace("_", "-").lower()

    @property
    def words(self) -> tuple[str, ...]:
        """The run as arguments of the command line."""
        return ("--task", self.task, "--method", self.method, "--seed", str(self.seed))


def report_folder(task: str, method: str, seed: int) -> Path:
    """Return the folder of a run's reports: reports/<task>/<method>/<seed>."""
    return REPORTS / task / method / str(seed)
