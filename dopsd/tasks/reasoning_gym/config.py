"""Settings of a task of reasoning-gym: `data.NAME: {type: reasoning_gym, dataset: ...}`."""

import json
from typing import Any, Literal

from pydantic import Field, field_validator

from dopsd.tasks.common import generated

METRICS = generated.METRICS
VERSION = "0.1.25"  # of reasoning-gym, with which the table of docs/reasoning-gym.md was made
# their scorers evaluate the answer as Python, so that it is scored in the sandbox
EVALUATED = {"binary_matrix", "countdown", "intermediate_integration", "n_queens"}
EVALUATED |= {"polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix"}
EVALUATED |= {"string_insertion"}
UNANSWERED = {"boxnet", "rush_hour"}  # the library has a scorer, and no answer with full marks


class ReasoningGymConfig(generated.GeneratedTaskConfig):
    """Settings of a task of reasoning-gym: a dataset, its difficulty, and the library's version."""

    type: Literal["reasoning_gym"]  # a task that this section defines
    dataset: str  # name of the dataset; `dopsd task list reasoning_gym` shows all
    config: dict[str, Any] = Field({})  # settings of the dataset, such as its difficulty
    version: str = VERSION  # of reasoning-gym: another one makes other problems

    @field_validator("config")
    @classmethod
    def config_is_json(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Return the settings as JSON has them: a date as text. Refuse parts without a name."""
        values: dict[str, Any] = json.loads(json.dumps(config, default=str))
        parts = values.get("datasets", [])
        if not isinstance(parts, list) or not all(
            isinstance(p, dict) and "name" in p for p in parts
        ):
            raise ValueError("datasets: expected a list such as [{name: lcm, weight: 1.0}]")
        return values

    @property
    def datasets(self) -> set[str]:
        """The datasets that make the problems: several of a composite."""
        parts = self.config.get("datasets", []) if self.dataset == "composite" else []
        names = {str(part["name"]) for part in parts}
        return names or {self.dataset}

    @property
    def has_solutions(self) -> bool:
        """Whether problems come with an answer to learn."""
        return not self.datasets & UNANSWERED

    @property
    def has_gold_answers(self) -> bool:  # type: ignore[override]  # its base has it for all datasets
        """Whether problems come with an answer that stands inside `<answer>`."""
        return self.has_solutions and any(f.boxed or f.tag == "answer" for f in self.answer_format)
