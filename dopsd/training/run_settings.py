"""The settings and inputs that decide a training run, and the name of its folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.config import kind_of
from dopsd.core.files import WORK
from dopsd.core.fingerprint import fingerprint
from dopsd.models.adapter_files import identity
from dopsd.models.files import base_files
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.storage import data_files
from dopsd.training.start import start_folder

if TYPE_CHECKING:
    from dopsd.algorithms.common.config import AlgorithmConfig
    from dopsd.core.paths import RunKey
    from dopsd.distributed.config import LaunchConfig
    from dopsd.models.config import ModelConfig
    from dopsd.rollout.config import SamplingConfig
    from dopsd.tasks.common.config import TaskConfig
    from dopsd.training.config import TrainConfig

# Keys of section train on which no update depends: how long a run is, and what it keeps.
ENDS = ("updates", "checkpoint_every")
# Keys of section train that only change the use of memory, as sampling.batch_size does.
MEMORY = ("micro_batch_states", "gradient_checkpointing")


@dataclass(frozen=True)
class RunSettings:
    """One training run: its key and the sections of the packages that it uses.

    `train` already contains the algorithm's overrides.
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
        """The algorithm's name: d_opsd for the variant `d_opsd-live_teacher`."""
        return kind_of(self.key.method)

    @property
    def reason_against_sampling(self) -> str | None:
        """Why the algorithm cannot learn from rollouts of section `sampling`; None if it can."""
        reason = self.algorithm.reason_against(self.sampling)
        return None if reason is None else f"method.{self.key.method}: {reason}"

    @property
    def reason_against_task(self) -> str | None:
        """Why the algorithm cannot learn from the task; None if it can."""
        if self.algorithm.wants_gold_answers and not self.data.has_gold_answers:
            return (
                f"method.{self.key.method}: needs one gold answer of a problem, and"
                f" {self.key.task} has none"
            )
        return None

    @property
    def reason_against_shards(self) -> str | None:
        """Why this run cannot train with a sharded base; None if it can."""
        if self.train.weights == "all":
            return (
                f"launch.shard: {self.key.method} trains all weights, and only a frozen base is"
                " split"
            )
        return None


def sources_of(run: RunSettings) -> dict[str, str]:
    """Return the files or hub names in the algorithm's section, by key of params.yaml."""
    return {
        f"method.{run.key.method}.{key}.path": value.path
        for key, value in vars(run.algorithm).items()
        if isinstance(value, Source)
    }


def settings_of(run: RunSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that decide a run's updates, and those that only decide its end.

    Neither holds settings that only change the use of memory, nor paths: contents of files count.

    Returns:
        The settings of every update, and the values of ENDS.
    """
    train, model = run.train.model_dump(), run.model
    unread = [] if run.train.adapter else ["lora"]
    decisive = run.train.decisive("start_from", *unread, *ENDS, *MEMORY)
    if run.train.schedule != "constant" or run.algorithm.depends_on_length:
        decisive["updates"] = run.train.updates
    if model.has_auto:
        from dopsd.models.backends import resolved  # slow to import and rarely needed

        model = resolved(model)
    algorithm = run.algorithm.decisive("train")  # these are part of run.train
    settings = {
        "model": model.decisive("path"),
        "sampling": run.sampling.decisive("batch_size"),
        "train": decisive,
        "task": run.key.task,
        "seed": run.key.seed,
        "method": run.kind,  # the algorithm, so that variants with equal settings share a run
        run.kind: algorithm,
        "scoring": run.data.scoring,
        **run.data.rewarding,
    }
    return settings, {name: train[name] for name in ENDS}


def input_files(run: RunSettings) -> list[Path]:
    """Return the files whose contents decide a run.

    These are the problems, the instructions, the base, the algorithm's own datasets and the
    checkpoint that training starts from.

    Raises:
        DopsdError: if there is no checkpoint to start from.
    """
    files = [*data_files(run.key.task, "train"), *base_files(run.model)]
    files += [Path(run.data.prompt_file)] if run.data.prompt_file else []
    start = start_folder(run)
    files += [identity(start)] if start else []
    return files + [path for name in sources_of(run).values() if (path := Path(name)).is_file()]


def scratch_folder(run: RunSettings) -> Path:
    """Return the run's folder in work/.

    Its name is train-<fingerprint of settings and inputs>-<hash of ENDS>. The code is not part of
    the name: the folder's run.json records it.
    """
    decisive, ends = settings_of(run)
    end = hashlib.sha256(json.dumps(ends, sort_keys=True).encode()).hexdigest()[:8]
    return WORK / f"train-{fingerprint(decisive, input_files(run))}-{end}"
