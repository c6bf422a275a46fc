"""What every section of params.yaml has: frozen, strict, no unknown keys; and the kinds of numbers
and names in them.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

LARGEST = 2**63 - 1  # what torch and a database take for a whole number


def plain_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_ .+-]{0,99}", text):
        raise ValueError(
            "expected letters, digits and _ . + - in a name, 100 at most: it names folders, rows"
            " and metrics"
        )
    return text


Name = Annotated[str, AfterValidator(plain_name)]
Share = Annotated[float, Field(ge=0, le=1)]
Whole = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Natural = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[float, Field(gt=0)]
Betas = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def no_zero_byte(cls, value: object) -> object:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a text must not contain the character NUL")
        return value
