"""`dopsd estimate`: the cost of a run at full size, from shapes: operations, hours, gigabytes."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapreplace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from dopsd.config import profiles
from dopsd.config.consistency import SIDE_BY_SIDE, matrix_notes
from dopsd.config.loading import checked, read_yaml
from dopsd.config.params import Params
from dopsd.config.params_file import with_changes
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import object_in
from dopsd.core.paths import RUNS
from dopsd.evaluation.config import RaceConfig
from dopsd.models.backends import dtype_of
from dopsd.pipeline.dvc import disk_room
from dopsd.pipeline.estimate.cost import (
    GIGA,
    PETA,
    STEPS_OF_THRESHOLD,
    Cost,
    Facts,
    estimate,
    problems,
)
from dopsd.pipeline.shape import Shape, lora_parameters, size_of
from dopsd.training.pretraining.adapt import form_of

if TYPE_CHECKING:
    from dopsd.models.denoiser import DenoiserConfig


class Gpu(NamedTuple):
    """A GPU by its maker's data sheet (SXM variants), or by tables of others (16 GB)."""

    peak: float  # dense bfloat16, TFLOP/s
    memory: float  # GB


GPUS = {
    "a100-80gb": Gpu(312.0, 80.0),
    "h100-80gb": Gpu(989.0, 80.0),
    "h200": Gpu(989.0, 141.0),
    "rtx-4080": Gpu(97.4, 16.0),
    "a2": Gpu(18.1, 16.0),
}
# share of a matrix product's speed on a CPU (benchmarks/RESULTS.md): Tiny-A2D; SmolLM2-135M
CPU_UTILISATION = {"float32": 0.9, "bfloat16": 0.3}
HOUR = 3600
TRAINED, RESUMED, KEPT = 18, 12, 4  # bytes a weight: bfloat16 and float32, gradient, two moments
SHORT = 50  # tokens of a prompt in style compact
RACE, THRESHOLD = "fast", 0.9  # the protocol of the preset fast's race
FEW = 10  # PFLOP below which two digits are shown
UNEVEN = 1.05  # rollouts that take so much longer than an even share are told


class CpuSpeed(NamedTuple):
    """Operations a second of this machine's CPU, in matrix products of a dtype."""

    speed: float
    dtype: str


def hours(seconds: float) -> str:
    """Return a duration in minutes below an hour, else in hours."""
    minutes = f"{seconds / 60:.0f}"
    if seconds >= HOUR:
        return f"{seconds / HOUR:.1f} hours"
    return f"{minutes} minute{'s' * (minutes != '1')}"


def lines(
    cost: Cost, processes: int, gpus: list[str], facts: Facts, cpu: CpuSpeed | None = None
) -> list[str]:
    """Return the estimate as lines of text.

    Args:
        cpu: the speed of this machine's CPU; None: no line for it.
    """
    once = {"adapting": cost.adapting, "recordings": cost.recording}
    parts = {name: size for name, size in once.items() if size} | {
        "rollouts": cost.rollouts,
        "training": cost.training,
        "checkpoints": cost.selection,
        "test": cost.test,
    }
    form = ".0f" if cost.total >= FEW else ".2g"
    shares = " + ".join(f"{size:{form}} {name}" for name, size in parts.items())
    output = [f"{cost.total:{form}} PFLOP = {shares}"]
    output.append(
        f"assumes: no problem dropped, {facts.ends}"
        + ("" if facts.is_measured else f"; {facts.attempts:.0f} attempts at every problem")
    )
    if cost.rollouts and cost.rollout_share > UNEVEN / processes:
        output.append(
            f"rollouts: {processes} processes need {cost.rollout_share:.0%} of the time of one,"
            f" not {1 / processes:.0%}, because a collect has few problems to share"
        )
    required = sum(cost.memory.values())
    form = ".1f" if required >= 1 else ".2g"
    breakdown = ", ".join(f"{name} {size:{form}}" for name, size in cost.memory.items())
    fixed = required - cost.memory.get("work", 0.0)
    rounded = f"{required:{'.0f' if required >= 1 else '.2g'}}"
    output.append(f"memory of each process: about {rounded} GB ({breakdown})")
    for name in gpus:
        peak, memory = GPUS[name]
        seconds = cost.longest(processes) * 1e3 / (peak * cost.utilisation)
        is_too_large = fixed >= 0.92 * memory and "all weights and optimizer" in cost.memory
        advice = "train.weights: lora" if is_too_large else "lower micro_batch_states or batch_size"
        verdict = "fits" if required < 0.92 * memory else f"DOES NOT FIT {memory:.0f} GB: {advice}"
        output.append(
            f"{processes} x {name}: about {hours(seconds)} at {cost.utilisation:.0%} of its"
            f" {peak:.0f} TFLOP/s; {verdict}"
        )
    if cpu is not None:
        share = CPU_UTILISATION[cpu.dtype]
        adapting = cost.adapting * PETA / (cpu.speed * share)
        of_it = f", {hours(adapting)} of them adapting" if adapting else ""
        output.append(
            f"this machine's CPU: about {hours(cost.total * PETA / (cpu.speed * share))}{of_it} at"
            f" {share:.0%} of its {cpu.speed / 1e9:.0f} GFLOP/s, which a matrix product just"
            " reached"
        )
    return output


@dataclass(frozen=True)
class Planned:
    """Settings of a run that is planned, from a profile or a file, with changes."""

    profile: str | None  # name of the profile; None for the settings of `path`
    preset: str  # `reference`, `paper`, `small` or `fast`, for profiles of language models
    hardware: str  # hardware of the estimate, such as 1x80gb
    changes: list[str]  # KEY=VALUE changes of the settings
    path: Path  # settings file, usually params.yaml

    def read(self) -> tuple[dict[str, Any], Params]:
        """Return the settings as read from YAML, and checked."""
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
    """Print the estimated cost of a run on GPUs, without running anything."""
    _, full = planned.read()
    if full.pretrain.tasks:
        raise Code.OPTIONS.error(
            f"estimate: {planned.source(full)}: trains the small base, in minutes on a CPU; name"
            " settings of a language model, such as --profile llada-8b-gsm8k"
        )
    sys.stdout.write(f"{planned.source(full)}\n")
    print_cost(full, planned.hardware)


def print_cost(full: Params, hardware: str) -> None:
    """Print the estimated cost of every method and task of the matrix, and of all its runs.

    The shape is that of the base if its config.json is here, else the published one's.
    """
    gpus, costs = profiles.gpus(hardware), []
    if gpus and full.model.dtype == "auto":  # whatever this machine is
        full = full.model_copy(
            update={"model": full.model.model_copy(update={"dtype": "bfloat16"})}
        )
    cpu = None if gpus else cpu_speed(dtype_of(full.model))
    for task, method in full.pairs:
        config, known = base_size(full, task), facts_of(full, task)
        matrix = full.matrix.model_copy(update={"tasks": [task], "methods": [method]})
        planned = full.model_copy(update={"matrix": matrix})
        cost, own = estimate(planned, config, known), planned.of(method)
        costs.append(cost)
        where = "one task" if len(full.matrix.tasks) == 1 else task
        output_lines = [
            "",
            f"at full size, {method} on {where} and seed:",
            *lines(cost, full.launch.processes, gpus, known, cpu),
            disk_room.disk_line(own, Shape(config, lora_parameters(config, own))),
        ]
        if cost.adapting:
            size = Shape(config, 0).parameters / GIGA
            trained = TRAINED + KEPT * bool(full.adapt.distill)  # the source is its teacher
            output_lines.append(
                f"adapting, once: at least {trained * size:.1f} GB of memory, and of disk"
                f" {RESUMED * size:.1f} GB for each of the two newest checkpoints of a phase and"
                f" {KEPT * size:.1f} GB for each earlier one"
            )
        raced = estimate(with_race(planned), config, known).total / cost.total
        rests = f"the answers of a race take {STEPS_OF_THRESHOLD:.0%} of their steps"
        if full.select.race:
            output_lines.append(f"assumes: {rests}, if its protocol has a threshold")
        elif raced < 1:
            output_lines.append(
                f"with a race of checkpoints and one protocol in the test, as in the preset fast:"
                f" {raced:.0%} of these PFLOP, if {rests}"
            )
        if not cost.training:
            output_lines.append(f"without its updates: {method} does not count its forwards")
        sys.stdout.write("\n".join(output_lines) + "\n")
    at_once = max(1, profiles.at_once(hardware) // full.launch.processes)
    at_once = min(at_once, len(full.runs))
    if len(full.runs) > 1:
        sums = [hours_of_all(full, costs, gpu, at_once) for gpu in gpus]
        during = 1 if at_once == 1 else len(full.runs)  # side by side all are pruned at the end
        with suppress(DopsdError):  # the size of a base that is yet to be made
            total = disk_room.matrix_bytes(full, full.runs, during) / 1e9
            sums.append(f"disk of all {len(full.runs)} runs on one machine: about {total:.0f} GB")
        sys.stdout.write("\n".join(["", *sums, ""]))
    side_by_side = [SIDE_BY_SIDE.format(count=at_once)] if at_once > 1 else []
    for line in matrix_notes(full) + side_by_side:
        sys.stdout.write(f"note: {line}\n")
    sys.stdout.flush()  # a rehearsal's stages write to the same file


def with_race(full: Params) -> Params:
    """Return settings that race checkpoints and test one protocol, as the preset fast does."""
    name = full.select.protocol
    exact = full.evaluate.protocols[name]
    protocols = {name: exact, RACE: exact.model_copy(update={"threshold": THRESHOLD})}
    changes = {"protocols": protocols, "curve": []}
    select = full.select.model_copy(update={"race": RaceConfig(protocol=RACE)})
    evaluate = full.evaluate.model_copy(update=changes)
    return full.model_copy(update={"evaluate": evaluate, "select": select})


def hours_of_all(full: Params, costs: list[Cost], gpu: str, at_once: int) -> str:
    """Return a line with the hours of all runs, one after the other and side by side.

    Args:
        costs: of a run of each of `full.pairs`.
        at_once: runs that this hardware makes at a time, in the matrix' order; each then makes
            d3llm's recordings itself.
    """
    processes, seeds = full.launch.processes, len(full.matrix.seeds)
    adapting, recording, runs = 0.0, 0.0, []
    for cost in costs:
        speed = GPUS[gpu].peak * cost.utilisation / 1e3  # PFLOP a second
        adapting, recorded = (x / processes / speed for x in (cost.adapting, cost.recording))
        run = cost.longest(processes) / speed - adapting
        runs += [run] * seeds
        recording += recorded * (seeds - 1)
    text = (
        f"all {len(runs)} runs on {processes} x {gpu}, one after the other: about"
        f" {hours(adapting + sum(runs) - recording)}"
    )
    if at_once == 1:
        return text
    ends = [adapting] * at_once
    for run in runs:
        heapreplace(ends, ends[0] + run)
    return f"{text}; {at_once} at a time: about {hours(max(ends))}"


def base_size(full: Params, task: str) -> DenoiserConfig:
    """Return the config of a task's base; of one that is to be adapted, that of its source."""
    model, adapt = full.model_of(task), full.adapt
    if not adapt.tasks or (Path(model.path) / "config.json").is_file():
        return size_of(model)
    from dopsd.models.a2d.convert import converted_parts

    config = converted_parts(Path(adapt.source or ""), form_of(adapt))[0]
    config.block_size = model.block_size
    return config


def cpu_speed(dtype: str) -> CpuSpeed:
    """Measure the speed of this machine's CPU in a matrix product."""
    import torch

    rows, wide, narrow, seconds = 256, 3072, 1024, 0.5
    kind = getattr(torch, dtype)
    a, b = torch.randn(rows, narrow, dtype=kind), torch.randn(narrow, wide, dtype=kind)
    (a @ b).sum()  # starts the threads
    products, start = 0, monotonic()
    while (passed := monotonic() - start) < seconds:
        a @ b
        products += 1
    return CpuSpeed(products * 2 * rows * wide * narrow / passed, dtype)


def facts_of(params: Params, task: str) -> Facts:
    """Return the facts about a task, with a prompt of the usual length.

    Without a figure for the base every problem takes all attempts of d_opsd.
    """
    attempts = profiles.attempts(params.model_of(task).path, task)
    return Facts(
        prompt=SHORT if params.model_of(task).prompt_style == "compact" else Facts.prompt,
        attempts=attempts or float(params.method.d_opsd.attempts),
        is_measured=attempts is not None,
        used=_used(params, task),
        test=problems(params, task, "test"),
    )


def _used(params: Params, task: str) -> float | None:
    """Return the tokens that the base's answers took in stage `evaluate_base`, if it has run.

    It has not where the base is not here: the answers are then those of another one.
    """
    name = params.select.protocol
    if not Path(params.model_of(task).path).is_dir():
        return None
    steps = object_in(RUNS / task / "base.json").get(name, {}).get("steps")
    protocol = params.evaluate.protocols[name]
    return protocol.gen_length * float(steps) / protocol.steps if steps else None
