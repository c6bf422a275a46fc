"""What identifies a run: the settings, inputs and code that decide it, recorded in run.json.

Settings and inputs name the run's training folder in work/. The code is not part of the name.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dopsd.algorithms.registry import ALGORITHMS, FAMILIES
from dopsd.core.files import WORK, digest, object_in
from dopsd.core.fingerprint import fingerprint, folder_of, recipe, sha256
from dopsd.models.adapter_files import identity
from dopsd.models.checkpoint_files import base_files
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.storage import data_files
from dopsd.tasks.registry import package_of
from dopsd.training.run_settings import ADAPTING, MEMORY, RunSettings
from dopsd.training.start import start_folder

IDENTITY = "run.json"  # which settings, inputs and code trained a folder
KEYS = {"settings", "ends", "inputs", "code", "history", "cells"}  # of run.json
# Keys of section train on which no update depends: how long a run is, and what it keeps.
ENDS = ("updates", "checkpoint_every")
# read with rollouts alone; such a run has stop_on_collapse false
UNSAMPLED = ["collapse_window", "collapse_drop", "collapse_errors", "max_empty_collects"]
# whose recipe numbers decide a run, beside those of its task and its algorithm
ROOMS = ["core", "distributed", "models", "tasks.common", "rollout", "algorithms.common"]
ROOMS += ["training"]
UNKNOWN = "unknown"  # stands for the code of a folder whose run.json is missing or damaged


def read_identity(folder: Path) -> dict[str, Any]:
    """Read a folder's run.json; return an empty dict if it is missing or damaged."""
    record = object_in(folder / IDENTITY)
    return record if record.keys() >= KEYS else {}


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
    is_adapting = run.key.method == ADAPTING  # learns given texts: nothing is sampled or scored
    unread += UNSAMPLED if is_adapting else []
    decisive = run.train.decisive("start_from", *unread, *ENDS, *MEMORY)
    if run.train.schedule != "constant" or run.algorithm.depends_on_length:
        decisive["updates"] = run.train.updates
    if model.has_auto:
        from dopsd.models.backends import resolved  # slow to import and rarely needed

        model = resolved(model)
    algorithm = run.algorithm.decisive("train")  # these are part of run.train
    sampling = run.sampling.decisive("batch_size", "min_rows")
    if is_adapting:
        sampling = {key: sampling[key] for key in ("gen_length", "prefill", "max_prompt_tokens")}
    settings = {
        "model": model.decisive("path"),
        "sampling": sampling,
        "train": decisive,
        "task": run.key.task,
        "seed": run.key.seed,
        "method": run.kind,  # the algorithm, so that variants with equal settings share a run
        run.kind: algorithm,
    }
    settings |= {} if is_adapting else {"scoring": run.data.scoring, **run.data.rewarding}
    return settings, {name: train[name] for name in ENDS}


def input_files(run: RunSettings) -> list[Path]:
    """Return the files whose contents decide a run.

    These are the problems, the instructions, the base, the algorithm's own datasets and the
    checkpoint that training starts from.
    """
    files = [*data_files(run.key.task, "train"), *base_files(run.model)]
    files += [Path(run.data.prompt_file)] if run.data.prompt_file else []
    start = start_folder(run)
    files += [identity(start)] if start else []
    return files + [path for name in sources_of(run).values() if (path := Path(name)).is_file()]


@cache
def code_of(task: str, algorithm: str) -> dict[str, int]:
    """Return the recipe numbers of the packages that train this algorithm on this task."""
    folders = (algorithm, *FAMILIES.get(algorithm, ()))
    packages = [*(f"dopsd.{room}" for room in ROOMS), package_of(task)]
    packages += [ALGORITHMS.packages[name] for name in folders]
    return {name: recipe(folder_of(name)) for name in packages}


@dataclass(frozen=True)
class RunIdentity:
    """Who a run is: what decides its updates, and the folder in work/ that is named after it."""

    run: RunSettings
    settings: dict[str, Any]  # those of every update
    ends: dict[str, Any]  # the values of ENDS
    inputs: dict[str, str]  # digests of the files that decide it
    folder: Path  # its training folder, train-<fingerprint of settings and inputs>-<hash of ends>

    @property
    def start(self) -> dict[str, str]:
        """Folder and digest of the checkpoint that it starts from; empty: the base."""
        folder = start_folder(self.run)
        if folder is None:
            return {}
        digest = self.inputs[identity(folder).as_posix()]
        return {"started_from": folder.as_posix(), "start": digest}

    @cached_property
    def code(self) -> dict[str, int]:
        """Recipe numbers of the packages that train it."""
        return code_of(self.run.key.task, self.run.kind)

    @property
    def of_any_length(self) -> list[Path]:
        """The training folders of this run with this and other values of ENDS."""
        return sorted(WORK.glob(f"{self.folder.name.rpartition('-')[0]}-*"))

    def has_made(self, outputs: dict[str, Any]) -> bool:
        """Tell whether a train.json is of these settings and inputs, whatever its code."""
        return bool(outputs.get("fingerprint") == self.folder.name)

    def is_current(self, outputs: dict[str, Any]) -> bool:
        """Tell whether a train.json is of these settings, inputs and this code."""
        return self.has_made(outputs) and bool(outputs.get("code") == digest(self.code))

    @property
    def first_code(self) -> str:
        """Digest of the code of the first update.

        It comes from the run in training, else from the finished run, else from the current code.
        """
        if history := read_identity(self.folder).get("history"):
            return str(history[0]["code"])
        outputs = object_in(self.run.key.folder / "train.json")
        return str(outputs["first_code"]) if self.is_current(outputs) else digest(self.code)


def identify(run: RunSettings) -> RunIdentity:
    """Find out who a run is."""
    (settings, ends), files = settings_of(run), input_files(run)
    folder = WORK / f"train-{fingerprint(settings, files)}-{digest(ends)[:8]}"
    inputs = {path.as_posix(): sha256(path) for path in files}
    return RunIdentity(run, settings, ends, inputs, folder)
