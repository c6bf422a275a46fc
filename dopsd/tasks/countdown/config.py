"""Settings of Countdown."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dopsd.core.settings import Natural
from dopsd.tasks.common.config import RowTaskConfig, Source


class CountdownConfig(RowTaskConfig):
    """`numbers` a problem; with `generate` > 0 so many training problems are made, and `train` is
    not read.
    """

    train: Source = Source(path="Jiayi-Pan/Countdown-Tasks-3to4")
    test: Source = Source(path="data/external/countdown.jsonl")
    numbers: Annotated[int, Field(ge=2, le=6)] = 3
    generate: Natural = 0

    @property
    def has_solutions(self) -> bool:
        return False
