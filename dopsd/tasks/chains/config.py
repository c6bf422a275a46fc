"""Settings of chains."""

from typing import Annotated, ClassVar

from pydantic import Field

from dopsd.core.settings import Count, Whole
from dopsd.tasks.common.config import TaughtTaskConfig


class ChainsConfig(TaughtTaskConfig):
    """Settings of chains of operations: their length, and how many problems a split has."""

    train: Count = 4096  # training problems
    validation: Count = 256  # validation problems
    test: Count = 256  # test problems
    modulus: Annotated[int, Field(ge=2, le=10)] = 5  # results are remainders by this number
    operations: Annotated[int, Field(ge=2, le=6)] = (
        3  # operations, of which each chain has a product
    )
    seed: Whole = 0  # seed of the problems and of their splits
    has_gold_answers: ClassVar[bool] = True
