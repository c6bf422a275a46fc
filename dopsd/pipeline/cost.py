"""`dopsd estimate`, and the start of `dopsd rehearse`: time and memory of the real run on GPUs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from dopsd.config import profiles
from dopsd.config.loading import checked, read_yaml
from dopsd.config.params_file import with_changes
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params


@dataclass(frozen=True)
class Planned:
    """Settings of a run that is planned, from a profile or a file, with changes.

    Attributes:
        profile: Name of the profile; None for the settings of `path`.
        preset: `reference`, `paper` or `small`, for profiles of language models.
        hardware: hardware of the estimate, such as 1x80gb.
        changes: KEY=VALUE changes of the settings.
        path: Settings file, usually params.yaml.
    """

    profile: str | None
    preset: str
    hardware: str
    changes: list[str]
    path: Path

    def read(self) -> tuple[dict[str, Any], Params]:
        """Return the settings as read from YAML, and checked.

        Raises:
            DopsdError: if settings or hardware are wrong.
        """
        profiles.gpus(self.hardware)
        raw = (
            profiles.resolve(self.profile, self.preset, self.hardware)
            if self.profile
            else read_yaml(self.path)
        )
        raw = with_changes(raw, self.changes)
        return raw, checked(raw, "--set" if self.changes else self.path)

    def source(self, full: Params) -> str:
        """Return the words that name where the settings come from."""
        if not self.profile:
            return str(self.path)
        is_embedded = bool(full.pretrain.tasks)
        return (
            self.profile
            if is_embedded
            else f"{self.profile}, preset {self.preset}, {self.hardware}"
        )


def print_estimate(planned: Planned) -> None:
    """Print the estimated cost of a run on GPUs, without running anything.

    Raises:
        DopsdError: if the settings are wrong, or those of the small base, which needs no GPU.
    """
    _, full = planned.read()
    if full.pretrain.tasks:
        raise DopsdError(
            f"estimate: {planned.source(full)}: trains the small base, in minutes on a CPU; name"
            " settings of a language model, such as --profile llada-8b-gsm8k",
            code=Code.OPTIONS,
        )
    sys.stdout.write(f"{planned.source(full)}\n")
    print_cost(full, planned.hardware)


def print_cost(full: Params, hardware: str) -> None:
    """Print the estimated cost of the real run of every method of the matrix.

    The shape is that of the base if its config.json is here, else the published one's.

    Args:
        full: Settings of the real run.
        hardware: GPUs of the estimate.
    """
    from dopsd.pipeline import disk_model
    from dopsd.pipeline.estimate import Facts, estimate, lines
    from dopsd.pipeline.shape import Shape, lora_parameters, size_of
    from dopsd.pipeline.task_sizes import facts

    task = full.matrix.tasks[0]
    config, known = size_of(full.model_of(task)), Facts(**facts(full, task))
    gpus = profiles.gpus(hardware)
    cpu = None if gpus else cpu_speed()
    for method in full.matrix.methods:
        matrix = full.matrix.model_copy(update={"methods": [method]})
        planned = full.model_copy(update={"matrix": matrix})
        cost, own = estimate(planned, config, known), planned.of(method)
        output_lines = [
            "",
            f"at full size, {method} on one task and seed:",
            *lines(cost, full.launch.processes, gpus, known, cpu),
            disk_model.line(own, Shape(config, lora_parameters(config, own))),
        ]
        if not cost.training:
            output_lines.append(f"without its updates: {method} does not count its forwards")
        sys.stdout.write("\n".join(output_lines) + "\n")
    if len(full.runs) > 1:
        total = disk_model.matrix_bytes(full, full.runs) / 1e9
        sys.stdout.write(
            f"\ndisk of all {len(full.runs)} runs on one machine: about {total:.0f} GB\n"
        )
    sys.stdout.flush()  # a rehearsal's stages write to the same file


def cpu_speed() -> float:
    """Measure the operations a second of this machine's CPU, in a float32 matrix product."""
    import torch

    rows, wide, narrow, seconds = 256, 3072, 1024, 0.5
    a, b = torch.randn(rows, narrow), torch.randn(narrow, wide)
    (a @ b).sum()  # starts the threads
    products, start = 0, monotonic()
    while (passed := monotonic() - start) < seconds:
        a @ b
        products += 1
    return products * 2 * rows * wide * narrow / passed
