"""Both sides of published_code.py: the published functions, and a small model for them and us."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from random_weights import moved, random_policy
from torch import Tensor

from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.algorithm import DOpsd
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import BlockSchedule, states_by_update
from dopsd.core.rng import fold_in, uniform_table
from dopsd.core.types import Rollout
from dopsd.models.config import AdapterConfig
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.config import Decoding

SMALL = {"d_model": 32, "n_heads": 2, "n_kv_heads": 2, "n_layers": 2, "mlp_hidden_size": 64}
LENGTHS = {"gen_length": 32, "block_length": 8, "steps": 16}
PROMPT = torch.tensor([11, 7, 5, 301, 13, 17])
SCALE, END = 8.0, 6.0  # of the random logits, and what is added to the end of text
NEVER = -1e4  # logit of a token that is never sampled: its probability is 0
TRL = "trl trl.trainer trl.trainer.grpo_trainer trl.trainer.grpo_config trl.trainer.utils"
TRL += " trl.extras trl.extras.profiling trl.import_utils trl.data_utils trl.models"


class Blank(ModuleType):
    """A module in which every name exists: an empty class, or a decorator that changes nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else lambda function: function


def published(checkout: Path) -> tuple[ModuleType, ModuleType]:
    """Return their modules utils and d_opsd_trainer."""
    os.environ.setdefault("LOCAL_RANK", "0")
    sys.path.insert(0, str(checkout / "d-opsd"))
    blanks = {name: Blank(name) for name in TRL.split()}
    with mock.patch.dict(sys.modules, blanks):
        return importlib.import_module("utils"), importlib.import_module("d_opsd_trainer")


class AsTheirs:
    """Our policy with the interface of their model."""

    def __init__(self, policy: LlmPolicy) -> None:
        self.policy, self.device, self.dtype = policy, policy.device, torch.float32

    def __call__(self, ids: Tensor) -> SimpleNamespace:
        """Return logits [B, T, V], without the tokens that we never sample."""
        logits = self.policy.head(self.policy.hidden(ids, None))
        banned = torch.tensor(self.policy.suppress_tokens)
        return SimpleNamespace(logits=logits.index_fill(-1, banned, NEVER))

    def disable_adapter(self) -> Any:
        """Return the context of the fixed teacher."""
        return self.policy.reference()


def toy() -> LlmPolicy:
    """Return a small policy with LLaDA's vocabulary, whose texts end sometimes."""
    lora = AdapterConfig(r=4, alpha=4, dropout=0.0)
    config = LladaConfig(**SMALL)  # type: ignore[arg-type]
    policy = moved(random_policy(config, lora, torch.device("cpu"), torch.float32))
    head, bonus = policy.head, torch.zeros(policy.vocabulary)
    bonus[policy.eos_id] = END
    policy.head = lambda hidden: SCALE * head(hidden) + bonus  # type: ignore[method-assign]
    return policy


@contextmanager
def keyed_noise(key: int) -> Iterator[None]:
    """Give torch.rand_like our draws: one call for each denoising step."""
    calls = iter(range(LENGTHS["steps"]))

    def draw(logits: Tensor, dtype: torch.dtype) -> Tensor:
        positions = torch.arange(logits.shape[1]) - len(PROMPT)
        keys = fold_in(fold_in(torch.tensor(key), next(calls)), positions)
        return uniform_table(keys, logits.shape[-1])[None].to(dtype)

    with mock.patch.object(torch, "rand_like", draw):
        yield


def blocks_of(policy: LlmPolicy) -> BlockSchedule:
    """Return the blocks of the toy's completions."""
    counts = tuple(Decoding(**LENGTHS).num_transfer_tokens)
    return BlockSchedule(LENGTHS["block_length"], counts, policy.mask_id, policy.eos_id)


def their_trainer(module: ModuleType, policy: LlmPolicy, config: DOpsdConfig) -> Any:
    """Return their trainer with the attributes that compute_loss reads, and nothing else."""
    module.is_peft_model = lambda _: True  # type: ignore[attr-defined]
    trainer = object.__new__(module.dOPSDTrainer)
    identity: Callable[[Any], Any] = lambda value: value  # noqa: E731
    trainer.accelerator = SimpleNamespace(unwrap_model=identity, gather_for_metrics=identity)
    trainer.args = SimpleNamespace(cfg_scale=0.0, mask_id=policy.mask_id)
    trainer.control = SimpleNamespace(should_evaluate=False)
    trainer.state = SimpleNamespace(global_step=0)
    trainer._metrics = {"train": {"loss": [], "clip_ratio": [], "top_k_overlap": []}}
    trainer.batch_divide, trainer.fixed_teacher = 4, config.teacher == "base"
    trainer.add_ref = trainer.debug1 = False
    trainer.diff_student_mask = config.position_selection == "student"
    trainer.beta = {"reverse_kl": 1, "forward_kl": 0, "jsd": config.jsd_beta}[config.divergence]
    trainer.top_k_loss = config.top_k if config.loss_vocabulary == "teacher_top_k" else None
    trainer.jsd_token_clip, trainer.dataset_name = config.clip, "gsm8k"
    trainer.sudoku_threshold = config.keep_threshold
    return trainer


def their_inputs(rollout: Rollout, theirs: Tensor, updates: list[States]) -> dict[str, Any]:
    """Return what their compute_loss reads, with the tokens that our teacher is shown."""
    teacher = theirs.clone()
    for states in updates:
        teacher[states.step] = states.teacher_ids
    lengths = {"prompt_length": len(PROMPT), "teacher_prompt_length": len(PROMPT)}
    values = {"trajectory": theirs, "teacher_trajectory": teacher, "is_correct": True}
    return LENGTHS | lengths | values


def gradients(policy: LlmPolicy, loss: Tensor) -> Tensor:
    """Return the gradient of all weights in training, in one row."""
    policy.core.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.trainable().values() if p.grad is not None])


class Losses:
    """Both losses of a kept rollout, update by update."""

    def __init__(
        self, module: ModuleType, policy: LlmPolicy, config: DOpsdConfig, rollout: Rollout
    ) -> None:
        self.policy, self.trainer = policy, their_trainer(module, policy, config)
        policy.use_teacher(config.teacher, config.ema_decay)
        self.algorithm = DOpsd(config, None, blocks_of(policy))  # type: ignore[arg-type]
        updates = states_by_update([rollout], config, blocks_of(policy), (0, 0))
        self.updates = [states for states in updates if states]

    def theirs(self, number: int, inputs: dict[str, Any]) -> Tensor:
        """Return their loss of an update, from 0."""
        self.trainer._step = number + 1
        return self.trainer.compute_loss(AsTheirs(self.policy), inputs)

    def ours(self, number: int) -> Tensor:
        """Return our loss of an update, from 0."""
        states = self.updates[number]
        return self.algorithm.loss(self.policy, states).total / states.weight.sum()
