"""Settings of GSM8K."""

from __future__ import annotations

from dopsd.tasks.common.config import RowTaskConfig, Source


class Gsm8kConfig(RowTaskConfig):
    train: Source = Source(path="openai/gsm8k", name="main")
    test: Source = Source(path="openai/gsm8k", name="main", split="test")
