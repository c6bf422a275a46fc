"""`dopsd train --task sudoku --method d_opsd --seed 0`: the training loop, the same for every method.

It alone knows accumulation, clipping, ranks (also those with nothing to train on), checkpoints and resume. Work goes
to work/<fingerprint>/; the finished run is copied to runs/<task>/<method>/<seed>/train/.
"""

from __future__ import annotations

import math
import os
import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from dopsd.batches import Batch
from dopsd.collapse import Watch
from dopsd.config import Params, Train
from dopsd.errors import DopsdError
from dopsd.keyed import text_key
from dopsd.layout import cell_folder, scratch_folder
from dopsd.methods import load_method
from dopsd.models import load_policy
from dopsd.progress import Progress, say
from dopsd.runfolder import Interrupts, RunFolder, followed, publish_run
from dopsd.scoring import Asked
from dopsd.tasks import load_task
from dopsd.types import Problem, Sums

if TYPE_CHECKING:
    from accelerate import Accelerator


def run(params: Params, task_name: str, method_name: str, seed: int) -> None:
    accelerator, params = _accelerator(), params.of(method_name)
    scratch = scratch_folder(params, task_name, method_name, seed)
    loop = Loop(params, task_name, method_name, seed, accelerator)
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(scratch, accelerator))
        folder.resume(loop)
        if params.tracking.enabled and accelerator.is_main_process:
            stack.enter_context(followed(task_name, method_name, seed, scratch))
        advance_to_the_end(loop, folder)
    if accelerator.is_main_process:
        publish_run(scratch, cell_folder(task_name, method_name, seed) / "train", params.train.checkpoint_every)


def advance_to_the_end(loop: Loop, folder: RunFolder) -> None:
    settings = loop.settings
    with Interrupts() as interrupts, Progress("train", settings.updates, "update", str(folder.scratch)) as progress:
        progress.resume_at(loop.update)
        while not loop.is_over:
            progress.step(note=loop.advance(folder))
            is_due = loop.update % settings.checkpoint_every == 0 or loop.is_over
            if interrupts.agree(loop.accelerator) or is_due:
                folder.save(loop)
            interrupts.stop_if_caught(folder.scratch)


def _accelerator() -> Accelerator:
    """All the processes that torchrun started, or a stop: without `cpu` accelerate ignores them where there is no GPU."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    asked = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != asked:
        raise DopsdError(
            f"train: {asked} processes were started, but they see {accelerator.num_processes}; start with torchrun"
        )
    return accelerator


def rate(update: int, settings: Train) -> float:
    """Factor of the learning rate: linear warm-up from 0 at the first update, then constant or half a cosine to 0."""
    warmup = settings.warmup_updates
    if update < warmup:
        return update / warmup
    if settings.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (update - warmup) / max(1, settings.updates - warmup)))


class Loop:
    """State of a run between two updates: everything that a checkpoint must bring back."""

    def __init__(self, params: Params, task: str, method: str, seed: int, accelerator: Accelerator) -> None:
        if accelerator.num_processes > params.train.prompts_per_collect:
            raise DopsdError(
                f"train.prompts_per_collect: {params.train.prompts_per_collect} problems leave some of the "
                f"{accelerator.num_processes} ranks without one; use at least as many as ranks"
            )
        self.settings, self.seed, self.accelerator = params.train, seed, accelerator
        torch.manual_seed(text_key("dropout", seed, accelerator.process_index) & 0x7FFFFFFF)
        self.task = load_task(task, params.data)
        self.problems = self.task.load("train")
        if params.train.prompts_per_collect > len(self.problems):
            raise DopsdError(f"train.prompts_per_collect must be at most the {len(self.problems)} training problems of {task}")
        self.policy = load_policy(params.model, params.train.lora, seed)
        if self.settings.gradient_checkpointing:
            self.policy.use_gradient_checkpointing()
        cut = Asked(self.task, self.problems, "train", params.model.prompt_style).share_cut(self.policy, params.sampling)
        if cut:
            say(f"train: {cut:.0%} of the prompts are cut to their last {params.sampling.max_prompt_tokens} tokens")
        self.method = load_method(method, params, self.task, self.policy, seed)
        self.parameters = self.policy.trainable()
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=self.settings.learning_rate,
            betas=(self.settings.betas[0], self.settings.betas[1]),
            weight_decay=self.settings.weight_decay,
        )
        self.update = self.empty_in_a_row = 0
        self.counters = dict.fromkeys(("collects", "empty_collects", "trajectories", "rollouts", "sampled_tokens"), 0)
        self.waiting: list[list[Batch]] = []
        self.orders: dict[int, list[int]] = {}
        self.gathered = Sums()
        s = self.settings
        self.watch = Watch(s.collapse_window, s.collapse_drop, s.prompts_per_collect, s.collapse_errors)

    @property
    def is_over(self) -> bool:
        return self.update >= self.settings.updates or (self.settings.stop_on_collapse and self.watch.is_collapsed)

    def advance(self, folder: RunFolder) -> str:
        """One optimizer update, after a collect if no batches wait. Returns figures for the progress line."""
        started = time.monotonic()
        while not self.waiting:
            self._collect()
        metrics = self._step(self.waiting.pop(0))
        metrics.merge(self.gathered)
        self.gathered = Sums()
        self.update += 1
        means = self._over_ranks(metrics).means()
        if "first_attempt_score" in means and self.watch.see(means["first_attempt_score"]) and self.accelerator.is_main_process:
            say(self._collapse())
        if self.watch.is_collapsed:
            means["collapsed"] = 1.0
        counts = {f"count/{name}": value for name, value in self.counters.items()}
        folder.log(self.update, means | counts, time.monotonic() - started)
        kept, loss = means.get("best_score"), means["loss"]
        return f"loss {loss:.4f}" + (f"  best of attempts {kept:.2f}" if kept is not None else "")

    def _collapse(self) -> str:
        means = self.watch.means
        ends = "it ends here" if self.settings.stop_on_collapse else "train.stop_on_collapse would end it"
        return (
            f"train: update {self.update}: the run has collapsed: first attempts score {means[-1]:.2f}, after {max(means):.2f} "
            f"at best (means of {self.watch.window} collects); {ends}, its better checkpoints stay"
        )

    def _batch_of_problems(self) -> list[Problem]:
        """The next problems of this epoch's order, this rank's share of them."""
        n, size = self.settings.prompts_per_collect, len(self.problems)
        first = self.counters["collects"] * n
        chosen = [self.problems[self._order(i // size)[i % size]] for i in range(first, first + n)]
        chosen = list({problem.id: problem for problem in chosen}.values())  # an epoch's edge may bring one twice
        return chosen[self.accelerator.process_index :: self.accelerator.num_processes]

    def _order(self, epoch: int) -> list[int]:
        """Indices in this epoch's order; kept, since a large split takes its time to shuffle."""
        if epoch not in self.orders:
            order = list(range(len(self.problems)))
            random.Random(text_key("order", self.seed, epoch)).shuffle(order)
            self.orders = {epoch: order}
        return self.orders[epoch]

    @torch.no_grad()
    def _collect(self) -> None:
        started = time.monotonic()
        self.policy.core.eval()
        problems = self._batch_of_problems()
        updates = self.method.collect(self.policy, problems, self.counters["collects"])
        sizes = [len(updates), sum(map(len, updates))]
        counted = torch.tensor([*sizes, *self.method.collected.counters.values()], device=self.policy.device)
        most = int(self.accelerator.gather(counted[:1]).max())
        self.waiting = updates + [[] for _ in range(most - len(updates))]
        _, batches, *summed = self.accelerator.reduce(counted, "sum").tolist()
        totals = dict(zip(self.method.collected.counters, summed, strict=True))
        for name, total in totals.items():
            self.counters[name] += total
        self.counters["collects"] += 1
        is_empty = batches == 0  # on all ranks
        self.counters["empty_collects"] += is_empty
        self.empty_in_a_row = self.empty_in_a_row + 1 if is_empty else 0
        self.gathered.merge(self.method.collected.metrics)
        self.gathered.add("time/collect_seconds", time.monotonic() - started)
        if self.empty_in_a_row > self.settings.max_empty_collects:
            raise DopsdError(
                f"train: {self.empty_in_a_row} collects in a row gave nothing to learn from (train.max_empty_collects); "
                "try more attempts, a lower keep_threshold or an easier split"
            )

    def _step(self, batches: list[Batch]) -> Sums:
        """Accumulate the update's loss over micro-batches and ranks, clip, and step."""
        self.policy.core.train(self.settings.lora.dropout > 0)
        weight = self._weight(batches)
        metrics = Sums()
        for batch in batches:
            for part in batch.split(self.settings.micro_batch_states):
                found = self.method.loss(self.policy, part)
                (found.total / weight).backward()
                metrics.merge(found.metrics)
                metrics.add("loss", found.total.item() / weight, 0)
        metrics.add("loss", 0.0, 1 / self.accelerator.num_processes)
        metrics.add("grad_norm", self._apply(), 1)
        return metrics

    def _weight(self, batches: list[Batch]) -> float:
        """The denominator of the update: all prompts of the collect, or the weight of what is trained on."""
        if self.method.counts_failed:
            return float(self.settings.prompts_per_collect)
        own = float(sum(float(batch.weight.sum()) for batch in batches))  # also without batches: ranks must send one dtype
        total = self.accelerator.reduce(torch.tensor(own, device=self.policy.device), "sum").item()
        return total or 1.0

    def _apply(self) -> float:
        """Sum gradients over ranks, clip them, take the step; the gradient norm before clipping."""
        for p in self.parameters.values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if self.accelerator.num_processes > 1:
                p.grad = self.accelerator.reduce(p.grad, "sum")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.grad_clip).item()
        if not math.isfinite(norm):
            raise DopsdError(
                f"train: loss or gradient is not finite at update {self.update + 1}; nothing after the last checkpoint is "
                "kept. Try a lower train.learning_rate, a smaller train.grad_clip or model.dtype float32",
                exit_code=1,
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rate(self.update, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.policy.after_update()
        return norm

    def _over_ranks(self, metrics: Sums) -> Sums:
        if self.accelerator.num_processes == 1:
            return metrics
        from accelerate.utils import gather_object

        total = Sums()
        for part in gather_object([dict(metrics)]):
            total.merge(part)
        return total
