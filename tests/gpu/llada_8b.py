"""LLaDA-8B's shape on the pretended device: a denoising step, an update, the plan of a collect.

`python -m gpu update --states 14` (with PYTHONPATH=tests) prints JSON: gigabytes, FLOPs, modelled
milliseconds, waits by line. Large tensors have no numbers; ids, masks and keys have.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from random_weights import PROMPT, algorithm, settings

from dopsd.core.types import Rollout
from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest, denoise
from dopsd.training.grad_accumulation import MicroBatches
from dopsd.training.optim import adamw, optimizer_step
from gpu.device import Device
from gpu.roofline import CARDS
from gpu.subject import Subject, make

LIMIT = 2**18  # entries of a tensor with true values; more than LLaDA's vocabulary
GIGA, TERA = 1e9, 1e12
STEPS = 2  # denoising steps that are measured


class Enough(Exception):
    """The measured steps are over."""


class OneProcess:
    """Stands in for accelerate's description of the ranks."""

    num_processes = 1


def ids(count: int) -> torch.Tensor:
    """Return different tokens in main memory, where prompts and rollouts are."""
    return torch.arange(1, count + 1)


def figures(device: Device) -> dict[str, Any]:
    """Return what the device has counted since its last reset."""
    model = device.model
    return {
        "peak_gb": device.memory.peak / GIGA,
        "held_gb": device.memory.held / GIGA,
        "tflop": sum(n for kind, n in model.flops.items() if kind != "vector") / TERA,
        "useful_tflop": model.useful_flops / TERA,
        "modelled_ms": {name: 1e3 * sum(model.times[name].values()) for name in CARDS},
        "useful_utilisation": {name: model.utilisation(name) for name in CARDS},
        "launches": sum(model.launches.values()),
        "syncs": device.syncs.total,
        "syncs_by_line": device.syncs.by_line(),
        "h100_ms_by_kind": {
            kind: [round(1e3 * seconds, 2), model.launches[kind]]
            for kind, seconds in model.times["h100"].most_common()
        },
    }


def rollout(subject: Subject, rows: int) -> dict[str, Any]:
    """Measure STEPS denoising steps of a batch; figures are of one step."""
    device, policy = subject.device, subject.policy
    requests = [GenerationRequest(f"p{i}", 0, ids(PROMPT), i) for i in range(rows)]
    hidden, calls = policy.hidden, [0]

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        if calls[0] == STEPS:
            raise Enough
        if calls[0] == 0:
            device.reset()
        calls[0] += 1
        return hidden(*args, **kwargs)

    policy.hidden = counted  # type: ignore[method-assign]
    try:
        denoise(policy, requests, decoding(subject.params.sampling, 0.9))
    except Enough:
        measured = figures(device)
    finally:
        policy.hidden = hidden  # type: ignore[method-assign]
    for name in ("tflop", "useful_tflop", "launches", "syncs"):
        measured[name] /= STEPS
    measured["modelled_ms"] = {k: v / STEPS for k, v in measured["modelled_ms"].items()}
    return {"rows": rows, "steps_counted": STEPS} | measured


def rollouts_of(count: int) -> list[Rollout]:
    """Return trajectories without numbers of their own: two tokens a step, none ends early."""
    steps = torch.arange(256) // 2
    return [Rollout(f"p{i}", 0, ids(PROMPT), ids(256), steps) for i in range(count)]


def update(subject: Subject, states: int) -> dict[str, Any]:
    """Measure the gradients of one micro-batch, beside the optimizer's moments, and its step."""
    device, policy, train = subject.device, subject.policy, subject.params.train
    method = algorithm(subject.params, subject.policy)
    if train.gradient_checkpointing:
        policy.use_gradient_checkpointing()
    optimizer = adamw(policy.trainable().values(), train)
    optimizer_step(optimizer, OneProcess(), train, 0)  # type: ignore[arg-type]
    method.collector = Selected(rollouts_of(1))
    (planned,) = method.collect(policy, [], 0).updates[0]
    batch = planned.rows(list(range(10, 10 + states)))
    policy.core.train(train.lora.dropout > 0)
    micro_batches = MicroBatches(states, policy.device)
    kept = Activations(device, policy)
    device.reset()
    held = device.memory.held
    micro_batches.gradients(method, policy, [batch], 1.0)
    measured = figures(device)
    kept.remove()
    device.reset()
    optimizer_step(optimizer, OneProcess(), train, 1)  # type: ignore[arg-type]
    policy.core.eval()
    tokens = states * (PROMPT + 256)
    return {
        "states": states,
        "checkpointing": train.gradient_checkpointing,
        "held_before_gb": held / GIGA,
        "activation_bytes": kept.bytes_per_block / tokens / policy.core.config.d_model,
        "gradients": measured,
        "optimizer": figures(device),
    }


class Activations:
    """Bytes that a block keeps for the backward pass, in the student's first forward.

    They are the rise from one block to the next; the first block needs no gradient of its input.
    """

    def __init__(self, device: Device, policy: LlmPolicy) -> None:
        self.device, self.held = device, []
        blocks = list(policy.core.blocks())[1:]
        self.hooks = [block.register_forward_pre_hook(self._see) for block in blocks]

    def _see(self, *_: Any) -> None:
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self.held.append(self.device.memory.held)

    @property
    def bytes_per_block(self) -> float:
        return (self.held[-1] - self.held[0]) / (len(self.held) - 1)

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


class Selected:
    """A collect whose rollouts exist already."""

    seed = 0

    def __init__(self, rollouts: list[Rollout]) -> None:
        self.items = [type("Item", (), {"best": r, "is_kept": True})() for r in rollouts]

    def collect(self, *_: Any) -> list[Any]:
        return self.items

    def summary(self, *_: Any) -> None: ...


def collect(subject: Subject, trajectories: int) -> dict[str, Any]:
    """Measure how the states of a collect are planned; nothing is sampled."""
    method = algorithm(subject.params, subject.policy)
    method.collector = Selected(rollouts_of(trajectories))
    subject.device.reset()
    collected = method.collect(subject.policy, [], 0)
    states = sum(len(batch) for batches in collected.updates for batch in batches)
    return {"trajectories": trajectories, "states": states} | figures(subject.device)


def everything(device: Device) -> dict[str, Any]:
    """Return all figures that the tests compare with estimates and budgets."""
    subject = make(device, settings("train.gradient_checkpointing=false"))
    found: dict[str, Any] = {
        "rollouts": [rollout(subject, rows) for rows in (16, 32, 64)],
        "updates": [update(subject, states) for states in (4, 8, 14)],
        "collects": [collect(subject, trajectories) for trajectories in (1, 4)],
    }
    subject.params = settings("train.gradient_checkpointing=true")
    found["checkpointed"] = update(subject, 14)
    del subject
    gc.collect()  # a model is in cycles
    plain = make(device, settings("train.gradient_checkpointing=false", "model.kernels=torch"))
    return found | {"plain_update": update(plain, 14), "plain_rollout": rollout(plain, 64)}


def modelled(found: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return milliseconds and gigabytes by kernels and case, as benchmarks/gpu names cases."""
    updates = [*found["updates"], found["checkpointed"]]
    return {
        "liger": dict(map(_step, found["rollouts"])) | dict(map(_update, updates)),
        "torch": dict([_step(found["plain_rollout"]), _update(found["plain_update"])]),
    }


def _step(rollout: dict[str, Any]) -> tuple[str, dict[str, float]]:
    name = f"denoising step, {rollout['rows']} rows"
    return name, _rounded(rollout["modelled_ms"]["h100"], rollout["peak_gb"])


def _update(update: dict[str, Any]) -> tuple[str, dict[str, float]]:
    name = f"update, {update['states']} states" + ", checkpointing" * update["checkpointing"]
    parts = [update[part] for part in ("gradients", "optimizer")]
    ms = sum(part["modelled_ms"]["h100"] for part in parts)
    return name, _rounded(ms, max(part["peak_gb"] for part in parts))


def _rounded(ms: float, peak_gb: float) -> dict[str, float]:
    return {"ms": round(ms, 2), "peak_gb": round(peak_gb, 2)}
