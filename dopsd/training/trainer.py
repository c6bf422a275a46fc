"""The trainer: a run's state, its collects and its updates, the same for every algorithm.

Micro-batches are in grad_accumulation.py, clipping and the optimizer in optim.py, the ranks' shares
of problems in prompt_sampler.py, checkpoints in run_dir.py, signals in core/interrupts.py.
"""

from __future__ import annotations

import time
from collections import deque
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from dopsd.algorithms.common.base import AlgorithmContext, Made
from dopsd.algorithms.registry import load_algorithm
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.metrics import MetricSums
from dopsd.core.progress import log
from dopsd.core.rng import key_from
from dopsd.distributed.accelerate_group import AccelerateGroup, over_ranks
from dopsd.rollout.prompts import PromptSet
from dopsd.tasks.registry import load_task
from dopsd.training.collapse import detector_of, look_for_collapse
from dopsd.training.grad_accumulation import MicroBatches
from dopsd.training.optim import adamw, optimizer_step, warmup_notes, with_warmup
from dopsd.training.prompt_sampler import PromptSampler
from dopsd.training.rank_files import of_every_rank
from dopsd.training.run_policy import policy_of

if TYPE_CHECKING:
    from accelerate import Accelerator

    from dopsd.algorithms.common.batch import Batch
    from dopsd.training.run_dir import RunFolder
    from dopsd.training.run_settings import RunSettings

NOTES = {"best_score": "best of attempts", "kept_share": "kept"}  # of the progress line


class Trainer:
    """The state of a run between two updates: all that a checkpoint must restore.

    `advance` makes one update; `roll_back` returns to the state before an interrupted one.
    """

    def __init__(self, run: RunSettings, accelerator: Accelerator) -> None:
        train, seed = run.train, run.key.seed
        self.seed, self.accelerator, self.made = seed, accelerator, Made()
        torch.manual_seed(key_from("dropout", seed, accelerator.process_index) & 0x7FFFFFFF)
        self.task = load_task(run.key.task, run.data)
        self.problems = self.task.load("train")
        each = run.algorithm.updates_of_collect
        self.settings = train = with_warmup(train, len(self.problems), each)
        for line in warmup_notes(run, train):
            log(f"train: warning: {line}")
        self.order = PromptSampler(self.problems, train.prompts_per_collect, seed, accelerator)
        shard = run.launch.shard and accelerator.num_processes > 1
        if fault := run.reason_against_sampling or (shard and run.reason_against_shards):
            raise DopsdError(fault, code=Code.CONTRADICTION)
        self.policy = policy_of(run, shard)
        self.group = self.policy.process_group = AccelerateGroup(accelerator, self.policy.forwards)
        if self.settings.gradient_checkpointing:
            self.policy.use_gradient_checkpointing()
        prompt_set = PromptSet(self.task, self.problems, "train", run.model.prompt_style)
        if cut := prompt_set.share_cut(self.policy, run.sampling):
            kept = run.sampling.max_prompt_tokens
            log(f"train: {cut:.0%} of the prompts are cut to their last {kept} tokens")
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
        # of each update the batches of every rank, in main memory: a rank that survives the others
        # can save what they still had to learn from
        self.of_all_ranks: list[list[list[Batch]]] = []
        # metrics of the collects since the last update, over all ranks
        self.gathered = MetricSums()
        self.detector = detector_of(train)

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

    def advance(self, folder: RunFolder) -> str:
        """Collect if no batches wait, then make one update if there are batches.

        Args:
            folder: the run's folder, which logs the update.

        Returns:
            A note for the progress line.

        Raises:
            StopRequested: if a signal asked to stop; call `roll_back` then.
            DopsdError: if no collect of the run found anything to learn from.
        """
        self._mark()
        self.policy.process_group.all_gather_object([])  # all processes continue, or none
        if not self.waiting:
            started, cpu_started = time.monotonic(), time.process_time()
            self._collect()
            self.spent += time.monotonic() - started
            self.cpu_spent += time.process_time() - cpu_started
            # If the run is over now, a checkpoint with this collect would keep a resumed run from
            # the update that the collect is for.
            if not self.is_over:
                self._mark()  # keep the finished collect
        if not self.waiting:
            return "nothing to learn from"
        started, cpu_started = time.monotonic(), time.process_time()
        metrics = self._step(self.waiting.pop(0))
        self.of_all_ranks = self.of_all_ranks[1:]
        metrics.merge(self.gathered)
        self.gathered = MetricSums()
        self.update += 1
        means = metrics.means()
        if self.detector.is_collapsed:
            means["collapsed"] = 1.0
        counts = {f"count/{name}": value for name, value in self.counters.items()}
        means["time/cpu_seconds"] = round(self.cpu_spent + time.process_time() - cpu_started, 3)
        folder.log(self.update, means | counts, self.spent + time.monotonic() - started)
        self.spent = self.cpu_spent = 0.0
        notes = "".join(f"  {text} {means[key]:.2f}" for key, text in NOTES.items() if key in means)
        self.losses.append(means["loss"])
        self._mark()  # keep the finished update
        return f"mean loss {sum(self.losses) / len(self.losses):.4f}{notes}"

    def _mark(self) -> None:
        """Remember what `roll_back` restores; weights change only when an update ends."""
        state: dict[str, Any] = {"waiting": list(self.waiting), "counters": dict(self.counters)}
        state["gathered"] = deepcopy(self.gathered)
        names = ("empty_in_a_row", "spent", "cpu_spent", "of_all_ranks")
        state |= {name: getattr(self, name) for name in names}
        history = list(self.detector.scores), list(self.detector.squares)
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        self.marked = state, history, torch.get_rng_state(), cuda

    def roll_back(self) -> None:
        """Discard the unfinished collect or update."""
        state, (self.detector.scores, self.detector.squares), rng, cuda_rng = self.marked
        for name, value in state.items():
            setattr(self, name, value)
        torch.set_rng_state(rng)
        if cuda_rng is not None:
            torch.cuda.set_rng_state(cuda_rng)

    @torch.no_grad()
    def _collect(self) -> None:
        started = time.monotonic()
        self.policy.core.eval()
        self.made.updates = self.update
        problems = self.order.of(self.counters["collects"])
        collected = self.algorithm.collect(self.policy, problems, self.counters["collects"])
        updates, stats = [list(batches) for batches in collected.updates], collected.stats
        counts = [len(updates), sum(map(len, updates)), *stats.counters.values()]
        rank_counts = self.policy.process_group.all_gather_object([counts], is_done=True)
        self.waiting = updates + [
            [] for _ in range(max(row[0] for row in rank_counts) - len(updates))
        ]
        self.of_all_ranks = of_every_rank(self.accelerator, self.waiting)
        _, batches, *sums = (sum(column) for column in zip(*rank_counts, strict=True))
        for name, total in zip(stats.counters, sums, strict=True):
            self.counters[name] += total
        self.counters["collects"] += 1
        is_empty = batches == 0  # on all ranks
        self.counters["empty_collects"] += is_empty
        self.empty_in_a_row = self.empty_in_a_row + 1 if is_empty else 0
        stats.metrics.add("time/collect_seconds", time.monotonic() - started)
        metrics = over_ranks(self.accelerator, stats.metrics)
        look_for_collapse(self.detector, metrics, self.settings, self.update)
        self.gathered.merge(metrics)
        if self._is_starved:
            self._give_up()

    def _give_up(self) -> None:
        """End a run that no longer finds anything to learn from.

        Raises:
            DopsdError: if no collect of the run ever gave anything: the settings are wrong.
        """
        message = f"train: {self.empty_in_a_row} collects in a row gave nothing to learn from"
        message += " (train.max_empty_collects)"
        if self.counters["empty_collects"] == self.counters["collects"]:
            raise DopsdError(
                f"{message}; in the algorithm's section `method`, sample more answers to a problem"
                " or keep lower scores, or take easier problems",
                code=Code.NOTHING_TO_LEARN,
            )
        self.waiting.clear()  # with skip_empty false, an empty update on momentum alone
        self.of_all_ranks = []
        log(f"{message}; the run ends after update {self.update}, and its checkpoints stay")

    def _step(self, batches: list[Batch]) -> MetricSums:
        """Accumulate the update's loss over micro-batches and ranks, clip, and step.

        Returns:
            Metrics of the update, over all ranks. Nothing is exchanged once the weights change.
        """
        self.policy.core.train(self.settings.has_dropout)
        metrics = self.micro_batches.gradients(
            self.algorithm, self.policy, batches, self._weight(batches)
        )
        # once all processes are here, each of them finishes the update
        self.policy.process_group.all_gather_object([], is_done=True)
        metrics = over_ranks(self.accelerator, metrics)
        metrics.add("loss", 0.0, 1)
        norm = optimizer_step(self.optimizer, self.accelerator, self.settings, self.update)
        metrics.add("grad_norm", norm, 1)
        self.policy.after_update()
        return metrics

    def _weight(self, batches: list[Batch]) -> float:
        """Return the update's denominator over all ranks: the prompts or the batches' weight."""
        if self.algorithm.normalize_by_all_prompts:
            return float(self.settings.prompts_per_collect)
        # a float also without batches: ranks must send one dtype
        sums = [torch.zeros((), device=self.policy.device), *(b.weight.sum() for b in batches)]
        total = self.accelerator.reduce(torch.stack(sums).double().sum().float(), "sum")
        return total.item() or 1.0
