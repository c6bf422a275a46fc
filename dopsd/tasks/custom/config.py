"""Settings of a task of your own: `data.NAME: {type: custom, ...}`."""

from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from dopsd.core.settings import Count, Whole
from dopsd.tasks.common.config import Source, TaskConfig
from dopsd.tasks.common.formats import AnswerFormat, Formats, Text
from dopsd.tasks.custom.verifiers.config import VerifierConfig


def source_or_count(value: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Check a split: a source, or a number of rows to hold out of train."""
    if isinstance(value, dict):
        return Source.model_validate(value)
    if isinstance(value, Source) or (type(value) is int and value >= 1):
        return value
    raise ValueError(
        "expected a source such as {path: data/external/rows.csv}, or a number of rows of train"
        f" from 1, found {value!r:.80}"
    )


def columns_of(template: str) -> list[str]:
    """Return the names in braces of a template."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ and }}}} for braces") from error
    for _, name, specification, conversion in parts:
        if name == "" or specification or conversion:
            raise ValueError(
                "expected the name of a column in braces, without : and ! (rename such a column);"
                " write {{ and }} for braces"
            )
    return [name for _, name, _, _ in parts if name]


Split = Annotated[Source | Count, BeforeValidator(source_or_count)]


class CustomTaskConfig(TaskConfig):
    """Settings of a task of your own: its rows, its prompt, its answers and how they are scored."""

    type: Literal["custom"]  # a task that this section defines
    train: Source  # rows to train on
    validation: Split = 100  # rows, or how many rows of train to hold out
    test: Split = 100  # rows, or how many rows of train to hold out
    seed: Whole = 0  # seed of the draw of held-out rows
    question: Text = "question"  # column of the question
    answer: Text = "answer"  # column of the answer
    solution: Text | None = None  # column of a worked solution; null: the rows have none
    prompt: Text = "{question}"  # the problem as a model gets it; in braces: any column
    instructions: str | None = None  # text before the problem, in prompt_style instructions
    answer_format: Formats = Field([AnswerFormat(tag="answer")])  # the first that occurs counts
    gold_format: AnswerFormat | None = None  # of the answer in its column; null: the whole cell
    verifier: VerifierConfig  # how an answer is scored

    @field_validator("prompt")
    @classmethod
    def prompt_names_columns(cls, template: str) -> str:
        """Require a template with at least one column."""
        if not columns_of(template):
            raise ValueError("expected at least one column in braces, such as {question}")
        return template

    @model_validator(mode="after")
    def prompt_hides_the_answer(self) -> Self:
        """Refuse a prompt that shows the answer or the solution."""
        for name in columns_of(self.prompt):
            column = self.question if name == "question" else name
            if column in (self.answer, self.solution):
                raise ValueError(f"prompt: {{{name}}} would show the answer to the model")
        return self

    @property
    def is_graded(self) -> bool:
        """Whether scores may be partial."""
        return self.verifier.is_graded

    @property
    def has_solutions(self) -> bool:
        """Whether problems come with a worked solution."""
        return self.solution is not None

    @property
    def has_gold_answers(self) -> bool:
        """Whether scores depend on the row's answer, and answers can be found inside `<answer>`."""
        formats = self.answer_format
        return self.verifier.compares and any(f.boxed or f.tag == "answer" for f in formats)

    @property
    def texts(self) -> list[str]:
        """The keys that are set and hold text around the problem."""
        return super().texts + (["instructions"] if self.instructions else [])

    @property
    def files(self) -> dict[str, str]:
        """The local files that the section names in addition to its sources, by key."""
        return super().files | {f"verifier.{k}": v for k, v in self.verifier.files.items()}

    @property
    def sources(self) -> dict[str, Source]:
        """The splits that have rows of their own, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: value for name, value in splits.items() if isinstance(value, Source)}
