"""Pages of the docs that come from the code are those that the code makes now."""

from __future__ import annotations

import re
import shutil
from inspect import get_annotations
from pathlib import Path
from typing import Annotated

import pytest
from field_meanings import meaning
from pydantic import Field
from reference import DOCS, PAGES, algorithms_table, page_text
from settings_reference import sections, settings_rows, shared_parts

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import DopsdError
from dopsd.core.settings import Count, Section, Share

WITHOUT_MEANING = {  # class: fields; a class that derives from it is counted once, here
    "AblateConfig": "task method seeds run variants tables",
    "AdapterConfig": "r alpha dropout targets",
    "AlgorithmConfig": "train",
    "ArOpsdConfig": "max_teacher_prompt",
    "CollectorConfig": "attempts first_temperature retry_temperature keep_threshold keep",
    "CompareConfig": "baseline",
    "CountdownConfig": "numbers generate",
    "D3llmConfig": "warmer first_block last_block most_masked entropy_weight entropy_temperature",
    "DiffuGrpoConfig": "group_size temperature clip_range kl_weight prompt_mask reward",
    "EmbeddedShape": "d_model n_layers n_heads mlp_hidden_size rope_theta",
    "EvalProtocol": "mask_padding autocast",
    "EvaluateConfig": "protocols bootstrap",
    "LaunchConfig": "processes",
    "MatrixConfig": "tasks methods seeds",
    "ModelConfig": "path dtype quantization attention prompt_style",
    "ModelOverrides": "path dtype quantization attention compile prompt_style",
    "PretrainConfig": (
        "tasks recipe updates batch_size learning_rate betas warmup_updates weight_decay "
        "grad_clip careful_share seed"
    ),
    "RftConfig": "draws_per_rollout updates_per_collect",
    "RowTaskConfig": "train test validation seed",
    "SamplingConfig": "gen_length block_length steps gumbel_dtype stop_after_eos batch_size",
    "SelectConfig": "split protocol",
    "SelectingConfig": "skip_empty denominator",
    "SelfDistillationConfig": (
        "reveal_scope reveal_ratio record record_last_block drop_remainder state_sample "
        "position_selection teacher_confidence divergence jsd_beta loss_vocabulary top_k clip "
        "reduction teacher ema_decay updates_per_trajectory"
    ),
    "SftConfig": "traces length",
    "Source": "path split",
    "SudokuConfig": "train validation test validation_grids test_grids blanks seed test_file",
    "TaskConfig": "recipe scoring prompt_file model",
    "TrackingConfig": "enabled uri experiment registered_model",
    "TrainConfig": (
        "updates prompts_per_collect learning_rate schedule warmup_updates betas weight_decay "
        "grad_clip micro_batch_states gradient_checkpointing checkpoint_every "
        "max_empty_collects collapse_window collapse_drop collapse_errors stop_on_collapse "
        "lora"
    ),
    "TrainOverrides": (
        "updates checkpoint_every prompts_per_collect learning_rate schedule warmup_updates "
        "betas weight_decay lora"
    ),
    "VerifyTeacherConfig": "tasks problems attempts temperature reveal_ratios",
    "VrpoConfig": "attempts temperature beta sft_weight",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes(name: str):
    assert (DOCS / name).read_text() == page_text(name), "run `make reference` and commit the pages"


class Example(Section):
    """An example."""

    beside: Count = 1  # on its line
    # above it,
    # on two lines
    above: Share | None = 0.5
    wrapped: bool = False  # on one of its lines
    described: list[str] = Field(["a"], min_length=1, description="in the field")
    nothing: Annotated[float, Field(gt=0, lt=1)]  # noqa: RUF100


class Derived(Example):
    above: Share | None = None


def test_a_row_gives_type_bounds_default_and_the_meaning_wherever_it_is_written():
    assert settings_rows(Example) == [
        ["`beside`", "whole number >= 1", "`1`", "on its line"],
        ["`above`", "number >= 0 and <= 1 or null", "`0.5`", "above it, on two lines"],
        ["`wrapped`", "true or false", "`false`", "on one of its lines"],
        ["`described`", "list of text (length at least 1)", "`[a]`", "in the field"],
        ["`nothing`", "number > 0 and < 1", "required", ""],
    ]
    assert settings_rows(Derived)[1] == [
        "`above`",
        "number >= 0 and <= 1 or null",
        "`null`",
        "above it, on two lines",
    ]


def owner(kind: type[Section], field: str) -> str:
    """Return the name of the first class that has a field."""
    return next(base.__name__ for base in reversed(kind.__mro__) if field in get_annotations(base))


def test_every_setting_has_a_meaning_but_those_that_are_listed():
    kinds = [*(kind for _, kind in sections()), *shared_parts()]
    missing = {
        (owner(kind, name), name)
        for kind in kinds
        for name in kind.model_fields
        if not meaning(kind, name)
    }
    listed = {(kind, name) for kind, names in WITHOUT_MEANING.items() for name in names.split()}
    assert missing - listed == set(), "add a comment to the line of the setting in its config.py"
    assert listed - missing == set(), "these have a meaning now: take them off WITHOUT_MEANING"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A page for each algorithm; that of rft is the real one."""
    for name in ALGORITHMS.names:
        text = f"---\nlearns_from: rollouts\nloss: a | b\nsource: paper\n---\n# {name}\n"
        (tmp_path / f"{name}.md").write_text(text)
    shutil.copyfile(DOCS / "algorithms/rft.md", tmp_path / "rft.md")
    return tmp_path


def test_the_table_of_algorithms_has_a_row_a_page(pages):
    head, _, *rows = algorithms_table(pages, "docs/algorithms").splitlines()
    assert head == "| algorithm | learns from | loss | source |"
    assert rows[0] == "| [`ar_opsd`](docs/algorithms/ar_opsd.md) | rollouts | a \\| b | paper |"
    assert len(rows) == len(ALGORITHMS.names)
    assert "| [Rejection fine-tuning](docs/algorithms/rft.md) | its own kept rollouts |" in rows[4]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "no such page; add it with a front matter of learns_from, loss, source"),
        ("# sft\n", "the front matter has no learns_from, loss, source; add it"),
        ("---\nloss: x\nsource: y\n---\n", "the front matter has no learns_from; add it"),
        ("---\nonly text\n---\n", "the front matter is not a mapping of keys; write key: value"),
        ("---\na: [\n---\n", "the front matter is not valid YAML"),
    ],
)
def test_a_page_without_its_front_matter_is_named(pages, text: str | None, fault: str):
    page = pages / "sft.md"
    page.unlink() if text is None else page.write_text(text)
    with pytest.raises(DopsdError, match=f"{re.escape(f'{page}: {fault}')}"):
        algorithms_table(pages)
