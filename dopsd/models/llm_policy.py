"""Load a base model, its tokenizer and an adapter as one Policy (`load_policy`)."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dopsd.core.errors import Code
from dopsd.distributed.process_group import (
    LockstepForwards,
    ProcessGroup,
    SingleProcess,
    UnevenForwards,
)
from dopsd.models.device import choose_threads, take_device
from dopsd.models.graphs import CudaRecorder, GraphedTrunk
from dopsd.models.loading import load_base
from dopsd.models.lora import attach, recompute_dropout
from dopsd.models.teachers import WeightContexts
from dopsd.models.text import ChatText
from dopsd.models.tokenizer import load_tokenizer, suppress_tokens

if TYPE_CHECKING:
    from dopsd.models.config import AdapterConfig, ModelConfig
    from dopsd.models.denoiser import Denoiser
    from dopsd.models.kv_cache import KVCache
    from dopsd.models.policy import Alignment, Attention, Text


class LlmPolicy(WeightContexts):
    """A masked diffusion model behind the Policy protocol.

    The teacher and reference contexts are inherited; `text` holds chats and token ids.

    Args:
        lora: shape of a fresh adapter; None: no adapter.
    """

    def __init__(
        self,
        model: Denoiser,
        tokenizer: PreTrainedTokenizerBase,
        lora: AdapterConfig | None,
        seed: int,
    ) -> None:
        super().__init__(model, attach(model, lora, seed) if lora else None)
        recompute_dropout(model, model.is_fused)
        self.tokenizer = tokenizer
        self.text: Text = ChatText(tokenizer, model)
        self.vocabulary = model.config.embedding_size
        self.max_length = model.config.max_sequence_length
        self.mask_id = model.config.mask_token_id
        self.eos_id = model.config.eos_token_id
        self.suppress_tokens = suppress_tokens(tokenizer, model.config)
        self.process_group: ProcessGroup = SingleProcess()
        self.rows_that_fit: dict[int, int] = {}
        self.forwards = UnevenForwards()
        self.graphs: GraphedTrunk | None = None
        # new adapter layers are in training mode: their dropout would make every answer random
        self.core.eval()

    @property
    def device(self) -> torch.device:
        """Device of the weights; prompts and rollouts are in main memory."""
        return self.core.device

    @property
    def attention_pattern(self) -> Attention:
        """Which tokens see which."""
        return self.core.config.attention_pattern

    @property
    def block_size(self) -> int | None:
        """Tokens of a block of block-causal attention; None: each token sees every other."""
        return self.core.config.block_size

    @property
    def block_alignment(self) -> Alignment:
        """Where blocks are counted from: the start of the sequence, or of the completion."""
        return self.core.config.block_alignment

    @property
    def needs_lockstep(self) -> bool:
        """Whether all processes must make every forward together, each with an input of its own."""
        return self.forwards.needs_lockstep

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        kv_cache: KVCache | None = None,
        cache_positions: slice | None = None,
    ) -> Tensor:
        """Return hidden states [B, T, D] of ids [B, T], as `Forward.hidden` describes."""
        self.forwards.before_forward()
        if self.graphs and kv_cache is None and self.graphs.applies(ids, attention_mask):
            hidden = self.graphs(ids, attention_mask)
        else:
            hidden = self.core.trunk(ids, attention_mask, kv_cache, cache_positions)
        return self._unshifted(hidden, kv_cache, cache_positions) if self.output_shift else hidden

    def masked_hidden(self, ids: Tensor, attention_mask: Tensor | None, clean: Tensor) -> Tensor:
        """Return hidden states [B, G, D] of masked completions: see `Forward.masked_hidden`."""
        length = clean.shape[1]
        if self.attention_pattern == "bidirectional":
            return self.hidden(ids, attention_mask)[:, -length:]
        self.forwards.before_forward()
        prompt, size = ids.shape[1] - length, self.block_size or 0
        # tokens of the prompt in the completion's first block see its masks: they are copied too
        shared = min(size - 1, prompt) if self.block_alignment == "sequence" else 0
        copied = length + shared
        doubled = torch.cat([ids[:, :prompt], clean, ids[:, -copied:]], 1)
        return self.core.trunk(doubled, attention_mask, copied=copied)[:, -length:]

    def _unshifted(
        self, hidden: Tensor, kv_cache: KVCache | None, cache_positions: slice | None
    ) -> Tensor:
        if kv_cache is None:
            return aligned(hidden, None)
        if cache_positions is None or kv_cache.hidden is None:
            kv_cache.hidden = hidden
            return aligned(hidden, None)
        first = cache_positions.start
        kv_cache.hidden[:, cache_positions] = hidden
        return aligned(hidden, kv_cache.hidden[:, first - 1 : first] if first else None)

    def release_memory(self) -> None:
        """Give back the memory of recorded forwards, which will be recorded again."""
        if self.graphs:
            self.graphs.clear()

    def new_kv_cache(self) -> KVCache:
        """Return an empty cache."""
        return self.core.new_kv_cache()

    def head(self, hidden: Tensor) -> Tensor:
        """Project [..., D] to logits [..., V]."""
        if (
            hidden.dtype == torch.bfloat16
        ):  # a CPU multiplies a slice of 3 dimensions 47 times slower
            hidden = hidden.contiguous()
        return self.core.head(hidden)

    def merged(self) -> AbstractContextManager[object]:
        """Compute with the adapters added into the weights."""
        if self.needs_lockstep:
            raise Code.MERGING.error(
                "merged: adapters cannot be added into a sharded base; set launch.shard to false"
            )
        return super().merged()

    def load_all(self, folder: Path) -> None:
        """Replace all weights by those of a folder."""
        if self.needs_lockstep or getattr(self.core, "hf_quantizer", None):
            raise Code.ADAPTER_MISFIT.error(
                f"{folder}: all weights fit only a base that is whole in each process; set"
                " launch.shard to false and model.quantization to none"
            )
        super().load_all(folder)

    def use_gradient_checkpointing(self) -> None:
        """Recompute the activations of each block in the backward pass.

        This takes less memory and gives the same gradients.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # renamed in newer transformers
            self.core.gradient_checkpointing_enable({"use_reentrant": False})
        recompute_dropout(self.core, False)  # blocks recompute it
        if self.graphs:
            self.graphs.has_plain_updates = True


def aligned(hidden: Tensor, before: Tensor | None) -> Tensor:
    """Undo an output shift of one: entry i becomes the state that predicts token i.

    Args:
        hidden: [B, T, D] from the trunk.
        before: [B, 1, D], the state of the position before the first; None: the first state is used
            for both.

    Returns:
        [B, T, D].
    """
    return torch.cat([hidden[:, :1] if before is None else before, hidden[:, :-1]], 1)


def load_policy(
    model: ModelConfig,
    lora: AdapterConfig | None,
    seed: int,
    device: torch.device | None = None,
    shard: bool = False,
) -> LlmPolicy:
    """Load weights and tokenizer from `model.path`, in eval mode.

    Args:
        lora: shape of a fresh adapter; None: no adapter.
        device: where to compute; None: take_device().
        shard: split the base over the processes that were started together.
    """
    target_device = device or take_device()
    base = load_base(model, target_device, on_host=shard)
    if target_device.type == "cpu":
        choose_threads(sum(weight.numel() for weight in base.parameters()))
    policy = LlmPolicy(base, load_tokenizer(Path(model.path), base.config), lora, seed)
    if model.cuda_graphs:
        policy.graphs = GraphedTrunk(policy.core, CudaRecorder(target_device))
    if shard:
        policy.forwards = shard_base(policy.core, target_device)
    return policy


def shard_base(model: Denoiser, device: torch.device) -> LockstepForwards:
    """Shard the frozen weights of each block, and return the forwards to make together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    trunk = model.base_model
    for block in model.blocks():
        trainable = {p for p in block.parameters() if p.requires_grad}
        for p in trainable:
            p.data = p.data.to(device)
        fully_shard(block, mesh=mesh, ignored_params=trainable)
    unsharded = {p for p in model.parameters() if not isinstance(p, DTensor)}
    for p in unsharded:
        p.data = p.data.to(device)
    fully_shard(trunk, mesh=mesh, ignored_params=unsharded)
    return LockstepForwards(trunk, device)
