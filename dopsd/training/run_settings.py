"""What decides a training run, and the name of its folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.config import kind_of
from dopsd.core.files import WORK
from dopsd.core.fingerprint import fingerprint
from dopsd.models.files import base_files
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.storage import data_files
from dopsd.training.config import AUTO

if TYPE_CHECKING:
    from dopsd.algorithms.common.config import AlgorithmConfig
    from dopsd.core.paths import RunKey
    from dopsd.distributed.config import LaunchConfig
    from dopsd.models.config import ModelConfig
    from dopsd.rollout.config import SamplingConfig
    from dopsd.tasks.common.config import TaskConfig
    from dopsd.training.config import TrainConfig

# Keys of section train on which no update depends.
ENDS: tuple[str, ...] = ("updates", "checkpoint_every", "max_empty_collects", "stop_on_collapse")
ENDS += ("collapse_window", "collapse_drop", "collapse_errors")
# Keys of section train that change the use of memory alone, as sampling.batch_size does.
MEMORY = ("micro_batch_states", "gradient_checkpointing")


@dataclass(frozen=True)
class RunSettings:
    """One training run: its name, and the sections of the packages that it goes through.

    `train` has the values of the algorithm's own section `train` in it.
    """

    key: RunKey
    data: TaskConfig
    model: ModelConfig
    sampling: SamplingConfig
    algorithm: AlgorithmConfig
    train: TrainConfig
    launch: LaunchConfig

    @property
    def kind(self) -> str:
        """The algorithm: of the variant `d_opsd-live_teacher` that is d_opsd."""
        return kind_of(self.key.method)

    @property
    def reason_against_shards(self) -> str | None:
        """Why this run cannot train with a base in parts over processes; None: it can."""
        method = self.key.method
        if self.train.micro_batch_states == AUTO:
            return f"launch.shard: train.micro_batch_states of {method} must be a number"
        if self.algorithm.has_uneven_forwards:
            return (
                f"launch.shard: {method} makes more forwards for some batches than for others:"
                " leave it out"
            )
        return None


def sources_of(run: RunSettings) -> dict[str, str]:
    """Return files or hub names that the algorithm's own section names, by key."""
    return {
        f"method.{run.key.method}.{key}.path": value.path
        for key, value in vars(run.algorithm).items()
        if isinstance(value, Source)
    }


def settings_of(run: RunSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what decides every update of a run, and what decides only where it ends and what it
    keeps.

    What changes the use of memory alone is in neither, and where files lie: their contents count.
    """
    train, model = run.train.model_dump(), run.model
    decisive = {name: value for name, value in train.items() if name not in (*ENDS, *MEMORY)}
    if run.train.schedule == "cosine" or run.algorithm.depends_on_length:
        decisive["updates"] = run.train.updates
    if model.attention == "auto":
        from dopsd.models.loading import resolved  # heavy, and seldom needed

        model = resolved(model)
    algorithm = run.algorithm.model_dump(exclude={"train"})  # which is in `train`
    settings = {
        "model": model.model_dump(exclude={"path"}),
        "sampling": run.sampling.model_dump(exclude={"batch_size"}),
        "train": decisive,
        "task": run.key.task,
        "seed": run.key.seed,
        "method": run.kind,  # so that variants with the same settings share a run
        run.kind: algorithm,
        "scoring": run.data.scoring,
    }
    return settings, {name: train[name] for name in ENDS}


def input_files(run: RunSettings) -> list[Path]:
    """Return files whose contents decide a run: problems, instructions, base, and what the
    algorithm reads.
    """
    files = [*data_files(run.key.task, "train"), *base_files(run.model)]
    files += [Path(run.data.prompt_file)] if run.data.prompt_file else []
    return files + [path for name in sources_of(run).values() if (path := Path(name)).is_file()]


def scratch_folder(run: RunSettings) -> Path:
    """Return work/train-<hash of what decides the updates, data and base>-<hash of where it ends>.

    The code is not in the name, but in the folder's run.json.
    """
    decisive, ends = settings_of(run)
    end = hashlib.sha256(json.dumps(ends, sort_keys=True).encode()).hexdigest()[:8]
    return WORK / f"train-{fingerprint(decisive, input_files(run))}-{end}"
