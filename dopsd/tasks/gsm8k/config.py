"""Settings of GSM8K."""

from __future__ import annotations

from dopsd.tasks.common.config import RowTaskConfig, Source


class Gsm8kConfig(RowTaskConfig):
    """Settings of GSM8K."""

    train: Source = Source(path="openai/gsm8k", name="main")  # rows to train on
    test: Source = Source(path="openai/gsm8k", name="main", split="test")  # rows to test on

    @property
    def has_gold_answers(self) -> bool:
        """Whether a problem has one gold answer: always."""
        return True
