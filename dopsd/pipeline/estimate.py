"""What a run will cost at full size: floating-point operations, seconds and gigabytes, from the
shapes alone.

The cost model counts matrix products: 2 a parameter and token forward, the same again for gradients
of activations (frozen weights need none of their own), and attention's two products. Utilisation is
an assumption, and is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.rollout.sampler import HEAD_ENTRIES

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.models.denoiser import DenoiserConfig
    from dopsd.rollout.config import SamplingConfig

GPUS = {  # name: (dense bf16 peak in TFLOP/s, memory in GB), from the makers' data sheets
    "a100-80gb": (312.0, 80.0),
    "h100-80gb": (989.0, 80.0),
    "h200": (989.0, 141.0),
}
UTILISATION = 0.35  # of the peak: an assumption, not a measurement
PETA, GIGA = 1e15, 1e9
# saved for the backward pass, a token, a layer and a unit of width, in bfloat16 (5.0 MB a token at
# 8B)
EAGER_BYTES = 38
ADAPTER_BYTES = 12  # besides: the inputs that adapters with dropout keep, and what was dropped
KEPT_BYTES = 2  # the same with gradient checkpointing: one hidden state a layer


@dataclass(frozen=True)
class Cost:
    """Of one task, method and seed; PFLOP by part, gigabytes on each GPU."""

    rollouts: float
    training: float
    selection: float
    test: float
    memory: dict[str, float]

    @property
    def total(self) -> float:
        return self.rollouts + self.training + self.selection + self.test


@dataclass(frozen=True)
class Facts:
    """Of a task: rollouts that a problem takes with the untrained base, test problems, tokens of a
    prompt.
    """

    attempts: float
    test: int
    prompt: int = 200


@dataclass(frozen=True)
class Shape:
    """Floating-point operations of a model with `length` tokens in its sequence."""

    config: DenoiserConfig
    lora_parameters: int

    @property
    def block_parameters(self) -> int:
        layers = self.config.linear_shapes().values()
        return self.config.n_layers * sum(inputs * outputs for inputs, outputs in layers)

    @property
    def parameters(self) -> int:
        c = self.config
        vocabulary = c.embedding_size * c.d_model * (1 if c.weight_tying else 2)
        return self.block_parameters + vocabulary + (2 * c.n_layers + 1) * c.d_model

    def attention(self, length: int) -> float:
        return 4 * length**2 * self.config.d_model * self.config.n_layers

    def forward(self, length: int) -> float:
        """The trunk, once: the head at the few positions that need it is left out."""
        return 2 * length * self.block_parameters + self.attention(length)

    def state(self, length: int, is_checkpointed: bool) -> float:
        """Teacher forward, student forward with adapter, gradients of activations and of the
        adapter.
        """
        adapter = 2 * length * self.lora_parameters
        student = self.forward(length) + adapter
        backward = 2 * length * self.block_parameters + 2 * self.attention(length) + 2 * adapter
        return self.forward(length) + student + backward + (student if is_checkpointed else 0)


def lora_parameters(config: DenoiserConfig, params: Params) -> int:
    """r x (in + out) for every adapted layer."""
    shapes, lora = config.linear_shapes(), params.train.lora
    return config.n_layers * lora.r * sum(sum(shapes[name]) for name in lora.targets)


def estimate(params: Params, config: DenoiserConfig, facts: Facts) -> Cost:
    """Cost of the d-OPSD run of these settings, if the attempts stay as many and every problem is
    kept.
    """
    shape, t = Shape(config, lora_parameters(config, params)), params.train
    collects = -(-t.updates // params.method.d_opsd.updates_per_trajectory)
    trajectories, length = (
        collects * t.prompts_per_collect,
        facts.prompt + params.sampling.gen_length,
    )
    rollouts = trajectories * facts.attempts * params.sampling.steps * shape.forward(length)
    training = trajectories * _states(params) * shape.state(length, t.gradient_checkpointing)
    selection, test = _evaluations(params, shape, facts)
    return Cost(
        rollouts / PETA,
        training / PETA,
        selection / PETA,
        test / PETA,
        _memory(params, shape, length),
    )


def _states(params: Params) -> int:
    """Recorded states of a trajectory, at most."""
    s, d = params.sampling, params.method.d_opsd
    last = 0 if d.record_last_block else s.steps * s.block_length // s.gen_length
    return min(s.steps - last, d.state_sample or s.steps)


def _evaluations(params: Params, shape: Shape, facts: Facts) -> tuple[float, float]:
    """Base and every checkpoint on validation under the selecting protocol; base and best on test
    under all of them.
    """

    def flops(problems: int, protocol: SamplingConfig) -> float:
        return problems * protocol.steps * shape.forward(facts.prompt + protocol.gen_length)

    protocols, task = params.evaluate.protocols, params.matrix.tasks[0]
    checkpoints = 1 + -(-params.train.updates // params.train.checkpoint_every)
    selecting = checkpoints * flops(
        vars(params.data)[task].validation, protocols[params.select.protocol]
    )
    return selecting, sum(2 * flops(facts.test, protocol) for protocol in protocols.values())


def _memory(params: Params, shape: Shape, length: int) -> dict[str, float]:
    """Gigabytes by what they hold, at the larger of sampling and training."""
    c, t = shape.config, params.train
    linear = (
        0.53 if params.model_of(params.matrix.tasks[0]).quantization == "nf4" else 2
    )  # bytes a parameter; nf4 has one scale for 64 weights
    linear /= params.launch.processes if params.launch.shard else 1
    weights = linear * shape.block_parameters + 2 * (shape.parameters - shape.block_parameters)
    tokens = t.states_at_once * length
    layer = EAGER_BYTES + (ADAPTER_BYTES if t.lora.dropout else 0)
    saved_bytes = (
        KEPT_BYTES * c.n_layers + layer if t.gradient_checkpointing else layer * c.n_layers
    )
    training = (
        tokens * c.d_model * saved_bytes
        + t.states_at_once * params.sampling.block_length * c.embedding_size * 10
    )
    sampling = (
        min(
            HEAD_ENTRIES,
            params.sampling.batch_size * params.sampling.block_length * c.embedding_size,
        )
        * 30
    )
    parts = {
        "weights": weights,
        "adapter and optimizer": 16 * shape.lora_parameters,
        "work": max(training, sampling),
    }
    return {name: size / GIGA for name, size in parts.items()}


def lines(cost: Cost, processes: int, gpus: list[str]) -> list[str]:
    """The estimate as text: where the work goes, then time and memory on each kind of GPU."""
    parts = {
        "rollouts": cost.rollouts,
        "training": cost.training,
        "checkpoints": cost.selection,
        "test": cost.test,
    }
    shares = " + ".join(f"{size:.0f} {name}" for name, size in parts.items())
    output = [f"{cost.total:.0f} PFLOP = {shares}"]
    output.append(
        "an estimate: every problem kept, no answer ended early, no process waiting for another"
    )
    breakdown = ", ".join(f"{name} {size:.1f}" for name, size in cost.memory.items())
    required = sum(cost.memory.values())
    output.append(f"memory of each GPU: about {required:.0f} GB ({breakdown})")
    for name in gpus:
        peak, memory = GPUS[name]
        hours = cost.total * 1e3 / (peak * UTILISATION * processes) / 3600
        verdict = (
            "fits"
            if required < 0.92 * memory
            else f"DOES NOT FIT {memory:.0f} GB: lower micro_batch_states or batch_size"
        )
        output.append(
            f"{processes} x {name}: about {hours:.1f} hours at {UTILISATION:.0%} of its {peak:.0f}"
            f" TFLOP/s; {verdict}"
        )
    return output
