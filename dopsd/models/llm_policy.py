"""load_policy(): a base model, its tokenizer and an adapter as one Policy: trunk, head, teacher and reference."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError
from dopsd.distributed.process_group import SingleProcess
from dopsd.distributed.uneven_forwards import UnevenForwards
from dopsd.models.fsdp import spread
from dopsd.models.llada import modeling  # noqa: F401  (registers model_type "llada": importing this package is enough to load one)
from dopsd.models.llada.modeling import KVCache
from dopsd.models.loading import load_base, own_device
from dopsd.models.lora import attach, merged_weights
from dopsd.models.tokenizer import load_tokenizer, suppress_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dopsd.distributed.process_group import ProcessGroup
    from dopsd.models.config import AdapterConfig, ModelConfig


class LlmPolicy:
    """A masked diffusion model behind the Policy protocol. `ema` is a shadow adapter, where the teacher wants one."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        lora: AdapterConfig | None,
        seed: int,
    ) -> None:
        self.core = model
        self.tokenizer = tokenizer
        self.adapted = attach(model, lora, seed) if lora else None
        self.teacher_kind = "base"
        self.ema_decay = 0.0
        self.ema: dict[str, Tensor] = {}
        self.vocabulary = model.config.embedding_size
        self.max_length = model.config.max_sequence_length
        self.mask_id = model.config.mask_token_id
        self.eos_id = model.config.eos_token_id
        self.suppress_tokens = suppress_tokens(tokenizer, model.config)
        self.is_merged = False
        self.process_group: ProcessGroup = SingleProcess()
        self.rows_that_fit: dict[int, int] = {}
        self.forwards = UnevenForwards()
        self.core.eval()  # the adapter's layers come in training mode: their dropout would make every answer a draw

    @property
    def device(self) -> torch.device:
        return self.core.device

    @property
    def is_locked(self) -> bool:
        return self.forwards.is_locked

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
    ) -> Tensor:
        self.forwards.before_forward()
        return self.core.model(ids, attention_mask, kv_cache, cache_positions)

    def new_kv_cache(self) -> KVCache:
        return KVCache(self.core.config.n_layers)

    def head(self, hidden: Tensor) -> Tensor:
        return self.core.head(hidden)

    def trainable(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.core.named_parameters() if p.requires_grad}

    def reference(self) -> AbstractContextManager[None]:
        """The initial policy: adapters off."""
        if self.is_merged:
            raise DopsdError(
                "merged: the initial policy is not there while adapters are in the weights",
                exit_code=1,
            )
        return self.adapted.disable_adapter() if self.adapted else nullcontext()

    def teacher(self) -> AbstractContextManager[None]:
        """base: the initial policy; live: the student's own weights; ema: their moving average. None has dropout."""
        return self.reference() if self.teacher_kind == "base" else self._without_dropout()

    def use_teacher(self, kind: str, ema_decay: float) -> None:
        self.teacher_kind, self.ema_decay = kind, ema_decay
        if kind == "ema":
            self.ema = {name: p.detach().clone() for name, p in self.trainable().items()}

    def after_update(self) -> None:
        for name, p in self.trainable().items():
            if name in self.ema:
                self.ema[name].lerp_(p.detach(), 1 - self.ema_decay)

    @contextmanager
    def merged(self) -> Iterator[None]:
        """The student with its adapters in the weights: faster, and in bfloat16 rounded, so that its figures say so."""
        if self.is_locked:
            raise DopsdError(
                "merged: adapters cannot be added into a base in parts; set launch.shard to false"
            )
        with merged_weights(self.adapted) if self.adapted else nullcontext():
            self.is_merged = self.adapted is not None
            try:
                yield
            finally:
                self.is_merged = False

    def use_gradient_checkpointing(self) -> None:
        """Recompute each block's activations in the backward pass: less memory, the same gradients."""
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # newer transformers have another name for it
            self.core.gradient_checkpointing_enable({"use_reentrant": False})

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        was_training, parameters = self.core.training, self.trainable()
        original_data = {name: p.data for name, p in parameters.items()}
        try:
            self.core.eval()
            for name, average in self.ema.items():
                parameters[name].data = average
            yield
        finally:
            self.core.train(was_training)
            for name, p in parameters.items():
                p.data = original_data[name]

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor:
        """Token ids [P] of the chat with the assistant's header, and how its answer starts."""
        import torch

        text = (
            self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            + prefill
        )
        return torch.tensor(
            self.tokenizer(text, add_special_tokens=False)["input_ids"], device=self.device
        )

    def tokens(self, text: str) -> Tensor:
        """Token ids [n] of a text as it stands."""
        import torch

        return torch.tensor(
            self.tokenizer(text, add_special_tokens=False)["input_ids"], device=self.device
        )

    def decode(self, ids: Tensor) -> str:
        """The text before the first end-of-sequence token."""
        row = ids.tolist()
        return self.tokenizer.decode(row[: row.index(self.eos_id)] if self.eos_id in row else row)


def load_policy(
    model: ModelConfig,
    lora: AdapterConfig | None,
    seed: int,
    device: torch.device | None = None,
    shard: bool = False,
) -> LlmPolicy:
    """Weights and tokenizer from `model.path`, in eval mode, with a fresh adapter if asked; by default on own_device().

    shard: in parts over the processes that were started together (fsdp.py).
    """
    target_device = device or own_device()
    policy = LlmPolicy(
        load_base(model, target_device, on_host=shard), load_tokenizer(Path(model.path)), lora, seed
    )
    if shard:
        policy.forwards = spread(policy.core, target_device)
    return policy
