"""What test_ranks.py and test_world_size.py run in one process and in several: gradients of all
ranks together, and runs that stop.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
from accelerate import Accelerator
from forks import command

from dopsd.config.loading import load_params
from dopsd.core.tensor_files import save_tensors
from dopsd.distributed.process_group import all_processes
from dopsd.training.run_identity import identify
from dopsd.training.trainer import Trainer
from dopsd.training.training_folder import TrainingFolder


def main(out: Path, method: str = "d_opsd") -> None:
    """The gradients of the first collect."""
    accelerator = all_processes()
    loop = Trainer(load_params().run("sudoku", method, 0), accelerator)
    generator = torch.Generator().manual_seed(0)
    for p in loop.parameters.values():  # not the base: gradients in all the adapter's weights
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    collected, collect = [], loop.algorithm.collect
    loop.algorithm.collect = lambda *args: collected.append(collect(*args)) or collected[-1]
    loop.collect()
    trajectories = collected[0].stats.counters["trajectories"]
    kept = loop.policy.process_group.all_gather_object([trajectories])
    _write(loop, accelerator, out, kept)


def resumed(out: Path, method: str = "d_opsd") -> None:
    """The gradients of the updates that wait in the run's newest checkpoint."""
    accelerator, run = all_processes(), load_params().run("sudoku", method, 0)
    loop = Trainer(run, accelerator)
    with TrainingFolder(identify(run).folder, accelerator) as folder:
        folder.resume(loop.load_state, loop.settings.checkpoint_every)
    _write(loop, accelerator, out, [])


def _write(loop: Trainer, accelerator: Accelerator, out: Path, kept: list[int]) -> None:
    sizes, gradients = [], {}
    for update, batches in enumerate(loop.waiting):
        sizes.append(loop.policy.process_group.all_gather_object([sum(map(len, batches))]))
        metrics = loop.micro_batches.gradients(
            loop.algorithm, loop.policy, batches, loop._denominator(batches)
        )
        for name, p in loop.parameters.items():
            found = p.grad if p.grad is not None else torch.zeros_like(p)
            gradients[f"{update}/{name}"] = accelerator.reduce(found, "sum")
            p.grad = None
        loss = torch.tensor(metrics["loss"][0] if "loss" in metrics else 0.0, dtype=torch.float32)
        gradients[f"{update}/loss"] = accelerator.reduce(loss, "sum")
    own = loop.micro_batches.size, loop.micro_batches.tokens
    micro_batches = loop.policy.process_group.all_gather_object([own])
    if accelerator.is_main_process:
        save_tensors(gradients, out)
        told = {"states": sizes, "kept": kept, "counters": loop.counters}
        told |= {"sharded": loop.policy.needs_lockstep, "sizes": micro_batches}
        out.with_suffix(".json").write_text(json.dumps(told))


def without_memory(place: str, most: int) -> None:
    """Train, where passes of rank 1 over more sequences have no memory."""
    if os.environ["RANK"] == "1":
        from dopsd.training import trainer

        policy_of = trainer.policy_of

        def limited(*args: object) -> object:
            policy = policy_of(*args)
            policy.core.blocks()[1].register_forward_hook(hook)
            return policy

        def refuse(*_: object) -> None:
            raise torch.OutOfMemoryError("no room")

        def hook(block: object, inputs: object, hidden: torch.Tensor) -> None:
            if hidden.requires_grad and len(hidden) > most:
                refuse() if place == "forward" else hidden.register_hook(refuse)

        trainer.policy_of = limited
    command("train")


def stopped_before(update: int, method: str = "d_opsd") -> None:
    """Train until rank 0 gets a signal, in the update after that one.

    used-RANK has a line for each collect and each update that this rank finishes.
    """
    collect, step = Trainer.collect, Trainer.accumulate
    used = Path(f"used-{os.environ.get('RANK', '0')}")

    def write(*values: object) -> None:
        with used.open("a") as out:
            out.write(json.dumps(values) + "\n")

    def collecting(self: Trainer) -> None:
        number = self.counters["collects"]
        collect(self)
        problems = [problem.id for problem in self.order.of(number)]
        write("collect", number, problems)

    def stepping(self: Trainer) -> object:
        if self.update == update and self.accelerator.is_main_process:
            os.kill(os.getpid(), signal.SIGTERM)
        batches = self.waiting[0]
        before = [sum(map(len, batches)), sum(float(batch.weight.sum()) for batch in batches)]
        metrics = step(self)
        write("update", self.update, *before)
        return metrics

    Trainer.collect, Trainer.accumulate = collecting, stepping
    command("train", "--method", method)
