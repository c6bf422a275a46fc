"""Settings that every task's section of params.yaml has."""

from typing import Any, Literal

from dopsd.core.settings import Count, Positive, Section, Share, Whole
from dopsd.models.config import ModelOverrides


class Source(Section):
    """Rows of a dataset: a local file, or a dataset on the Hugging Face hub."""

    path: str  # a .jsonl, .json, .csv or .parquet file, or the name of a hub dataset
    name: str | None = None  # configuration of the hub dataset
    split: str = "train"  # split of the hub dataset
    revision: str | None = None  # commit or tag of the hub dataset; null: the newest

    @property
    def is_file(self) -> bool:
        """Whether the path is a local file's, by its ending."""
        return self.path.endswith((".jsonl", ".json", ".csv", ".parquet"))


class PretrainOverrides(Section):
    """Values that a task changes in section `pretrain` for its own embedded base; null: none."""

    updates: Count | None = None  # as pretrain.updates
    learning_rate: Positive | None = None  # as pretrain.learning_rate
    careful_share: Share | None = None  # as pretrain.careful_share


class TaskConfig(Section):
    """Settings of every task: scoring rule, prompt, recipe of the data, and a limit for trials."""

    recipe: Count = 1  # version of the data code; raise it when it makes other problems on purpose
    scoring: Literal["published", "strict"] = "published"  # strict: only the format asked for
    prompt_file: str | None = None  # text file that replaces the instructions; null: the task's own
    limit: Count | None = None  # use only the first problems of each split, for trials; null: all
    model: ModelOverrides | None = None  # what this task changes in section model; null: nothing

    @property
    def has_solutions(self) -> bool:
        """Whether problems come with a worked solution in addition to the answer."""
        return True

    @property
    def has_gold_answers(self) -> bool:
        """Whether a problem has one gold answer, which the task's `answer_text` returns."""
        return False

    @property
    def rewarding(self) -> dict[str, Any]:
        """Settings on which rewards alone depend, as part of what identifies a run."""
        return {}

    @property
    def texts(self) -> list[str]:
        """The keys that are set and hold text around the problem; style compact has none."""
        return ["prompt_file"] if self.prompt_file else []

    @property
    def files(self) -> dict[str, str]:
        """The local files that the section names in addition to its sources, by key."""
        return {"prompt_file": self.prompt_file} if self.prompt_file else {}


class TaughtTaskConfig(TaskConfig):
    """Settings of tasks that have an embedded base of their own."""

    pretrain: PretrainOverrides | None = None  # what it changes in section pretrain; null: nothing


class RowTaskConfig(TaskConfig):
    """Settings of tasks whose problems are rows of a dataset."""

    train: Source  # rows to train on, and to draw validation from
    test: Source  # rows to test on; rows that are also in train are dropped from train
    validation: Count = 256  # rows held out of train
    seed: Whole = 0  # seed of the draw of validation rows
