"""Contexts in which an adapted model computes as its teacher, as its initial policy, or merged."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.models.adapter_files import read_adapter
from dopsd.models.lora import check_config, load_adapter, require_adapter
from dopsd.models.merging import merged_weights

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from peft import PeftModel
    from torch import Tensor

    from dopsd.models.denoiser import Denoiser


class AdapterContexts:
    """The Teachers of a policy: the base, the student itself, or the moving average of its adapter.

    Args:
        core: the base with the adapter's layers.
        adapted: the peft model around it; None: no adapter.
    """

    def __init__(self, core: Denoiser, adapted: PeftModel | None) -> None:
        self.core, self.adapted = core, adapted
        self.teacher_kind, self.ema_decay = "base", 0.0
        self.teacher_dropout = False
        self.ema: dict[str, Tensor] = {}  # moving average of the adapter; empty unless kind is ema
        self.start: dict[str, Tensor] = {}  # the reference's adapter; empty where it is the base
        self.is_merged = False

    def start_from(self, folder: Path, is_reference: bool) -> None:
        """Load a checkpoint's adapter in place of the fresh one.

        Args:
            folder: the checkpoint.
            is_reference: whether this adapter, not the base, is the reference from now on.

        Raises:
            DopsdError: if it was trained with another rank, scaling or list of targets, or on
                another base.
        """
        adapted = require_adapter(self.adapted)
        check_config(adapted, folder)
        load_adapter(adapted, read_adapter(folder), folder)
        if is_reference:
            self.start = {name: p.detach().clone() for name, p in self.trainable().items()}

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters in training, by name."""
        return {name: p for name, p in self.core.named_parameters() if p.requires_grad}

    def reference(self) -> AbstractContextManager[object]:
        """Compute with the initial policy while the context lasts, without dropout.

        This is the base, adapters off, or the adapter of `start_from` where that is the reference.

        Raises:
            DopsdError: inside `merged`, where the initial weights are replaced.
        """
        if self.is_merged:
            raise DopsdError(
                "merged: the initial policy is not available while adapters are in the weights",
                exit_code=1,
                code=Code.MERGING,
            )
        if self.start:
            return self._computing_with(self.start)
        return self.adapted.disable_adapter() if self.adapted else nullcontext()

    def teacher(self) -> AbstractContextManager[object]:
        """Compute as the teacher while the context lasts.

        base: the initial policy; live: the student's own weights; ema: their moving average. The
        adapter has no dropout, unless the live teacher keeps it.
        """
        if self.teacher_kind == "live" and self.teacher_dropout:
            return nullcontext()
        return self.reference() if self.teacher_kind == "base" else self._computing_with(self.ema)

    def use_teacher(self, kind: str, ema_decay: float, dropout: bool = False) -> None:
        """Choose the teacher: base, live or ema with this decay per update.

        Args:
            kind: base, live or ema.
            ema_decay: decay of the moving average per update.
            dropout: keep dropout on in the live teacher.
        """
        self.teacher_kind, self.ema_decay, self.teacher_dropout = kind, ema_decay, dropout
        if kind == "ema":
            self.ema = {name: p.detach().clone() for name, p in self.trainable().items()}

    def after_update(self) -> None:
        """Move the averages towards the student."""
        for name, p in self.trainable().items():
            if name in self.ema:
                self.ema[name].lerp_(p.detach(), 1 - self.ema_decay)

    def merged(self) -> AbstractContextManager[object]:
        """Compute with the adapters added into the weights while the context lasts.

        This is faster. In bfloat16 the sum is rounded, so reports must say that they are merged.
        """
        return nullcontext() if self.adapted is None else self._merged(self.adapted)

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
        was_training, parameters = self.core.training, self.trainable()
        original_data = {name: p.data for name, p in parameters.items()}
        try:
            self.core.eval()
            for name, weight in weights.items():
                parameters[name].data = weight
            yield
        finally:
            self.core.train(was_training)
            for name, p in parameters.items():
                p.data = original_data[name]
