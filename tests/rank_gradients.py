"""What test_ranks.py runs alone and in two processes: the first collect's gradients, of all."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from dopsd.config.loading import load_params
from dopsd.core.tensor_files import save_tensors
from dopsd.distributed.accelerate_group import all_processes
from dopsd.training.trainer import Trainer


def main(out: Path, method: str = "d_opsd") -> None:
    accelerator = all_processes()
    loop = Trainer(load_params().run("sudoku", method, 0), accelerator)
    generator = torch.Generator().manual_seed(0)
    for (
        p
    ) in loop.parameters.values():  # an adapter that is not the base: gradients in all its weights
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    collected, collect = [], loop.algorithm.collect
    loop.algorithm.collect = lambda *args: collected.append(collect(*args)) or collected[-1]
    loop._collect()
    trajectories = collected[0].stats.counters["trajectories"]
    kept = loop.policy.process_group.all_gather_object([trajectories])
    sizes, gradients = [], {}
    for update, batches in enumerate(loop.waiting):
        sizes.append(loop.policy.process_group.all_gather_object([sum(map(len, batches))]))
        metrics = loop.micro_batches.gradients(
            loop.algorithm, loop.policy, batches, loop._weight(batches)
        )
        for name, p in loop.parameters.items():
            gradients[f"{update}/{name}"] = accelerator.reduce(
                p.grad if p.grad is not None else torch.zeros_like(p), "sum"
            )
            p.grad = None
        loss = torch.tensor(metrics["loss"][0] if "loss" in metrics else 0.0, dtype=torch.float32)
        gradients[f"{update}/loss"] = accelerator.reduce(loss, "sum")
    if accelerator.is_main_process:
        save_tensors(gradients, out)
        out.with_suffix(".json").write_text(
            json.dumps(
                {
                    "states": sizes,
                    "kept": kept,
                    "counters": loop.counters,
                    "sharded": loop.policy.is_locked,
                }
            )
        )
