"""Settings of MATH500."""

from dopsd.tasks.common.config import RowTaskConfig, Source


class Math500Config(RowTaskConfig):
    """Settings of MATH500."""

    train: Source = Source(path="ankner/math-500")  # rows to train on
    test: Source = Source(path="HuggingFaceH4/MATH-500", split="test")  # rows to test on

    @property
    def has_gold_answers(self) -> bool:
        """Whether a problem has one gold answer: always."""
        return True
