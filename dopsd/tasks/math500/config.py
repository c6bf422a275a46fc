"""Settings of MATH500."""

from __future__ import annotations

from dopsd.tasks.common.config import RowTaskConfig, Source


class Math500Config(RowTaskConfig):
    train: Source = Source(path="ankner/math-500")
    test: Source = Source(path="HuggingFaceH4/MATH-500", split="test")
