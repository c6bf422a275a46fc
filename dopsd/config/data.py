"""Sections `data.*`: where each task's problems come from, how they are split, asked and scored."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.config.base import Count, Natural, Section, Whole


class Source(Section):
    """Rows of a dataset: `path` is a .jsonl, .csv or .parquet file, or a name on the Hugging Face hub."""

    path: str
    name: str | None = None  # configuration of the hub dataset
    split: str = "train"
    revision: str | None = None  # commit or tag of the hub dataset; null: its newest


class TaskConfig(Section):
    """What every task has: the rule that scores, a prompt of one's own, and a cut for trials.

    `recipe` stands for the code that makes the problems: raise it when the same settings give others on purpose.
    """

    recipe: Count = 1
    scoring: Literal["published", "strict"] = "published"
    prompt_file: str | None = None
    limit: Count | None = None  # the first so many problems of each split

    @property
    def has_solutions(self) -> bool:
        """Whether problems come with a worked solution beside the answer."""
        return True


class SudokuConfig(TaskConfig):
    """4x4 puzzles with one solution; counts are puzzles, `*_grids` solution grids (of 288) that a split owns."""

    train: Count = 4096
    validation: Count = 256
    test: Count = 256
    validation_grids: Annotated[int, Field(ge=1, le=143)] = 56
    test_grids: Annotated[int, Field(ge=1, le=143)] = 56
    blanks: Annotated[int, Field(ge=1, le=12)] = 8
    seed: Whole = 0
    test_file: str | None = None

    @model_validator(mode="after")
    def grids_are_left(self) -> Self:
        if self.validation_grids + self.test_grids > 287:
            raise ValueError(
                "validation_grids and test_grids must leave grids of the 288 for training"
            )
        return self


class RowTaskConfig(TaskConfig):
    """Tasks that are rows of a dataset: `validation` rows, drawn by `seed`, are held out of train."""

    train: Source
    test: Source
    validation: Count = 256
    seed: Whole = 0


class Gsm8kConfig(RowTaskConfig):
    train: Source = Source(path="openai/gsm8k", name="main")
    test: Source = Source(path="openai/gsm8k", name="main", split="test")


class Math500Config(RowTaskConfig):
    train: Source = Source(path="ankner/math-500")
    test: Source = Source(path="HuggingFaceH4/MATH-500", split="test")


class CountdownConfig(RowTaskConfig):
    """`numbers` a problem; with `generate` > 0 so many training problems are made, and `train` is not read."""

    train: Source = Source(path="Jiayi-Pan/Countdown-Tasks-3to4")
    test: Source = Source(path="data/external/countdown.jsonl")
    numbers: Annotated[int, Field(ge=2, le=6)] = 3
    generate: Natural = 0

    @property
    def has_solutions(self) -> bool:
        return False


class TasksConfig(Section):
    sudoku: SudokuConfig = SudokuConfig()
    gsm8k: Gsm8kConfig = Gsm8kConfig()
    math500: Math500Config = Math500Config()
    countdown: CountdownConfig = CountdownConfig()
