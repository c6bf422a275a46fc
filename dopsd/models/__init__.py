"""load_policy(): a base model, its tokenizer and an adapter as one Policy: trunk, head, teacher and reference."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.errors import DopsdError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from dopsd.config import Lora, Model


class LlmPolicy:
    """A masked diffusion model behind the Policy protocol. `ema` is a shadow adapter, where the teacher wants one."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, lora: Lora | None, seed: int) -> None:
        from dopsd.models.lora import attach

        self.core = model
        self.tokenizer = tokenizer
        self.adapted = attach(model, lora, seed) if lora else None
        self.teacher_kind = "base"
        self.ema_decay = 0.0
        self.ema: dict[str, Tensor] = {}
        self.mask_id = model.config.mask_token_id
        self.eos_id = model.config.eos_token_id
        self.banned_ids = [i for i in tokenizer.all_special_ids if i != self.eos_id]
        self.banned_ids += list(range(len(tokenizer), model.config.embedding_size))
        if self.mask_id not in self.banned_ids:
            raise DopsdError("tokenizer: the mask token must be one of its special tokens")

    @property
    def device(self) -> torch.device:
        return self.core.device

    def hidden(self, ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.core.model(ids, attention_mask)

    def head(self, hidden: Tensor) -> Tensor:
        return self.core.head(hidden)

    def trainable(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.core.named_parameters() if p.requires_grad}

    def reference(self) -> AbstractContextManager[None]:
        """The initial policy: adapters off."""
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
    def _without_dropout(self) -> Iterator[None]:
        was_training, parameters = self.core.training, self.trainable()
        live = {name: p.data for name, p in parameters.items()}
        try:
            self.core.eval()
            for name, average in self.ema.items():
                parameters[name].data = average
            yield
        finally:
            self.core.train(was_training)
            for name, p in parameters.items():
                p.data = live[name]

    def encode(self, messages: list[dict[str, str]]) -> Tensor:
        import torch

        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"], device=self.device)

    def decode(self, ids: Tensor) -> str:
        """The text before the first end-of-sequence token."""
        row = ids.tolist()
        return self.tokenizer.decode(row[: row.index(self.eos_id)] if self.eos_id in row else row)


def load_policy(model: Model, lora: Lora | None, seed: int) -> LlmPolicy:
    """Weights and tokenizer from `model.path`, on this process's device, in eval mode, with a fresh adapter if asked."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    from dopsd.models import llada  # noqa: F401  (registers model_type "llada")

    if not Path(model.path, "config.json").is_file():
        raise DopsdError(f"model.path: no config.json in {model.path}; run `dopsd pretrain` or name a checkpoint folder")
    try:
        weights, found = AutoModelForMaskedLM.from_pretrained(
            model.path, dtype=getattr(torch, model.dtype), local_files_only=True, output_loading_info=True
        )
    except SafetensorError as error:
        raise DopsdError(f"model.path {model.path}: a weight file is damaged ({error}); copy it again") from error
    faults = [f"{kind}: {sorted(found[kind])[:3]}" for kind in ("missing_keys", "unexpected_keys") if found[kind]]
    if faults:
        raise DopsdError(f"model.path {model.path}: weights do not fit the config; {'; '.join(faults)}")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True)
    return LlmPolicy(weights.to(device).eval().requires_grad_(False), tokenizer, lora, seed)
