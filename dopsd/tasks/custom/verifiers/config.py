"""Settings of verifiers: `data.NAME.verifier` of a task of your own, by its `type`."""

import shutil
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import regex
from pydantic import BeforeValidator, Field, field_validator

from dopsd.core.errors import unknown
from dopsd.core.files import WORK
from dopsd.core.settings import Count, Section
from dopsd.tasks.common.formats import ANSWER, valid_pattern
from dopsd.tasks.custom.verifiers import row_tests

EXTERNAL = PurePosixPath("data/external")  # the folder of files that DVC watches


def is_external(path: str) -> bool:
    """Return whether a path is one of a file in data/external of this project.

    A rehearsal runs in a folder of its own in the project's work/, with the project's files.
    """
    absolute, here = Path(path).absolute(), Path.cwd()
    roots = [p.parent.parent for p in absolute.parents if p.parts[-2:] == EXTERNAL.parts]
    is_watched = any(root == here or here.is_relative_to(root / WORK) for root in roots)
    return is_watched and ".." not in absolute.parts


def watched(path: str) -> str:
    """Return the path if it is one of a file in data/external, which DVC watches."""
    if not is_external(path):
        raise ValueError(f"expected a file in {EXTERNAL}/, which DVC watches")
    return path


class VerifierSettings(Section):
    """What every verifier has."""

    @property
    def is_graded(self) -> bool:
        """Whether scores may be partial."""
        return False

    @property
    def compares(self) -> bool:
        """Whether scores depend on the row's answer."""
        return True

    @property
    def files(self) -> dict[str, str]:
        """The files that decide scores, by key."""
        return {}

    def cell_fault(self, column: str, cell: str) -> str | None:
        """Return what a cell of one of its columns should be, and is; None if it is sound."""
        return None


class ExactConfig(VerifierSettings):
    """Verifier `exact`: the answer is the row's answer, after a normalisation of both."""

    type: Literal["exact"] = "exact"  # the answer is the same text
    ignore_case: bool = False  # true: upper and lower case are equal
    ignore_punctuation: bool = False  # true: drop punctuation, but for -5, 3.5 and 1/2
    white_space: Literal["keep", "collapse", "drop"] = "collapse"  # collapse: runs become one space
    unicode: Literal["keep", "nfkc"] = "nfkc"  # nfkc: forms of a character are equal; ² stays


class NumberConfig(VerifierSettings):
    """Verifier `number`: the answer is the same number."""

    type: Literal["number"] = "number"  # the answer is the same number: 1,000 is 1000, 3.0 is 3
    tolerance: Annotated[float, Field(ge=0)] = 0.0  # largest difference that counts as equal
    relative_tolerance: Annotated[float, Field(ge=0)] = 0.0  # the same as a share of the number
    decimal: Literal[".", ","] = "."  # the decimal mark; the other one may group thousands
    which: Literal["first", "last"] = "last"  # the number that counts where the answer has several


class ChoiceConfig(VerifierSettings):
    """Verifier `choice`: the answer names the same letter."""

    type: Literal["choice"] = "choice"  # the answer is the same letter: (B), `Answer: b.`
    letters: str = "ABCD"  # the letters of the options: 2 to 26 different capital letters

    @field_validator("letters")
    @classmethod
    def letters_are_capitals(cls, letters: str) -> str:
        """Refuse digits, small letters and repeated ones."""
        if not regex.fullmatch("[A-Z]{2,26}", letters) or len(set(letters)) < len(letters):
            raise ValueError("2 to 26 different capital letters are expected, such as ABCD")
        return letters


class RegexConfig(VerifierSettings):
    """Verifier `regex`: the whole answer matches a regular expression."""

    type: Literal["regex"] = "regex"  # the answer matches a pattern as a whole
    pattern: str = Field(min_length=1)  # a regular expression; {answer}: the row's answer

    @field_validator("pattern")
    @classmethod
    def pattern_compiles(cls, pattern: str) -> str:
        """Refuse what is no regular expression, and a column's name in braces."""
        return with_known_names(valid_pattern(pattern))

    @property
    def compares(self) -> bool:
        """Whether scores depend on the row's answer."""
        return ANSWER in self.pattern


class MathConfig(VerifierSettings):
    """Verifier `math`: the answer is the same expression, by the library math-verify."""

    type: Literal["math"] = "math"  # the answer is the same expression: 0.5 is \frac{1}{2}
    seconds: Count = 5  # time limit of an answer; then it scores 0
    memory_mb: Count = 2048  # memory limit of the library's process


class JsonSchemaConfig(VerifierSettings):
    """Verifier `json_schema`: the answer is JSON that fits a schema."""

    type: Literal["json_schema"] = "json_schema"  # the answer is JSON that fits a schema
    schema_file: str | None = None  # a JSON schema in data/external; null: any JSON
    equals_answer: bool = True  # true: it also equals the row's answer; false: the schema decides

    @field_validator("schema_file")
    @classmethod
    def schema_is_watched(cls, path: str | None) -> str | None:
        """Require a file in data/external."""
        return None if path is None else watched(path)

    @property
    def compares(self) -> bool:
        """Whether scores depend on the row's answer."""
        return self.equals_answer

    @property
    def files(self) -> dict[str, str]:
        """The schema."""
        return {"schema_file": self.schema_file} if self.schema_file else {}


class CommandConfig(VerifierSettings):
    """Verifier `command`: a program of your own scores answers, JSON lines in and out."""

    type: Literal["command"] = "command"  # a program of your own scores answers
    program: list[str] = Field(
        min_length=1
    )  # its words, without a shell; its script is in data/external
    columns: list[str] = Field([])  # columns of the row that the program gets too
    graded: bool = False  # true: scores between 0 and 1 count as partial
    seconds: Count = 10  # time limit of an answer; then it scores 0
    memory_mb: Annotated[int, Field(ge=16, le=10**6)] = (
        1024  # memory limit of each of its processes
    )

    @field_validator("program")
    @classmethod
    def program_is_watched(cls, words: list[str]) -> list[str]:
        """Require a program in data/external, or one that exists and a script there."""
        if is_external(words[0]):
            path = Path(words[0])
            if path.is_file() and path.open("rb").readline(200).endswith(b"\r\n"):
                raise ValueError(
                    f"{path}: its first line ends with a carriage return, so that it cannot start;"
                    " save it with Unix line ends"
                )
            return words
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        if not is_external(script):
            raise ValueError(
                f"expected the script in {EXTERNAL}/, which DVC watches, as the program or right"
                f" after it, such as [python, {EXTERNAL}/score.py]; found {script[:60]!r}"
            )
        if shutil.which(words[0]) is None:
            raise ValueError(f"{words[0]}: no such program")
        return words

    @property
    def is_graded(self) -> bool:
        """Whether scores may be partial."""
        return self.graded

    @property
    def files(self) -> dict[str, str]:
        """Its words that are files in data/external."""
        return {
            f"program.{number}": word
            for number, word in enumerate(self.program)
            if is_external(word)
        }


class PythonTestsConfig(VerifierSettings):
    """Verifier `python_tests`: the answer is a Python program that passes the row's tests."""

    type: Literal["python_tests"] = "python_tests"  # a program that passes the row's tests
    tests: str = "tests"  # column with Python code that raises where the program is wrong
    before: str | None = None  # column with code that stands before the program; null: none
    seconds: Count = 10  # time limit of a program; then it scores 0
    memory_mb: Annotated[int, Field(ge=64, le=10**6)] = 512  # memory limit of each process

    @property
    def columns(self) -> list[str]:
        """The columns that a problem carries."""
        return [self.tests, *([self.before] if self.before else [])]

    def cell_fault(self, column: str, cell: str) -> str | None:
        """Require tests that can fail."""
        found = row_tests.fault_of_tests(cell) if column == self.tests else None
        expected = "Python code that raises where a program is wrong (assert add(1, 2) == 3)"
        return found and f"must be {expected}, or a list of its lines; it has {found}"


TYPES: dict[str, type[VerifierSettings]] = {
    kind.model_fields["type"].default: kind
    for kind in (
        ExactConfig,
        NumberConfig,
        ChoiceConfig,
        RegexConfig,
        MathConfig,
        JsonSchemaConfig,
        CommandConfig,
        PythonTestsConfig,
    )
}


def by_type(value: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Check a verifier's section by the class that its `type` names.

    The union of classes would report an error of each.
    """
    if isinstance(value, VerifierSettings):
        return value
    if not isinstance(value, dict):
        raise ValueError("expected a section, such as {type: exact}")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise ValueError(unknown(f"type {str(kind)[:80]}", TYPES))
    if invalid := [key for key in value if key not in TYPES[kind].model_fields]:
        raise ValueError(unknown(f"{kind}: key {str(invalid[0])[:80]}", TYPES[kind].model_fields))
    return TYPES[kind].model_validate(value)


VerifierConfig = Annotated[
    ExactConfig
    | NumberConfig
    | ChoiceConfig
    | RegexConfig
    | MathConfig
    | JsonSchemaConfig
    | CommandConfig
    | PythonTestsConfig,
    BeforeValidator(by_type),
]


def with_known_names(pattern: str) -> str:
    """Return the pattern if it has no other name in braces than the answer's."""
    others = [name for name in regex.findall(NAME, pattern) if name != ANSWER]
    if others:
        raise ValueError(f"{others[0]} is unknown; only {ANSWER}, the row's answer, is filled in")
    return pattern


NAME = r"(?<!\\[pPN])\{[A-Za-z_]\w*\}"  # a word in braces, which is no quantifier and no \p{class}
