"""Settings of MATH500."""

from typing import ClassVar

from dopsd.tasks.common.config import RowTaskConfig, Source


class Math500Config(RowTaskConfig):
    """Settings of MATH500."""

    train: Source = Source(path="ankner/math-500")  # rows to train on
    test: Source = Source(path="HuggingFaceH4/MATH-500", split="test")  # rows to test on
    has_gold_answers: ClassVar[bool] = True
