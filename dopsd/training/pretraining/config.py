"""Sections `pretrain` and `adapt`: where a base comes from, if it is not downloaded."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dopsd.algorithms.common.config import TrainOverrides
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.sft.config import SftConfig
from dopsd.core.settings import Betas, Count, Distinct, Natural, Positive, Section, Share, Whole
from dopsd.models.config import Dtype, EmbeddedShape
from dopsd.training.run_settings import PHASES


class PretrainConfig(EmbeddedShape):
    """The embedded model's shape and its masked-diffusion pretraining on worked solutions.

    `tasks` is empty if the base is a downloaded checkpoint: there is nothing to pretrain then.
    `recipe` stands for the code: raise it when pretraining's numbers change on purpose
    (tests/unit/pipeline/test_recipe_numbers.py checks them).
    """

    # the tasks that have a base of their own, made from their worked solutions
    tasks: Annotated[list[Literal["sudoku", "countdown", "chains"]], Distinct] = Field([])
    recipe: Count = 1  # version of the pretraining code
    updates: Count = 800  # optimizer steps
    batch_size: Count = 64  # sequences in an update
    learning_rate: Positive = 3e-3  # peak, after warm-up; then decays linearly to 5%
    betas: Betas = Field([0.9, 0.98])  # of AdamW
    warmup_updates: Natural = 50  # updates of linear warm-up
    weight_decay: Annotated[float, Field(ge=0)] = 0.01  # of AdamW
    grad_clip: Positive = 1.0  # largest gradient norm
    careful_share: Share = 0.5  # share of correct worked solutions
    seed: Whole = 0  # of the weights, the batches and the masks


@dataclass(frozen=True)
class BaseSettings:
    """The settings that pretraining the embedded base depends on."""

    shape: PretrainConfig
    gen_length: int  # tokens of a completion, with its padding
    prompt_style: str  # model.prompt_style


LEARNING = TrainOverrides(
    updates=500,
    checkpoint_every=100,
    prompts_per_collect=64,
    reuse=1,
    learning_rate=2e-4,
    schedule="cosine",
    warmup_updates=20,
    betas=[0.9, 0.98],
    weight_decay=0.01,
    grad_clip=1.0,
    weights="all",
)


class Learning(SftConfig):
    """How an autoregressive model learns to denoise: `sft` of all weights.

    The learning rate and the length of the run are this project's choice.
    """

    held_out_every: Count | None = 50  # collects between looks at texts that are not learnt
    train: TrainOverrides = LEARNING  # what differs from section train


class Distilling(DOpsdConfig):
    """How the frozen autoregressive model teaches on the student's own answers (OPDLM).

    arXiv 2606.06712: forward KL at the masked tokens of one state of each answer, to what the
    model predicts from the finished answer's earlier tokens. It is `d_opsd` with that teacher.
    """

    attempts: Count = 1  # answers to a problem
    keep: Literal["correct", "all"] = "all"  # all: also learn on wrong answers
    reveal_ratio: Share = 0.0  # nothing is revealed beside the finished answer
    record_last_block: bool = True  # also train on states of the last block
    drop_remainder: bool = False  # no state is dropped
    state_sample: Natural = 1  # states drawn uniformly from each answer; 0: all
    position_selection: Literal["teacher", "student", "all"] = "all"  # of a block's masked tokens
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "forward_kl"  # student to teacher
    loss_vocabulary: Literal["full", "teacher_top_k"] = "full"  # entries of the loss
    clip: Annotated[float, Field(gt=0)] | None = None  # bound of the loss, in nats; null: none
    reduction: Literal["sum", "mean"] = "mean"  # over a state's positions
    teacher_attention: Literal["base", "all", "causal"] = "causal"  # as the source attends
    updates_per_trajectory: Count = 1  # updates over which an answer's states are spread
    train: TrainOverrides = LEARNING  # what differs from section train


class AdaptConfig(Section):
    """An autoregressive model (Llama, Qwen2, Qwen3) that becomes the base, `model.path`."""

    # the task whose problems, solutions and prompts it learns; none: the base is there already
    tasks: Annotated[list[str], Distinct] = Field([], max_length=1)
    source: str | None = None  # a folder in the hub's layout, or a GGUF file
    # 1: the state at position i predicts token i + 1, as before; 0: token i. Blocks need 0
    output_shift: Literal[0, 1] = 1
    mask_token: str | None = None  # a special token in reserve, or a new one; null: <|mask|>
    dtype: Dtype = "bfloat16"  # of the base's files
    seed: Natural = 0  # of the masks and of the order of problems
    learn: Learning = Learning()  # settings of method sft
    distill: Distilling | None = None  # then settings of method d_opsd; null: no such phase

    @model_validator(mode="after")
    def is_whole(self) -> Self:
        """Require a source and a training of all weights from it."""
        if self.tasks and not self.source:
            raise ValueError("source: name the autoregressive model, a folder or a GGUF file")
        for name in self.phases:
            train = vars(self)[PHASES[name]].train
            if (train.weights, train.start_from) != ("all", None):
                raise ValueError(f"{PHASES[name]}.train: adapting trains all weights of `source`")
        return self

    @property
    def phases(self) -> list[str]:
        """The names of the runs that make the base, in order; each continues the one before."""
        return [name for name, key in PHASES.items() if vars(self)[key]]
