"""The base class of every section of params.yaml, and the types of its values.

Sections are frozen and strict, and refuse unknown keys.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from dopsd.core.errors import is_unicode

LARGEST = 2**63 - 1  # the largest integer of torch and of databases


def plain_name(text: str) -> str:
    """Return the text if it is a plain name.

    Raises:
        ValueError: if it has other characters than letters, digits, spaces and _ . + -, or more
            than 100.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_ .+-]{0,99}", text):
        raise ValueError(
            "expected a name of at most 100 letters, digits, spaces and _ . + - (names become"
            " folders, rows and metrics)"
        )
    return text


def _distinct(values: list[Any]) -> list[Any]:
    """Return the values if no two are equal: a repeated seed would count as another one."""
    if repeated := [value for place, value in enumerate(values) if value in values[:place]]:
        raise ValueError(f"{repeated[0]} is there twice; remove one")
    return values


Distinct = AfterValidator(_distinct)  # of a list
Name = Annotated[str, AfterValidator(plain_name)]
Share = Annotated[float, Field(ge=0, le=1)]  # a fraction, 0 to 1
Whole = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]  # any integer
Count = Annotated[int, Field(ge=1, le=LARGEST)]  # an integer from 1
Natural = Annotated[int, Field(ge=0, le=LARGEST)]  # an integer from 0
Positive = Annotated[float, Field(gt=0)]  # a number above 0
NonNegative = Annotated[float, Field(ge=0)]  # a number from 0
PositiveShare = Annotated[float, Field(gt=0, le=1)]  # a fraction above 0, up to 1
Betas = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    """A section of params.yaml: frozen, strict, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def decisive(self, *ignored: str) -> dict[str, Any]:
        """Return the values by which results are identified."""
        return self.model_dump(exclude=set(ignored))

    @field_validator("*")
    @classmethod
    def is_plain_text(cls, value: object) -> object:
        """Refuse texts with NUL or an unpaired surrogate, which paths and databases cannot hold."""
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a text must not contain the character NUL")
        if isinstance(value, str) and not is_unicode(value):
            raise ValueError("an unpaired surrogate, which is no valid text")
        return value
