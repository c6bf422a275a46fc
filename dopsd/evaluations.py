"""Evaluations of adapters, cached in work/eval/ by everything that decides them, so that no door computes one twice."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dopsd.checkpoint import ADAPTER, fingerprint, read_adapter
from dopsd.config import Params, Sampling
from dopsd.layout import base_files
from dopsd.models import LlmPolicy, load_policy
from dopsd.models.lora import check_config, load_adapter
from dopsd.progress import WORK, Progress, write_json
from dopsd.provenance import sha256
from dopsd.scoring import Asked, score
from dopsd.tasks import load_task


class Evaluator:
    """Scores adapters on one split of one task; the model is loaded when the first evaluation is not in the cache."""

    def __init__(self, params: Params, task: str, split: str) -> None:
        self.params, self.split = params, split
        self.task = load_task(task, params.data)
        self.problems = self.task.load(split)
        self.policy: LlmPolicy | None = None

    def cached(self, adapter: Path | None, sampling: Sampling) -> Path:
        """work/eval/<adapter digest>.<hash of protocol, data, base and code>.json."""
        digest = sha256(adapter / ADAPTER)[:16] if adapter else "base"
        sections = {"sampling": sampling.model_dump(), "model": self.params.model.model_dump(), "split": self.split}
        sections |= {"bootstrap": self.params.evaluate.bootstrap, "task": self.task.name}
        data = Path("data") / self.task.name / f"{self.split}.jsonl"
        code = ("dopsd.scoring", "dopsd.models", f"dopsd.tasks.{self.task.name}")
        return WORK / "eval" / f"{digest}.{fingerprint(sections, [data, *base_files(self.params)], *code)}.json"

    def reports(self, stage: str, adapters: list[Path | None]) -> dict[str, list[dict[str, Any]]]:
        """For every protocol, one report an adapter (None: the base), in their order."""
        protocols = self.params.evaluate.protocols
        wanted = [(a, s) for s in protocols.values() for a in adapters if not self.cached(a, s).exists()]
        with Progress(stage, len(wanted) * len(self.problems), "problem") as progress:
            for adapter, sampling in wanted:
                self._evaluate(adapter, sampling, progress)
        return {
            name: [json.loads(self.cached(adapter, sampling).read_text()) for adapter in adapters]
            for name, sampling in protocols.items()
        }

    def _evaluate(self, adapter: Path | None, sampling: Sampling, progress: Progress) -> None:
        policy = self.with_adapter(adapter)
        style, resamples = self.params.model.prompt_style, self.params.evaluate.bootstrap
        asked = Asked(self.task, self.problems, self.split, style)
        found = score(policy, asked, sampling, resamples, progress.step)
        write_json(self.cached(adapter, sampling), asdict(found))

    def with_adapter(self, adapter: Path | None) -> LlmPolicy:
        """The policy with this adapter in place; without one it computes as the base."""
        if self.policy is None:
            self.policy = load_policy(self.params.model, self.params.train.lora, 0)
            self.fresh = {k: v.clone() for k, v in self.policy.trainable().items()}
        if adapter is None:
            for name, p in self.policy.trainable().items():
                p.data.copy_(self.fresh[name])
        else:
            weights = read_adapter(adapter)
            check_config(self.policy.adapted, adapter)
            load_adapter(self.policy.adapted, weights)
        return self.policy
