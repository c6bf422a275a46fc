"""Section `train`: the training loop, the same for every algorithm."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from dopsd.core.settings import Betas, Count, Natural, Positive, Section, Share
from dopsd.models.config import AdapterConfig, Reference, Weights

AUTO = "auto"  # train.micro_batch_states: as many as measured memory holds
GUESS = 8  # micro_batch_states where a number is needed before memory is measured


class TrainConfig(Section):
    """The training loop: collects of problems and optimizer updates.

    A method overrides these settings in its own section, `method.<name>.train`.
    """

    updates: Count = 500  # optimizer steps
    prompts_per_collect: Count = 4  # problems of a collect, over all processes
    reuse: Count = 1  # how often the updates of a collect are made, in their order
    learning_rate: Positive = 5e-6  # after warm-up
    schedule: Literal["constant", "cosine", "linear"] = "constant"  # others: down to 0 at the end
    warmup_updates: Natural = 1  # updates of linear warm-up from 0
    warmup_ratio: Share | None = None  # in its place a share of an epoch's updates, rounded up
    betas: Betas = Field([0.9, 0.99])  # of AdamW
    weight_decay: Annotated[float, Field(ge=0)] = 0.1  # of AdamW
    grad_clip: Positive = 0.2  # largest gradient norm
    micro_batch_states: Count | Literal["auto"] = 64  # states in one forward and backward pass
    gradient_checkpointing: bool = False  # recompute layers in the backward pass to save memory
    checkpoint_every: Count = 25  # updates between checkpoints
    max_empty_collects: Count = 50  # end after more collects in a row without anything to learn
    collapse_window: Count = 8  # collects in the rolling mean of the first-attempt score
    collapse_drop: Share = 0.3  # share of the best mean by which a collapse falls below it
    collapse_errors: Positive = 4.0  # standard errors by which a collapse falls below the best mean
    stop_on_collapse: bool = False  # end a collapsed run
    weights: Weights = "lora"  # what trains: an adapter; all: every weight of the base
    lora: AdapterConfig = AdapterConfig()  # the adapter in training; not read with weights all
    start_from: str | None = None  # checkpoint folder or run (sft, sudoku/sft/0) to start from
    reference: Reference = "base"  # reference and fixed teacher: the base, or start_from

    def decisive(self, *ignored: str) -> dict[str, Any]:
        """Return the values by which results are identified; an older one has no reuse."""
        return super().decisive(*ignored, *(["reuse"] if self.reuse == 1 else []))

    @property
    def adapter(self) -> AdapterConfig | None:
        """The adapter in training; None: all weights train."""
        return self.lora if self.weights == "lora" else None

    @property
    def has_dropout(self) -> bool:
        """Whether the model in training drops activations, which only adapters do."""
        return self.adapter is not None and self.adapter.dropout > 0

    @property
    def states_at_once(self) -> int:
        """micro_batch_states, or for `auto` a guess at the number that will be measured."""
        return GUESS if isinstance(self.micro_batch_states, str) else self.micro_batch_states


class CheckpointsConfig(Section):
    """Which checkpoints of finished runs stay on the disk, and where else checkpoints go."""

    keep: Literal["all", "best_and_last"] | Count = "all"  # n: the best, and the n newest
    remote: str | None = None  # a folder or address, such as s3://bucket/path: copies, made at once

    @field_validator("remote")
    @classmethod
    def protocol_is_known(cls, remote: str | None) -> str | None:
        """Check that fsspec knows the protocol of the address."""
        protocol = remote.partition("://")[0] if remote and "://" in remote else "file"
        if remote is not None and (":" in remote or not remote):
            from fsspec import available_protocols

            start, _, rest = remote.partition(":")
            if start in available_protocols() and "://" not in remote:
                raise ValueError(f"{remote!r}: did you mean {start}://{rest.lstrip('/')}?")
            if protocol not in available_protocols() or not remote:
                raise ValueError(
                    f"{remote!r}: expected a folder, or an address such as s3://bucket/path"
                )
        return remote
