"""The trainer: a run's state, its collects and its updates, the same for every algorithm.

The loop is in train.py, micro-batches are in grad_accumulation.py, clipping and the optimizer in
optim.py, the ranks' shares of problems in prompt_sampler.py, checkpoints in training_folder.py.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dopsd.algorithms.common.base import AlgorithmContext, Made
from dopsd.algorithms.common.batch import Batch
from dopsd.algorithms.registry import blocks_fault, load_algorithm
from dopsd.core.errors import Code
from dopsd.core.metrics import MetricSums
from dopsd.core.progress import log
from dopsd.core.rng import key_from
from dopsd.distributed.process_group import AccelerateGroup, over_ranks
from dopsd.models.llm_policy import LlmPolicy, load_policy
from dopsd.rollout.prompts import PromptSet
from dopsd.tasks.registry import load_task
from dopsd.training.collapse import detector_of, look_for_collapse
from dopsd.training.grad_accumulation import MicroBatches
from dopsd.training.optim import adamw, optimizer_step, restore_moments, with_warmup
from dopsd.training.prompt_sampler import PromptSampler
from dopsd.training.run_settings import MEMORY, RunSettings, warmup_notes
from dopsd.training.start import start_folder
from dopsd.training.trainer_state import AVERAGE, TrainerState

if TYPE_CHECKING:
    from accelerate import Accelerator


NOTES = {
    "best_score": "best of attempts",
    "kept_share": "kept",
    "held_out_half": "held out, half masked,",
}  # of the progress line
TOKENS = "time/tokens_per_second"


class Trainer:
    """A run in training: `collect` what to learn from, then `accumulate` and `step` each update.

    `roll_back` returns to the state before an interrupted collect or update.
    """

    def __init__(self, run: RunSettings, accelerator: Accelerator) -> None:
        train, seed = run.train, run.key.seed
        self.seed, self.accelerator, self.made = seed, accelerator, Made()
        torch.manual_seed(key_from("dropout", seed, accelerator.process_index) & 0x7FFFFFFF)
        self.task = load_task(run.key.task, run.data)
        self.problems = self.task.load("train")
        each = run.algorithm.updates_of_collect * train.reuse
        self.settings = train = with_warmup(train, len(self.problems), each)
        for line in warmup_notes(run, train):
            log(f"train: warning: {line}")
        self.order = PromptSampler(self.problems, train.prompts_per_collect, seed, accelerator)
        if few := run.reason_against_problems(len(self.problems)):
            raise Code.MISFIT.error(few)
        shard = run.launch.shard and accelerator.num_processes > 1
        if fault := run.reason_against_sampling or (shard and run.reason_against_shards):
            raise Code.CONTRADICTION.error(fault)
        self.policy = policy_of(run, shard)
        self.group = self.policy.process_group = AccelerateGroup(accelerator, self.policy.forwards)
        if self.settings.gradient_checkpointing:
            self.policy.use_gradient_checkpointing()
        prompt_set = PromptSet(self.task, self.problems, "train", run.model.prompt_style)
        if cut := prompt_set.share_cut(self.policy, run.sampling):
            kept = run.sampling.max_prompt_tokens
            log(f"train: {cut:.0%} of the prompts are cut to their last {kept} tokens")
        # build() of dopsd/algorithms/NAME/algorithm.py
        self.algorithm = load_algorithm(run.kind, run.algorithm, self.context_of(run))
        self.parameters = self.policy.trainable()
        self.optimizer = adamw(self.parameters.values(), self.settings)
        self.micro_batches = MicroBatches(
            train.micro_batch_states, self.policy.device, self.optimizer
        )
        self.update = self.empty_in_a_row = 0
        self.counters = dict.fromkeys(
            ("collects", "empty_collects", "trajectories", "rollouts", "sampled_tokens"), 0
        )
        self.losses: deque[float] = deque(maxlen=each)  # of as many updates as follow a collect
        self.spent = self.cpu_spent = 0.0  # seconds of collects since the last update
        self.waiting: list[list[Batch]] = []  # the batches of each update of the current collect
        # metrics of the collects since the last update, over all ranks
        self.gathered = MetricSums()
        self.detector = detector_of(train)
        self.last_whole = self.state()  # before the collect or update in progress

    def context_of(self, run: RunSettings) -> AlgorithmContext:
        """Return what the algorithm may know of the run."""
        return AlgorithmContext(
            self.task,
            self.policy,
            run.model,
            run.sampling,
            self.seed,
            run.train.updates,
            run.train.prompts_per_collect,
            run.train.states_at_once,
            self.made,
        )

    @property
    def is_over(self) -> bool:
        """Whether the run has made all updates, has collapsed, or found too little to learn."""
        ended = self.settings.stop_on_collapse and self.detector.is_collapsed and self.update > 0
        return self.update >= self.settings.updates or ended or self._is_starved

    @property
    def _is_starved(self) -> bool:
        return self.empty_in_a_row > self.settings.max_empty_collects

    def state(self) -> TrainerState:
        """Return what a checkpoint holds of this process besides the trained weights.

        Its lists and counts do not change any more; its tensors do.
        """
        tensors = {f"{AVERAGE}{name}": tensor for name, tensor in self.policy.ema.items()}
        for name, p in self.parameters.items():
            moments = self.optimizer.state.get(p, {})
            tensors |= {f"{kind}/{name}": value for kind, value in moments.items()}
        return TrainerState(
            update=self.update,
            counters=dict(self.counters),
            memory={name: vars(self.settings)[name] for name in MEMORY},
            empty_in_a_row=self.empty_in_a_row,
            spent=self.spent,
            cpu_spent=self.cpu_spent,
            scores=list(self.detector.scores),
            squares=list(self.detector.squares),
            gathered=MetricSums(self.gathered),
            waiting=list(self.waiting),
            tensors=tensors,
            rng=torch.get_rng_state(),
            cuda_rng=torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
            micro_batch=(self.micro_batches.size, self.micro_batches.tokens),
        )

    def load_state(self, state: TrainerState, weights: Path) -> None:
        """Continue from a checkpoint.

        Raises:
            KeyError, ValueError, RuntimeError: if the checkpoint is of another run.
        """
        device = self.policy.device
        self.policy.load(weights)
        restore_moments(self.optimizer, self.parameters, state.tensors)
        self.policy.ema = {name: value.to(device) for name, value in state.average.items()}
        if state.micro_batch and state.memory == self.state().memory:
            self.micro_batches.size, self.micro_batches.tokens = state.micro_batch
        self._set(state)

    def _set(self, state: TrainerState) -> None:
        """Return to a state; weights, moments and their average are those of it already."""
        device = self.policy.device
        self.update, self.counters = state.update, dict(state.counters)
        self.empty_in_a_row = state.empty_in_a_row
        self.spent, self.cpu_spent = state.spent, state.cpu_spent
        self.detector.scores, self.detector.squares = list(state.scores), list(state.squares)
        self.gathered = MetricSums(state.gathered)
        self.waiting = [[batch.to(device) for batch in update] for update in state.waiting]
        if state.rng is not None:
            torch.set_rng_state(state.rng)
        else:  # of another number of processes; without dropout nothing is drawn
            processes = self.accelerator.process_index, self.accelerator.num_processes
            seed = key_from("dropout", self.seed, state.update, *processes)
            torch.manual_seed(seed & 0x7FFFFFFF)
        if state.cuda_rng is not None:
            torch.cuda.set_rng_state(state.cuda_rng)

    def begin(self) -> None:
        """Begin a collect or an update: all processes do so, or none.

        Raises:
            StopRequested: if a signal asked one of them to stop; call `roll_back` then.
        """
        self.last_whole = self.state()
        self.policy.process_group.all_gather_object([])

    def roll_back(self) -> None:
        """Discard the unfinished collect or update; weights change only when an update ends."""
        self._set(self.last_whole)

    @torch.no_grad()
    def collect(self) -> None:
        """Sample what the next updates learn from; nothing may wait then, if all of it is useless.

        Raises:
            StopRequested: if a signal asked to stop.
            DopsdError: if no collect of the run found anything to learn from.
        """
        started, cpu_started = time.monotonic(), time.process_time()
        # this rank's problems, and what the algorithm makes of them
        self.policy.core.eval()
        self.made.updates = self.update
        problems = self.order.of(self.counters["collects"])
        collected = self.algorithm.collect(self.policy, problems, self.counters["collects"])
        updates, stats = [list(batches) for batches in collected.updates], collected.stats
        # as many updates on every rank, an empty one where a rank has fewer; counters of all ranks
        counts = [len(updates), sum(map(len, updates)), *stats.counters.values()]
        rank_counts = self.policy.process_group.all_gather_object([counts], is_done=True)
        padding = max(row[0] for row in rank_counts) - len(updates)
        self.waiting = (updates + [[] for _ in range(padding)]) * self.settings.reuse
        _, batches, *sums = (sum(column) for column in zip(*rank_counts, strict=True))
        for name, total in zip(stats.counters, sums, strict=True):
            self.counters[name] += total
        self.counters["collects"] += 1
        # whether the run has collapsed, or finds nothing to learn
        is_empty = batches == 0  # on all ranks
        self.counters["empty_collects"] += is_empty
        self.empty_in_a_row = self.empty_in_a_row + 1 if is_empty else 0
        stats.metrics.add("time/collect_seconds", time.monotonic() - started)
        metrics = over_ranks(self.accelerator, stats.metrics)
        look_for_collapse(self.detector, metrics, self.settings, self.update)
        self.gathered.merge(metrics)
        if self._is_starved:
            self._give_up()
        self.spent += time.monotonic() - started
        self.cpu_spent += time.process_time() - cpu_started
        # If the run is over now, a checkpoint with this collect would keep a resumed run from the
        # update that the collect is for.
        if not self.is_over:
            self.last_whole = self.state()

    def _give_up(self) -> None:
        """End a run that no longer finds anything to learn from."""
        message = f"train: {self.empty_in_a_row} collects in a row gave nothing to learn from"
        message += " (train.max_empty_collects)"
        if self.counters["empty_collects"] == self.counters["collects"]:
            raise Code.NOTHING_TO_LEARN.error(
                f"{message}; in the algorithm's section `method`, sample more answers to a problem"
                " or keep lower scores, or take easier problems"
            )
        self.waiting.clear()  # with skip_empty false, an empty update on momentum alone
        log(f"{message}; the run ends after update {self.update}, and its checkpoints stay")

    def accumulate(self) -> MetricSums:
        """Add up the gradients of the next update over micro-batches.

        Returns:
            Metrics of the update, over all ranks. Nothing is exchanged once the weights change.

        Raises:
            StopRequested: if a signal asked to stop.
        """
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        self.policy.core.train(self.settings.has_dropout)
        batches = self.waiting.pop(0)
        metrics = self.micro_batches.gradients(
            self.algorithm, self.policy, batches, self._denominator(batches)
        )
        tokens = sum(len(batch) * batch.forwards * batch.padded_length for batch in batches)
        metrics.add(TOKENS, tokens, 0)  # summed over the ranks: `step` makes it one sum
        # once all processes are here, each of them finishes the update
        self.policy.process_group.all_gather_object([], is_done=True)
        return over_ranks(self.accelerator, metrics)

    def step(self, metrics: MetricSums) -> dict[str, float]:
        """Sum the ranks' gradients, clip them, change the weights, and return the update's row."""
        metrics.add("loss", 0.0, 1)  # the mean of one sum: MicroBatches.gradients adds it
        metrics.add(TOKENS, 0.0, 1)
        norm = optimizer_step(self.optimizer, self.accelerator, self.settings, self.update)
        metrics.add("grad_norm", norm, 1)
        self.policy.after_update()
        metrics.merge(self.gathered)
        self.update, self.gathered = self.update + 1, MetricSums()
        row = metrics.means() | {f"count/{name}": n for name, n in self.counters.items()}
        if self.detector.is_collapsed:
            row["collapsed"] = 1.0
        seconds = self.spent + time.monotonic() - self.started
        cpu_seconds = self.cpu_spent + time.process_time() - self.cpu_started
        row["time/update_seconds"] = round(seconds, 3)
        row["time/cpu_seconds"] = round(cpu_seconds, 3)
        row[TOKENS] = round(row[TOKENS] / max(seconds, 1e-3), 1)
        self.spent = self.cpu_spent = 0.0
        self.losses.append(row["loss"])
        return row | {"update": self.update}

    def describe(self, row: dict[str, float]) -> str:
        """Return what the progress line says of an update."""
        notes = "".join(f"  {text} {row[key]:.2f}" for key, text in NOTES.items() if key in row)
        rate = f"{row[TOKENS]:.0f} tokens/s"
        return f"mean loss {sum(self.losses) / len(self.losses):.4g}  {rate}{notes}"

    def _denominator(self, batches: list[Batch]) -> float:
        """Return N, by which gradients of all ranks are divided.

        It is the number of problems of a collect, or with `denominator: kept` that of the paper's
        Eq. 12: the sum of the batches' weights, which are 1 for a kept rollout in an update.
        """
        if self.algorithm.normalize_by_all_prompts:
            return float(self.settings.prompts_per_collect)
        # a float also without batches: ranks must send one dtype
        sums = [torch.zeros((), device=self.policy.device), *(b.weight.sum() for b in batches)]
        total = self.accelerator.reduce(torch.stack(sums).double().sum().float(), "sum")
        return total.item() or 1.0


def policy_of(run: RunSettings, shard: bool) -> LlmPolicy:
    """Return the base with a fresh adapter or with all weights in training, or train.start_from."""
    train, reference = run.train, run.train.reference if run.algorithm.needs_reference else None
    policy = load_policy(run.model, train.adapter, run.key.seed, shard=shard)
    if policy.attention_pattern == "block_causal":
        refuse_unseen(run)
    if train.weights == "all":
        policy.train_all()
        if reference == "base":
            policy.keep_reference()
    if start := start_folder(run):
        policy.load(start)
        if reference == "start":
            policy.keep_reference()
    return policy


def refuse_unseen(run: RunSettings) -> None:
    """Refuse settings that teach a block-causal base nothing."""
    if fault := blocks_fault(run.kind, run.algorithm):
        raise Code.CONTRADICTION.error(fault)
