"""What every task's section of params.yaml has."""

from __future__ import annotations

from typing import Literal

from dopsd.core.settings import Count, Section, Whole
from dopsd.models.config import ModelOverrides


class Source(Section):
    """Rows of a dataset: `path` is a .jsonl, .csv or .parquet file, or a name on the Hugging Face
    hub.
    """

    path: str
    name: str | None = None  # configuration of the hub dataset
    split: str = "train"
    revision: str | None = None  # commit or tag of the hub dataset; null: its newest


class TaskConfig(Section):
    """What every task has: the rule that scores, a prompt of one's own, and a cut for trials.

    `recipe` stands for the code that makes the problems: raise it when the same settings give
    others on purpose. `model` is what the task has of its own in section `model`, such as a base in
    base/<task>/; null, or left out: nothing.
    """

    recipe: Count = 1
    scoring: Literal["published", "strict"] = "published"
    prompt_file: str | None = None
    limit: Count | None = None  # the first so many problems of each split
    model: ModelOverrides | None = None

    @property
    def has_solutions(self) -> bool:
        """Whether problems come with a worked solution beside the answer."""
        return True


class RowTaskConfig(TaskConfig):
    """Tasks that are rows of a dataset: `validation` rows, drawn by `seed`, are held out of
    train.
    """

    train: Source
    test: Source
    validation: Count = 256
    seed: Whole = 0
