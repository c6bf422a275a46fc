"""The model behind `mlflow models serve -m models:/dopsd-sudoku@champion --env-manager local`.

MLflow imports this module and calls `_load_pyfunc`. Settings, adapter, base and instructions must
be those of the run: their digests are checked before anything is loaded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Lock
from typing import Any

from dopsd.api.sampling import sample, trace
from dopsd.api.settings import run_settings
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import read_json
from dopsd.core.fingerprint import sha256
from dopsd.core.progress import log
from dopsd.core.types import Rollout
from dopsd.models.adapter_files import shape_of
from dopsd.models.checkpoint_files import base_files
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.tracking.client import bad_request
from dopsd.tracking.flavour import SERVED, SETTINGS
from dopsd.training.run_settings import RunSettings

BASE = "DOPSD_BASE"  # environment variable: folder of the base, if it is not where the run had it
SERVER = "mlflow.pyfunc.scoring_server.app"  # in sys.modules: the server's process loads the model


def _load_pyfunc(path: str) -> ServedModel:
    """Load the model for MLflow; a refusal ends the server's process with one line."""
    try:
        return load(Path(path))
    except DopsdError as error:
        if SERVER not in sys.modules:
            raise
        log(f"dopsd: {error.coded}")
        raise SystemExit(error.exit_code) from None


def load(folder: Path) -> ServedModel:
    """Load a published checkpoint with its base."""
    served = read_json(folder / SERVED, "dopsd publish")
    _check_files(folder, served["settings"], "run `dopsd publish` again")
    run = run_settings(folder / SETTINGS)
    model = run.model.model_copy(update={"path": os.environ.get(BASE) or run.model.path})
    _check_files(folder, served["adapter"], "copy the file from the run's folder best/ again")
    _check_base(model, served["base"])
    _check_files(Path(), served["files"], "start the server in the project's folder")
    policy = load_policy(model, shape_of(folder), 0, None)
    policy.load(folder)
    return ServedModel(policy, run)


def _check_base(model: ModelConfig, digests: dict[str, str]) -> None:
    """Compare the base's files with those of the run: none may differ, be missing or be new."""
    advice = f"start the server in the project's folder, or set {BASE} to the base of the run"
    _check_files(Path(model.path), digests, advice)
    if added := [path for path in base_files(model) if path.name not in digests]:
        raise Code.SERVED_DIFFERS.error(
            f"{added[0]}: the base of the run has no such file; {advice}"
        )


def _check_files(folder: Path, digests: dict[str, str], advice: str) -> None:
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            raise Code.SERVED_DIFFERS.error(f"{path}: no such file (from {Path.cwd()}); {advice}")
        if sha256(path) != digest:
            raise Code.SERVED_DIFFERS.error(
                f"{path}: does not match the digest of the published run; {advice}"
            )


COLUMNS = ("problem", "prompt")  # two names of the same column


class ServedModel:
    """A policy with the settings of its run, as MLflow asks it."""

    def __init__(self, policy: LlmPolicy, run: RunSettings) -> None:
        self.policy, self.run = policy, run
        self.lock = Lock()  # the server answers in several threads, and a policy has one state

    def predict(
        self,
        model_input: Any,  # noqa: ANN401  # MLflow's pandas.DataFrame
        params: dict[str, Any] | None = None,
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


def _texts(table: Any) -> list[str]:  # noqa: ANN401  # as of `predict`
    names = [name for name in COLUMNS if name in table]
    if len(names) != 1:
        raise Code.ARGUMENT.error(f"request: expected one of the columns {' and '.join(COLUMNS)}")
    texts = list(table[names[0]])
    if invalid := [text for text in texts if not isinstance(text, str) or not text]:
        raise Code.ARGUMENT.error(f"request: {names[0]}: expected a text, found {invalid[0]!r}")
    return [str(text) for text in texts]
