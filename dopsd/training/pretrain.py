"""`dopsd pretrain --task sudoku`: the embedded base, trained by masked diffusion on careful and
careless worked solutions.

The mixture makes the base what a pretrained model is: able, but not reliable. The response keeps
the layout of rollouts (gen_length tokens, padded with end of text), as LLaDA's fine-tuning does
(arXiv 2502.09992, section 2.3).
"""

from __future__ import annotations

import hashlib
import random
import shutil
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.algorithms.common.losses import masked_diffusion_loss
from dopsd.core.errors import DopsdError
from dopsd.core.files import WORK
from dopsd.core.fingerprint import fingerprint
from dopsd.core.progress import Progress, log
from dopsd.core.rng import key_from
from dopsd.core.tensor_files import fsync_rename, load_tensors, save_tensors
from dopsd.core.tensors import left_pad
from dopsd.models.embedded import build_config, build_tokenizer
from dopsd.models.llada.modeling import LladaForMaskedLM
from dopsd.models.llm_policy import LlmPolicy
from dopsd.tasks.registry import TASKS
from dopsd.training import origin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dopsd.core.types import Problem
    from dopsd.tasks.common.config import TaskConfig
    from dopsd.tasks.common.task import TaughtTask
    from dopsd.training.pretrain_config import BaseSettings

SAVE_EVERY = 50  # updates between resume points


def pretrain(base: BaseSettings, task_name: str, data: TaskConfig) -> None:
    """Make base/<task>/ if there is none; one that does not match its settings and data only with
    leave, else say why.
    """
    shape = base.shape
    scratch = (
        WORK / f"pretrain-{fingerprint(origin.settings(base), [origin.problems_of(task_name)])}"
    )
    folder = recover(task_name)
    allowed, mismatch = origin.allowance(), origin.mismatch(base, task_name)
    if mismatch and not allowed:
        raise DopsdError(mismatch)
    if any(folder.glob("*.safetensors")) and not mismatch and allowed != origin.FORCE:
        log(f"pretrain: {folder} is up to date")
        return
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
    shutil.rmtree(scratch)  # a forced run begins at the first update


def fresh(base: BaseSettings) -> LlmPolicy:
    """The model before its first update."""
    tokenizer = build_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(base.shape.seed)
        model = LladaForMaskedLM(build_config(base.shape, tokenizer))
        initialise(model)
    return LlmPolicy(model, tokenizer, None, 0)


def initialise(model: nn.Module) -> None:
    """Weights of unit gain: at this width the 8B model's std of 0.02 is slow to leave zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)


def _write(policy: LlmPolicy, base: BaseSettings, task_name: str, tmp: Path) -> None:
    folder, (new, old) = origin.place(task_name), _beside(task_name)
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


def _beside(task_name: str) -> tuple[Path, Path]:
    """Where a whole new base stands, and the one that it takes the place of."""
    return WORK / f"base.{task_name}.new", WORK / f"base.{task_name}.old"


def recover(task_name: str) -> Path:
    """Put the old base back if a kill came when it had left its place and the new one had not taken
    it; the place.
    """
    folder, (_, old) = origin.place(task_name), _beside(task_name)
    if old.exists() and folder.exists():
        shutil.rmtree(old)
    elif old.exists():
        folder.parent.mkdir(exist_ok=True)
        old.rename(folder)
    return folder


class Pretrainer:
    """AdamW on batches of freshly written solutions; every draw is keyed by (seed, update)."""

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
        """Linear warm-up, then linear decay to a twentieth."""
        if update < self.shape.warmup_updates:
            return (update + 1) / self.shape.warmup_updates
        decay_progress = (update - self.shape.warmup_updates) / max(
            self.shape.updates - self.shape.warmup_updates, 1
        )
        return 1 - 0.95 * decay_progress

    def step(self, update: int) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.shape.learning_rate * self.rate(update)
        loss = masked_diffusion_loss(self.policy, self.batch(update)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.shape.grad_clip)
        if not torch.isfinite(norm):
            raise DopsdError(
                f"pretrain: the gradient is not finite at update {update + 1}; lower"
                " pretrain.learning_rate",
                1,
            )
        self.optimizer.step()
        return loss.item()

    def batch(self, update: int) -> MaskedTexts:
        rng = random.Random(key_from("pretrain", self.shape.seed, update))
        rows = [self.row(rng.choice(self.problems), rng) for _ in range(self.shape.batch_size)]
        prompts, mask = left_pad([prompt for prompt, _ in rows], self.policy.eos_id)
        targets = torch.stack([text for _, text in rows])  # [B, G]
        generator = torch.Generator().manual_seed(key_from("mask", self.shape.seed, update))
        spread = torch.arange(len(rows))[:, None] / len(
            rows
        )  # one draw, spread evenly: less noise than B draws
        mask_ratio = (
            torch.rand(1, 1, generator=generator) + spread
        ) % 1 * 0.999 + 0.001  # [B, 1], t ~ U(0.001, 1)
        loss_mask = torch.rand(targets.shape, generator=generator) < mask_ratio
        ids = torch.cat([prompts, targets.masked_fill(loss_mask, self.policy.mask_id)], 1)
        mask = torch.cat([mask, torch.ones_like(loss_mask)], 1)
        return MaskedTexts(
            ids, mask, targets, loss_mask, 1 / mask_ratio[:, 0], torch.ones(len(rows))
        )

    def row(self, problem: Problem, rng: random.Random) -> tuple[Tensor, Tensor]:
        """Prompt [P] and completion [G], padded with end of text."""
        is_careful = rng.random() < self.shape.careful_share
        text = self.task.worked_solution(problem, is_careful)
        ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= self.length:
            raise DopsdError(
                f"sampling.gen_length: {self.length} tokens do not hold a solution of {len(ids)}"
                " and its end"
            )
        prompt = self.policy.text.encode(self.task.messages(problem, self.style))
        return prompt, torch.tensor(ids + [self.policy.eos_id] * (self.length - len(ids)))

    def save(self, scratch: Path, update: int) -> None:
        state = {f"model.{name}": p.detach() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            state |= {f"{kind}.{name}": value for kind, value in self.optimizer.state[p].items()}
        scratch.mkdir(parents=True, exist_ok=True)
        state["update"] = torch.tensor(update)
        save_tensors(state | {"digest": _digest(state)}, scratch / "resume.tmp")
        fsync_rename(scratch / "resume.tmp", scratch / "resume.safetensors")

    def resume(self, scratch: Path) -> int:
        """Put the last resume point in place; 0 where there is none, or a damaged one."""
        path = scratch / "resume.safetensors"
        if not path.is_file():
            return 0
        state = _read(path)
        if not state:
            log(
                f"pretrain: {path}: damaged, or of an older release; it is not used, and"
                " pretraining begins at zero"
            )
            return 0
        for name, p in self.parameters.items():
            p.data.copy_(state[f"model.{name}"])
            self.optimizer.state[p] = {
                kind: state[f"{kind}.{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")
            }
        return int(state["update"])


def _digest(state: dict[str, Tensor]) -> Tensor:
    """Of all names, shapes and numbers: safetensors files have none, and a file beside them is not
    renamed with them.
    """
    hasher = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        hasher.update(
            f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes()
        )
    return torch.tensor([*hasher.digest()], dtype=torch.uint8)


def _read(path: Path) -> dict[str, Tensor]:
    """A resume point; nothing, where it is damaged."""
    try:
        state = load_tensors(path)
    except DopsdError:
        return {}
    digest = state.pop("digest", torch.empty(0))
    return state if digest.tolist() == _digest(state).tolist() else {}
