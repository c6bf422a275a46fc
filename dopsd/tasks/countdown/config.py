"""Settings of Countdown."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dopsd.core.settings import Count, Natural
from dopsd.tasks.common.config import RowTaskConfig, Source, TaughtTaskConfig


class CountdownConfig(TaughtTaskConfig, RowTaskConfig):
    """Settings of Countdown: how many numbers a problem has, and where problems come from."""

    train: Source = Source(path="Jiayi-Pan/Countdown-Tasks-3to4")  # rows to train on
    test: Source | None = Source(  # type: ignore[assignment]  # null: generate_test
        path="data/external/countdown.jsonl"
    )
    numbers: Annotated[int, Field(ge=2, le=6)] = 3  # numbers per problem; other rows are dropped
    generate: Natural = 0  # training problems to generate instead of reading train; 0: read train
    generate_test: Natural = 0  # test problems to generate instead of reading test; 0: read test
    largest: Count = 100  # largest number of a generated problem; targets are 1 to 100
    operators: Annotated[str, Field(pattern=r"^[-+*/]+$")] = (
        "+-*/"  # operations of generated problems
    )

    @property
    def has_solutions(self) -> bool:
        """Whether problems come with a worked solution: those that are generated do."""
        return self.generate > 0

    @model_validator(mode="after")
    def has_a_test_source(self) -> Self:
        """Require exactly one source of test problems, and generated ones for training as well."""
        if (self.test is None) != (self.generate_test > 0):
            raise ValueError("name a file in test, or set test to null and generate_test above 0")
        if self.generate_test and not self.generate:
            raise ValueError("generate_test needs generate: only then do splits share no numbers")
        return self
