"""`dopsd pretrain --task sudoku`: train the embedded base by masked diffusion.

The base learns from careful (correct) and careless worked solutions. The mixture makes the base
like a pretrained model: able, but not reliable. Responses have the layout of rollouts (gen_length
tokens, padded with end of text), as in LLaDA's fine-tuning (arXiv 2502.09992, section 2.3).
"""

import hashlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.algorithms.common.losses import masked_diffusion_loss
from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import WORK
from dopsd.core.fingerprint import fingerprint
from dopsd.core.progress import Progress, log
from dopsd.core.rng import key_from
from dopsd.core.tensor_files import fsync_rename, load_tensors, save_tensors
from dopsd.core.tensors import left_pad
from dopsd.core.types import Problem
from dopsd.models.device import keep_freed_memory
from dopsd.models.llm_policy import LlmPolicy
from dopsd.models.loading import build_model
from dopsd.models.text import build_config, build_tokenizer
from dopsd.tasks.common.config import TaskConfig
from dopsd.tasks.common.task import TaughtTask
from dopsd.tasks.registry import TASKS
from dopsd.training.pretraining import origin
from dopsd.training.pretraining.config import BaseSettings

SAVE_EVERY = 50  # updates between resume points


def pretrain(base: BaseSettings, task_name: str, data: TaskConfig) -> None:
    """Train a task's base if it is missing, or if retraining is allowed and needed."""
    shape = base.shape
    scratch = (
        WORK / f"pretrain-{fingerprint(origin.settings(base), [origin.problems_of(task_name)])}"
    )
    folder = recover(origin.base_folder(task_name, shape.block_size))
    allowed, mismatch = origin.allowance(), origin.mismatch(base, task_name)
    if mismatch and not allowed:
        raise Code.BASE_DIFFERS.error(mismatch)
    if any(folder.glob("*.safetensors")) and not mismatch and allowed != origin.FORCE:
        log(f"pretrain: {folder} is up to date")
        return
    keep_freed_memory()
    policy = fresh(base)
    make: Callable[[TaskConfig], TaughtTask] = TASKS.member(task_name, "task", "make")
    trainer = Pretrainer(base, make(data), policy)
    with Progress("pretrain", shape.updates, "update", str(scratch)) as progress:
        first_update = trainer.resume(scratch)
        progress.resume_at(first_update)
        for update in range(first_update, shape.updates):
            loss = trainer.step(update)
            progress.step(note=f"loss {loss:.3f}")
            if (update + 1) % SAVE_EVERY == 0:
                trainer.save(scratch, update + 1)
    _write(policy, base, task_name, scratch / "base")
    shutil.rmtree(scratch)  # so that a forced run begins at update 0


def fresh(base: BaseSettings) -> LlmPolicy:
    """Return the embedded model before its first update."""
    tokenizer = build_tokenizer()
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(base.shape.seed)
        model = build_model(build_config(base.shape, tokenizer))
        initialise(model)
    return LlmPolicy(model, tokenizer, None, 0)


def initialise(model: nn.Module) -> None:
    """Draw weights with unit gain; at this width the 8B model's std of 0.02 trains slowly."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)


def _write(policy: LlmPolicy, base: BaseSettings, task_name: str, tmp: Path) -> None:
    folder = origin.base_folder(task_name, base.shape.block_size)
    new, old = _beside(folder)
    for stale in (tmp, new):
        shutil.rmtree(stale, ignore_errors=True)
    tmp.mkdir(parents=True)
    policy.core.save_pretrained(tmp)
    policy.tokenizer.save_pretrained(tmp)
    origin.note(base, task_name, tmp)
    fsync_rename(tmp, new)
    folder.parent.mkdir(exist_ok=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return the folders of a complete new base, and of the old base during the replacement."""
    return WORK / f"base.{folder.name}.new", WORK / f"base.{folder.name}.old"


def recover(folder: Path) -> Path:
    """Restore the old base if its replacement was interrupted, and return the base's folder."""
    _, old = _beside(folder)
    if old.exists() and folder.exists():
        shutil.rmtree(old)
    elif old.exists():
        folder.parent.mkdir(exist_ok=True)
        old.rename(folder)
    return folder


class Pretrainer:
    """Trains the base with AdamW on generated solutions; each draw is keyed by seed and update."""

    def __init__(self, base: BaseSettings, task: TaughtTask, policy: LlmPolicy) -> None:
        self.shape, self.length, self.style = base.shape, base.gen_length, base.prompt_style
        self.task, self.policy = task, policy
        self.problems = task.load("train")
        self.parameters = dict(policy.core.named_parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=self.shape.learning_rate,
            betas=(self.shape.betas[0], self.shape.betas[1]),
            weight_decay=self.shape.weight_decay,
        )

    def rate(self, update: int) -> float:
        """Return the learning-rate factor: linear warm-up, then linear decay to 0.05."""
        if update < self.shape.warmup_updates:
            return (update + 1) / self.shape.warmup_updates
        decay_progress = (update - self.shape.warmup_updates) / max(
            self.shape.updates - self.shape.warmup_updates, 1
        )
        return 1 - 0.95 * decay_progress

    def step(self, update: int) -> float:
        """Make one update and return its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.shape.learning_rate * self.rate(update)
        loss = masked_diffusion_loss(self.policy, self.batch(update)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.shape.grad_clip)
        if not torch.isfinite(norm):
            raise Code.NOT_FINITE.error(
                f"pretrain: the gradient is not finite at update {update + 1}; lower"
                " pretrain.learning_rate",
                1,
            )
        self.optimizer.step()
        return loss.item()

    def batch(self, update: int) -> MaskedTexts:
        """Return an update's batch: solutions with random masks, at mask ratios t ~ U(0.001, 1)."""
        rng = random.Random(key_from("pretrain", self.shape.seed, update))
        rows = [self.row(rng.choice(self.problems), rng) for _ in range(self.shape.batch_size)]
        prompts, mask = left_pad([prompt for prompt, _ in rows], self.policy.eos_id)
        targets = torch.stack([text for _, text in rows])  # [B, G]
        generator = torch.Generator().manual_seed(key_from("mask", self.shape.seed, update))
        # one draw, spread evenly over the batch: less noise than B draws
        spread = torch.arange(len(rows))[:, None] / len(rows)
        draw = torch.rand(1, 1, generator=generator)
        mask_ratio = (draw + spread) % 1 * 0.999 + 0.001  # [B, 1]
        loss_mask = torch.rand(targets.shape, generator=generator) < mask_ratio
        ids = torch.cat([prompts, targets.masked_fill(loss_mask, self.policy.mask_id)], 1)
        mask = torch.cat([mask, torch.ones_like(loss_mask)], 1)
        return MaskedTexts(
            ids, mask, targets, loss_mask, 1 / mask_ratio[:, 0], torch.ones(len(rows))
        )

    def row(self, problem: Problem, rng: random.Random) -> tuple[Tensor, Tensor]:
        """Return a problem's prompt [P] and worked solution [G], padded with end of text."""
        is_careful = rng.random() < self.shape.careful_share
        text = self.task.worked_solution(problem, is_careful)
        ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= self.length:
            raise Code.MISFIT.error(
                f"sampling.gen_length: {self.length} tokens cannot hold a solution of {len(ids)}"
                " tokens and an end of text"
            )
        prompt = self.policy.text.encode(self.task.messages(problem, self.style))
        return prompt, torch.tensor(ids + [self.policy.eos_id] * (self.length - len(ids)))

    def save(self, scratch: Path, update: int) -> None:
        """Write a resume point: weights, moments and the number of finished updates."""
        state = {f"model.{name}": p.detach() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            state |= {f"{kind}.{name}": value for kind, value in self.optimizer.state[p].items()}
        scratch.mkdir(parents=True, exist_ok=True)
        state["update"] = torch.tensor(update)
        write_resume_point(state, scratch / "resume.safetensors")

    def resume(self, scratch: Path) -> int:
        """Load the last resume point and return its update; 0 if it is missing or damaged."""
        path = scratch / "resume.safetensors"
        if not path.is_file():
            return 0
        state = read_resume_point(path)
        if not state:
            log(f"pretrain: {path}: damaged; starting from update 0")
            return 0
        for name, p in self.parameters.items():
            p.data.copy_(state[f"model.{name}"])
            self.optimizer.state[p] = {
                kind: state[f"{kind}.{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")
            }
        return int(state["update"])


def write_resume_point(state: dict[str, Tensor], path: Path) -> None:
    """Write tensors and their digest to a file, under a temporary name first."""
    tmp = path.with_suffix(".tmp")
    save_tensors(state | {"digest": _digest(state)}, tmp)
    fsync_rename(tmp, path)


def read_resume_point(path: Path) -> dict[str, Tensor]:
    """Read a resume point; return an empty dict if it is damaged."""
    try:
        state = load_tensors(path)
    except DopsdError:
        return {}
    digest = state.pop("digest", torch.empty(0))
    return state if digest.tolist() == _digest(state).tolist() else {}


def _digest(state: dict[str, Tensor]) -> Tensor:
    """Return the SHA-256 digest of all names, dtypes, shapes and values, as 32 bytes.

    The digest is part of the file, because a second file could not be renamed together with it.
    """
    hasher = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        hasher.update(
            f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes()
        )
    return torch.tensor([*hasher.digest()], dtype=torch.uint8)
