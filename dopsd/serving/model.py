"""Answer a table of problems with dopsd's own sampler."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from dopsd.api.sampling import sample, trace
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.tracking.client import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dopsd.core.types import Rollout
    from dopsd.models.llm_policy import LlmPolicy
    from dopsd.training.run_settings import RunSettings

COLUMNS = ("problem", "prompt")  # two names of the same column


class Table(Protocol):
    """What is needed of MLflow's pandas.DataFrame."""

    def __contains__(self, name: object) -> bool:
        """Return whether there is a column."""

    def __getitem__(self, name: str) -> Iterable[object]:
        """Return a column."""


class ServedModel:
    """A policy with the settings of its run, as MLflow asks it.

    Args:
        policy: base and adapter.
        run: the run's settings.
    """

    def __init__(self, policy: LlmPolicy, run: RunSettings) -> None:
        self.policy, self.run = policy, run
        self.lock = Lock()  # the server answers in several threads, and a policy has one state

    def predict(
        self, model_input: Table, params: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return an answer for each row: `text`, and `trace` if it was asked for.

        Args:
            model_input: a table with the column `problem` or `prompt`.
            params: `temperature` (0: greedy), `seed`, and `trace` (true: the answer's states).

        Raises:
            MlflowException: with status 400 if the task does not take a problem.
        """
        try:
            return self._answers(_texts(model_input), params or {})
        except DopsdError as error:
            raise bad_request(error.coded) from error

    def _answers(self, texts: list[str], params: dict[str, Any]) -> list[dict[str, Any]]:
        """Sample each problem once: equal rows have equal answers."""
        temperature, seed = params.get("temperature", 0.0), params.get("seed", 0)
        problems = list(dict.fromkeys(texts))
        with self.lock:
            rollouts = sample(self.policy, problems, self.run, temperature, seed=seed)
            answers = {
                text: self._answer(rollout, params.get("trace", False))
                for text, rollout in zip(problems, rollouts, strict=True)
            }
        return [answers[text] for text in texts]

    def _answer(self, rollout: Rollout, has_trace: bool) -> dict[str, Any]:
        answer = {"text": self.policy.text.decode(rollout.completion_ids)}
        steps = [step.text for step in trace(self.policy, rollout)] if has_trace else []
        return answer | ({"trace": steps} if has_trace else {})


def _texts(table: Table) -> list[str]:
    names = [name for name in COLUMNS if name in table]
    if len(names) != 1:
        raise DopsdError(
            f"request: expected one of the columns {' and '.join(COLUMNS)}", code=Code.ARGUMENT
        )
    texts = list(table[names[0]])
    if invalid := [text for text in texts if not isinstance(text, str) or not text]:
        raise DopsdError(
            f"request: {names[0]}: expected a text, found {invalid[0]!r}", code=Code.ARGUMENT
        )
    return [str(text) for text in texts]
