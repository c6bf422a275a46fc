"""Time rollouts and d-OPSD updates with LLaDA-8B's shape and random bfloat16 weights, on a GPU.

    python benchmarks/llada_8b.py [--toy] [--set train.micro_batch_states=8]

Measured are one batch of rollouts and the updates of one trajectory, in both presets. Prints JSON
with seconds, peak memory and model-FLOP utilisation against the matmul rate of the same run.
`--toy` checks the script on a CPU in minutes. Micro-batches are `auto` and fill the GPU's memory; a
number shows what an update needs at least.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from shapes import PROMPT, matmul_rate, random_policy

from dopsd.algorithms.common.base import AlgorithmContext
from dopsd.algorithms.common.states import states_by_update
from dopsd.algorithms.registry import load_algorithm
from dopsd.config import profiles
from dopsd.config.loading import checked
from dopsd.config.params import Params
from dopsd.config.params_file import with_changes
from dopsd.core.types import Rollout
from dopsd.models.llada.configuration import TOY, LladaConfig
from dopsd.models.llm_policy import LlmPolicy
from dopsd.models.loading import compile_blocks, kernels_of
from dopsd.pipeline.estimate import Shape, lora_parameters
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest, denoise
from dopsd.training.grad_accumulation import MicroBatches


@dataclass(frozen=True)
class Bench:
    """A policy with the settings of a preset."""

    params: Params
    policy: LlmPolicy
    shape: Shape
    ceiling: float  # measured matmul rate, FLOP/s


def timed(device: torch.device, work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result, the seconds and the peak memory in GB of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0
    return result, time.monotonic() - started, peak


def median(device: torch.device, work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the last result, the median seconds and the largest peak in GB of three calls."""
    calls = [timed(device, work) for _ in range(3)]
    return (
        calls[-1][0],
        sorted(seconds for _, seconds, _ in calls)[1],
        max(peak for *_, peak in calls),
    )


def rollouts(bench: Bench, size: int) -> tuple[list[Rollout], dict[str, float]]:
    """Sample one batch of rollouts; return the rollouts and their figures."""
    device, config = bench.policy.device, bench.shape.config
    prompt = torch.randint(0, config.eos_token_id, (PROMPT,))
    requests = [GenerationRequest(f"p{i}", 0, prompt, i) for i in range(size)]
    d = decoding(bench.params.sampling, 0.9)
    denoise(bench.policy, requests, d)  # warm-up at the measured size
    sampled, seconds, peak = median(device, lambda: denoise(bench.policy, requests, d))
    work = size * d.steps * bench.shape.forward(PROMPT + d.gen_length)
    return sampled, {
        "rows": size,
        "seconds": seconds,
        "peak_gb": peak,
        "mfu": work / seconds / bench.ceiling,
    }


def trajectory(bench: Bench, rollout: Rollout) -> dict[str, float]:
    """Make all updates of one kept trajectory (forward, backward, clip, step); return figures."""
    params, policy, t = bench.params, bench.policy, bench.params.train
    context = AlgorithmContext(NoTask(), policy, params.model, params.sampling, 0, 1, 1, 1)  # type: ignore[arg-type]
    method = load_algorithm("d_opsd", params.method.d_opsd, context)
    if t.gradient_checkpointing:
        policy.use_gradient_checkpointing()
    parameters = list(policy.trainable().values())
    optimizer = torch.optim.AdamW(parameters, lr=5e-6)
    planned = states_by_update([rollout], params.method.d_opsd, method.blocks, (0, 0))
    updates = [states.to(policy.device) for states in planned]
    policy.core.train(t.lora.dropout > 0)
    micro_batches = MicroBatches(t.micro_batch_states, policy.device)

    def one_pass() -> None:
        for states in updates:
            micro_batches.gradients(method, policy, [states], 1.0)
            torch.nn.utils.clip_grad_norm_(parameters, t.grad_clip)
            optimizer.step()
            optimizer.zero_grad()

    one_pass()  # warm-up
    _, seconds, peak = median(policy.device, one_pass)
    policy.core.eval()
    count = sum(len(states) for states in updates)
    work = count * bench.shape.state(
        PROMPT + params.sampling.gen_length, is_checkpointed=False
    )  # useful work only
    figures = {
        "states": count,
        "micro_batch": max(min(len(s), micro_batches.sequences(s)) for s in updates),
        "updates": len(updates),
        "seconds": seconds,
        "peak_gb": peak,
    }
    return figures | {"mfu": work / seconds / bench.ceiling}


class NoTask:
    """Stands in for a task: random weights solve nothing, and the trajectory trains as it is."""

    name, graded, scoring, instructions = "none", False, "published", ""


def settings(preset: str, hardware: str, changes: list[str], is_toy: bool) -> Params:
    """Return the settings of the profile llada-8b-gsm8k with changes."""
    raw = with_changes(profiles.resolve("llada-8b-gsm8k", preset, hardware), changes)
    if is_toy:
        raw = with_changes(
            raw, ["sampling.gen_length=64", "sampling.steps=32", "sampling.batch_size=2"]
        )
    return checked(raw, Path("profile"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hardware", default="1xh200")
    parser.add_argument("--rows", type=int, default=16, help="rollouts in the batch")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceiling = matmul_rate(device, torch.bfloat16, 256 if a.toy else 8192)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    results: dict[str, Any] = {
        "device": name,
        "torch": torch.__version__,
        "matmul_tflops": ceiling / 1e12,
        "toy": a.toy,
    }
    for preset in ("reference", "paper"):
        params = settings(preset, a.hardware, a.changes, a.toy)
        config = LladaConfig(**TOY) if a.toy else LladaConfig()
        config._attn_implementation = params.model.attention
        policy, seconds, peak = timed(
            device,
            lambda p=params, c=config: random_policy(
                c, p.train.lora, device, torch.bfloat16, kernels_of(p.model, device)
            ),
        )
        if params.model.compile:
            compile_blocks(policy.core)
        bench = Bench(params, policy, Shape(config, lora_parameters(config, params)), ceiling)
        sampled, rolled = rollouts(bench, 2 if a.toy else a.rows)
        results[preset] = {"made": {"seconds": seconds, "peak_gb": peak}, "rollouts": rolled}
        results[preset]["trajectory"] = trajectory(bench, sampled[0])
        del policy, bench
    sys.stdout.write(json.dumps(results, indent=1) + "\n")
    if a.out:
        a.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
