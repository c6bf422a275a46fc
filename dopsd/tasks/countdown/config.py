"""Settings of Countdown."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dopsd.core.settings import Natural
from dopsd.tasks.common.config import RowTaskConfig, Source


class CountdownConfig(RowTaskConfig):
    """Settings of Countdown: how many numbers a problem has, and where problems come from."""

    train: Source = Source(path="Jiayi-Pan/Countdown-Tasks-3to4")  # rows to train on
    test: Source = Source(path="data/external/countdown.jsonl")  # rows to test on
    numbers: Annotated[int, Field(ge=2, le=6)] = 3  # numbers per problem; other rows are dropped
    generate: Natural = 0  # training problems to generate instead of reading train; 0: read train

    @property
    def has_solutions(self) -> bool:
        """Whether problems come with a worked solution: never."""
        return False
