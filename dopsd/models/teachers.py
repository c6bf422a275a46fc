"""What of a model trains, and contexts in which it computes as its teacher or initial policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from torch import Tensor

from dopsd.core.errors import Code
from dopsd.core.tensor_files import save_tensors
from dopsd.models import lora
from dopsd.models.adapter_files import ADAPTER, check_shards, has_all_weights, read_adapter
from dopsd.models.checkpoint_files import file_values, save_whole, whole_tensors
from dopsd.models.merged_files import merged_weights

if TYPE_CHECKING:
    from dopsd.models.denoiser import Denoiser


class WeightContexts:
    """The weights in training, and the Teachers of a policy.

    An adapter trains, or all weights after `train_all`. The teacher is the base, the student
    itself, or the moving average of what trains.

    Args:
        core: the base, with the adapter's layers if there is one.
        adapted: the peft model around it; None: no adapter.
    """

    def __init__(self, core: Denoiser, adapted: PeftModel | None) -> None:
        self.core, self.adapted = core, adapted
        self.teacher_kind, self.ema_decay = "base", 0.0
        self.teacher_dropout, self.teacher_attention = False, "base"
        self.output_shift = core.config.output_shift
        self.ema: dict[str, Tensor] = {}  # moving average of what trains; empty unless kind is ema
        self.start: dict[str, Tensor] = {}  # the reference's weights; empty: adapter off
        # float32 weights in training where the model computes in bfloat16: steps of a small
        # learning rate would be rounded away there
        self.masters: dict[str, Tensor] = {}
        self.is_merged = False

    def train_all(self) -> None:
        """Train every weight of a model without adapter, from its present values."""
        for name, p in self.core.requires_grad_(True).named_parameters():
            if p.dtype != torch.float32:
                self.masters[name] = p.detach().float().requires_grad_()
                p.register_post_accumulate_grad_hook(_gradient_to(self.masters[name]))

    def keep_reference(self) -> None:
        """Let the present weights be the reference from now on, as a frozen copy."""
        self.start = {name: p.detach().clone() for name, p in self._computing().items()}

    def load(self, folder: Path) -> None:
        """Load a checkpoint's adapter in place of the present one, or its weights, all of them."""
        if not has_all_weights(folder):
            adapted = lora.require_adapter(self.adapted, folder)
            lora.check_config(adapted, folder)
            return lora.load_adapter(adapted, read_adapter(folder), folder)
        if self.adapted:
            raise Code.ADAPTER_MISFIT.error(
                f"{folder}: a checkpoint of all weights, and the model has an adapter; set"
                " train.weights to all"
            )
        check_shards(folder)
        self.load_all(folder)

    @torch.no_grad()
    def load_all(self, folder: Path) -> None:
        """Replace all weights by those of a folder: a base, or a checkpoint of all weights."""
        own = self.all_weights()
        for name, tensor in file_values(self.core, folder):
            own[name].copy_(tensor)
        self._follow_masters()

    def save(self, folder: Path) -> None:
        """Write the adapter, or all weights if there is none, into an existing folder.

        Raises:
            OSError: if the disk is full or a file cannot be written.
        """
        if self.adapted is None:
            return save_whole(self.core, self.all_weights(), folder)
        save_tensors(lora.adapter_tensors(self.adapted), folder / ADAPTER)
        lora.save_config(self.adapted, folder)

    def all_weights(self) -> dict[str, Tensor]:
        """Return all tensors of the model as its files hold them, in training precision."""
        return whole_tensors(self.core) | self.masters

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters in training, by name."""
        return self._computing() | self.masters

    def _computing(self) -> dict[str, Tensor]:
        """Return the parameters that compute and train, by name, in the model's precision."""
        return {name: p for name, p in self.core.named_parameters() if p.requires_grad}

    def _follow_masters(self) -> None:
        """Round the weights in training to the weights that compute."""
        parameters = self._computing() if self.masters else {}
        for name, master in self.masters.items():
            parameters[name].data.copy_(master.detach())

    def reference(self) -> AbstractContextManager[object]:
        """Compute with the initial policy while the context lasts, without dropout.

        This is the base, adapters off, or what `keep_reference` kept.

        Raises:
            DopsdError: inside `merged`, where the initial weights are replaced; if all weights
                train and none were kept.
        """
        if self.is_merged:
            raise Code.MERGING.error(
                "merged: the initial policy is not available while adapters are in the weights",
                1,
            )
        if self.start:
            return self._computing_with(self.start)
        if not self.adapted and self._computing():
            raise Code.PLUGIN.error(
                "reference: all weights train, and no copy of the initial ones was kept; the"
                " method's config must say needs_reference"
            )
        return lora.without_adapters(self.adapted) if self.adapted else nullcontext()

    @contextmanager
    def teacher(self) -> Iterator[None]:
        """Compute as the teacher while the context lasts.

        base: the initial policy; live: the student's own weights; ema: their moving average. There
        is no dropout, unless the live teacher keeps it.
        """
        with self._teaching(), self.attending(self.teacher_attention):
            yield

    @contextmanager
    def attending(self, attention: str) -> Iterator[None]:
        """Let tokens see others than the base does while the context lasts.

        Args:
            attention: base: no others; all: each sees every other, also in a block-causal model;
                causal: each sees those before it and is predicted from them, as in an
                autoregressive model.
        """
        kept = self.core.config.block_size, self.output_shift
        values = {"base": kept, "all": (None, kept[1]), "causal": (1, 1)}[attention]
        self.core.config.block_size, self.output_shift = values
        try:
            yield
        finally:
            self.core.config.block_size, self.output_shift = kept

    def _teaching(self) -> AbstractContextManager[object]:
        if self.teacher_kind == "live" and self.teacher_dropout:
            return nullcontext()
        # live: ema is empty, so these are the student's own weights
        return self.reference() if self.teacher_kind == "base" else self._computing_with(self.ema)

    def use_teacher(
        self, kind: str, ema_decay: float, dropout: bool = False, attention: str = "base"
    ) -> None:
        """Choose the teacher: base, live or ema with this decay per update."""
        config = self.core.config
        if attention == "causal" and (
            "output_shift" not in config.in_file
            or str(config._attn_implementation).startswith("flash")
        ):
            raise Code.UNSUPPORTED_MODEL.error(
                f"teacher_attention: causal needs model.attention sdpa and a base that was made of"
                f" an autoregressive model; {config.model_type} with"
                f" {config._attn_implementation} is not"
            )
        self.teacher_attention = attention
        self.teacher_kind, self.ema_decay, self.teacher_dropout = kind, ema_decay, dropout
        if kind == "ema":
            self.ema = {name: p.detach().clone() for name, p in self.trainable().items()}

    def after_update(self) -> None:
        """Let the weights that compute follow those in training; move the averages to these."""
        self._follow_masters()
        for name, p in self.trainable().items():
            if name in self.ema:
                self.ema[name].lerp_(p.detach(), 1 - self.ema_decay)

    def merged(self) -> AbstractContextManager[object]:
        """Compute with the adapters added into the weights while the context lasts.

        This is faster. In bfloat16 the sum is rounded, so reports must say that they are merged.
        """
        if self.adapted is None:
            raise Code.MERGING.error(
                "merged: the checkpoint holds all weights, and there is no adapter to add; leave"
                " out --merged, or take a protocol without it"
            )
        return self._merged(self.adapted)

    @contextmanager
    def _merged(self, adapted: PeftModel) -> Iterator[None]:
        with merged_weights(adapted):
            self.is_merged = True
            try:
                yield
            finally:
                self.is_merged = False

    @contextmanager
    def _computing_with(self, weights: dict[str, Tensor]) -> Iterator[None]:
        """Compute without dropout and with these weights in place of those in training."""
        was_training, parameters = self.core.training, self._computing()
        original_data = {name: p.data for name, p in parameters.items()}
        try:
            self.core.eval()
            for name, weight in weights.items():
                parameters[name].data = weight.to(parameters[name].dtype)
            yield
        finally:
            self.core.train(was_training)
            for name, p in parameters.items():
                p.data = original_data[name]


def _gradient_to(master: Tensor) -> Callable[[Tensor], None]:
    """Return a hook that adds a parameter's gradient to its master's, in float32."""

    def hook(p: Tensor) -> None:
        if p.grad is not None:
            master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
            p.grad = None

    return hook
