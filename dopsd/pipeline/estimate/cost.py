"""The cost of a run in operations: rollouts, updates, evaluations, and making the base.

The model counts matrix products. A forward pass takes 2 operations per parameter and token.
Gradients of activations take as many, and so do those of weights; frozen weights need none.
Attention adds two products. Utilisation was measured on one H100, at three sizes of a base.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from dopsd.algorithms.common.config import AlgorithmConfig, Forwards, SelectingConfig, kind_of
from dopsd.algorithms.sft.config import MOST, RATIOS, SftConfig
from dopsd.config.profiles import published_rows
from dopsd.evaluation.race import answers
from dopsd.pipeline.estimate.memory import memory
from dopsd.pipeline.shape import Shape, lora_parameters
from dopsd.tasks.common.storage import DATA

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.models.denoiser import DenoiserConfig
    from dopsd.rollout.config import SamplingConfig

# share of an H100's peak by a base's parameters, in sampling and training (benchmarks/RESULTS.md)
MEASURED = {0.135e9: 0.12, 0.6e9: 0.14, 8.0e9: 0.5}
PETA, GIGA = 1e15, 1e9
ASSUMED = 256  # problems of a split whose rows were never read
STEPS_OF_THRESHOLD = 0.5  # of a protocol's steps, taken where a threshold commits several tokens
MANY = 16  # problems of a process from which its share of them is even


@dataclass(frozen=True)
class Cost:
    """Cost of one task, method and seed."""

    rollouts: float  # PFLOP of sampling rollouts
    training: float  # PFLOP of updates
    selection: float  # PFLOP of scoring checkpoints on the validation split
    test: float  # PFLOP of scoring base and best checkpoint on the test split
    memory: dict[str, float]  # gigabytes on each GPU, by what they hold
    utilisation: float = MEASURED[8.0e9]  # share of a GPU's peak that a base of this size reaches
    adapting: float = 0.0  # PFLOP of making the base of an autoregressive model; it is made once
    recording: float = 0.0  # PFLOP of d3llm's recordings, which all seeds of a task share
    # share of the rollouts that one process makes, in each wave the largest part
    rollout_share: float = 1.0

    @property
    def run(self) -> float:
        """PFLOP of a run, without what is made once for several runs."""
        return self.rollouts + self.training + self.selection + self.test

    @property
    def total(self) -> float:
        """PFLOP of all parts."""
        return self.adapting + self.recording + self.run

    def longest(self, processes: int) -> float:
        """PFLOP of the process with the most work; all parts but rollouts are shared evenly."""
        return (self.total - self.rollouts) / processes + self.rollouts * self.rollout_share


@dataclass(frozen=True)
class Facts:
    """Facts about a task that settings do not hold."""

    attempts: float  # mean number of rollouts per problem with the untrained base
    test: int  # number of test problems
    prompt: int = 200  # tokens of a prompt
    # whether that is a figure of this base, and not the number of attempts
    is_measured: bool = True
    # tokens of an answer up to the end of its last block, in the base's evaluation; None: there is
    # none yet
    used: float | None = None

    @property
    def ends(self) -> str:
        """Where answers end, in words."""
        if self.used is None:
            return "no answer ended early"
        return (
            f"answers that end in the base's {self.used:.0f} tokens, where `stop_after_eos` is on"
        )

    def share_used(self, sampling: SamplingConfig) -> float:
        """Return the share of the steps of an answer that are made before it ends."""
        if self.used is None or not sampling.stop_after_eos:
            return 1.0
        return min(1.0, self.used / sampling.gen_length)


def estimate(params: Params, config: DenoiserConfig, facts: Facts) -> Cost:
    """Estimate the cost of a run of the first method of the matrix on its first task.

    The estimate assumes that the number of attempts stays the same and no problem is dropped.
    The head in forwards of updates is left out.
    """
    adapting = _adapting(params, config, facts)
    params = params.of(params.matrix.methods[0])
    shape = Shape(config, lora_parameters(config, params))
    selection, test = _evaluations(params, shape, facts)
    length = shape.scored_length(facts.prompt, params.sampling.gen_length)
    method: AlgorithmConfig = vars(params.method)[kind_of(params.matrix.methods[0])]
    rollouts, training = _updates(params, method, shape, facts)
    recording = _recording(params, method, shape, facts)
    return Cost(
        rollouts / PETA,
        training / PETA,
        selection / PETA,
        test / PETA,
        {name: size / GIGA for name, size in memory(params, shape, length).items()},
        utilisation(shape.parameters),
        adapting / PETA,
        recording / PETA,
        rollout_share(params, method, facts),
    )


def fails(attempts: float, most: int) -> float:
    """Return the chance of a wrong answer with which `most` attempts take so many on average.

    Every problem is taken to be as hard as the others.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = sum(middle**n for n in range(most)) >= attempts
        low, high = (low, middle) if enough else (middle, high)
    return high


@cache
def rounds(waiting: int, most: int, wrong: float, processes: int) -> float:
    """Return how many rollouts a process makes one after the other until all problems are over.

    As in `rollout.engine`: every wave is shared evenly, and where fewer problems wait than there
    are processes, a wave makes several attempts at each.

    Args:
        waiting: problems of all processes.
        most: attempts that are left.
        wrong: chance of a wrong answer.
    """
    if not waiting or not most:
        return 0.0
    width = min(most, max(1, processes // waiting))
    again = wrong**width
    chances = {
        n: math.comb(waiting, n) * again**n * (1 - again) ** (waiting - n)
        for n in range(1, waiting + 1)
    }
    later = sum(p * rounds(n, most - width, wrong, processes) for n, p in chances.items())
    return math.ceil(waiting * width / processes) + later


def rollout_share(params: Params, config: AlgorithmConfig, facts: Facts) -> float:
    """Return the share of a collect's rollouts that the process with the most of them makes."""
    problems, processes = params.train.prompts_per_collect, params.launch.processes
    if problems > MANY * processes:  # the last wave hardly counts
        return 1 / processes
    most = (config.forwards(params.sampling) or Forwards(0, 0, 0)).rollouts
    if isinstance(config, SelectingConfig):
        wrong = fails(min(facts.attempts, most), most)
        return rounds(problems, most, wrong, processes) / rounds(problems, most, wrong, 1)
    rows = problems * most
    return math.ceil(rows / processes) / rows if rows else 1 / processes


def _recording(params: Params, config: AlgorithmConfig, shape: Shape, facts: Facts) -> float:
    """Return the operations of the base's recordings of all training problems."""
    forwards = config.forwards(params.sampling)
    if not forwards or not forwards.recorded:
        return 0.0
    wrong = fails(facts.attempts, params.method.d_opsd.attempts)
    tries = sum(wrong**n for n in range(forwards.recorded))
    sampling = params.sampling.model_copy(update={"steps": params.sampling.gen_length})
    answer = replace(shape, lora_parameters=0).answer(facts.prompt, sampling)
    return problems(params, params.matrix.tasks[0], "train") * tries * answer


def _adapting(params: Params, config: DenoiserConfig, facts: Facts) -> float:
    """Return the operations of `dopsd adapt`, which trains all weights; 0 if the base is there."""
    from dopsd.pipeline.stages.adapt import is_made

    if not params.adapt.tasks or is_made(params, params.adapt.tasks[0]):
        return 0.0
    shape, total = Shape(config, 0), 0.0
    for name in params.adapt.phases:
        phase = params.of(name)
        total += sum(_updates(phase, vars(phase.method)[kind_of(name)], shape, facts))
    return total


def utilisation(parameters: float) -> float:
    """Return the share of a GPU's peak that a base reaches: measured ones, and a line between two.

    Small bases wait for the host and for the memory of the GPU.
    """
    import numpy as np

    sizes = [math.log(size) for size in MEASURED]
    return float(np.interp(math.log(parameters), sizes, list(MEASURED.values())))


def _updates(
    params: Params, config: AlgorithmConfig, shape: Shape, facts: Facts
) -> tuple[float, float]:
    """Return the operations of rollouts and of updates, as the method counts its forwards."""
    t = params.train
    sampling = config.sampling_of(params.sampling)
    forwards = config.forwards(params.sampling) or Forwards(0, 0, 0)
    collects = -(-t.updates // config.updates_of_collect)  # as if none was learnt again
    sampled = -(-collects // t.reuse) * t.prompts_per_collect
    attempts: float = forwards.rollouts
    if isinstance(config, SelectingConfig):  # attempts may end with the first correct one
        attempts = min(facts.attempts, attempts)
    answer_length = vars(config).get("length") or params.sampling.gen_length
    length = shape.scored_length(facts.prompt, answer_length)
    trained = forwards.trained * shape.trained(length, t.gradient_checkpointing)
    training = forwards.scored * shape.forward(length) + trained
    answer = shape.answer(facts.prompt, sampling) * facts.share_used(sampling)
    looks = config.looks(t.updates) if isinstance(config, SftConfig) else 0
    look = len(RATIOS) * MOST * shape.forward(length)
    learnt = collects * t.prompts_per_collect * training
    return (sampled * attempts + looks) * answer, learnt + looks * look


def _evaluations(params: Params, shape: Shape, facts: Facts) -> tuple[float, float]:
    """Return the operations of selection and of the test.

    Selection scores base and every checkpoint with one protocol on its split, or the leaders of a
    race and the last; the test scores base and best checkpoint with all protocols.
    """
    base = replace(shape, lora_parameters=0)

    def one(protocol: SamplingConfig, model: Shape = shape) -> float:
        return model.answer(facts.prompt, protocol) * facts.share_used(protocol)

    def flops(problems: int, protocol: SamplingConfig, checkpoints: int) -> float:
        return problems * (one(protocol, base) + checkpoints * one(protocol))

    protocols, task = params.test_protocols, params.matrix.tasks[0]
    checkpoints = -(-params.train.updates // params.train.checkpoint_every)
    split, chosen = params.select.split, params.select.protocol
    asked = facts.test if split == "test" else problems(params, task, split)
    raced = 0.0
    if race := params.select.race:
        protocol = params.evaluate.protocols[race.protocol]
        steps = STEPS_OF_THRESHOLD if protocol.threshold else 1
        raced = answers(checkpoints, asked, race) * one(protocol) * steps
        checkpoints = min(checkpoints, race.leaders + 1)
    selecting = raced + flops(asked, protocols[chosen], checkpoints)
    watched = sum(problems(params, name, "test") for name in params.evaluate.watch if name != task)
    tested = sum(
        flops(facts.test, protocol, 1)
        for name, protocol in protocols.items()
        if (split, name) != ("test", chosen)  # has these answers already
    )
    return selecting, tested + flops(watched, protocols[chosen], 1)


def problems(params: Params, task: str, split: str) -> int:
    """Return how many problems a split has: as set, as prepared, as published, or ASSUMED."""
    section = vars(params.data.tasks[task])
    size, path = section.get(split), DATA / task / f"{split}.jsonl"
    if split == "test" and section.get("generate_test"):
        size = section["generate_test"]
    if not isinstance(size, int):
        rows = published_rows(split, task)
        held_out = section.get("validation", 0) if split == "train" else 0
        size = rows - held_out if rows else None
    if size is None:
        size = len(path.read_bytes().splitlines()) if path.is_file() else ASSUMED
    return min(size, section.get("limit") or size)
