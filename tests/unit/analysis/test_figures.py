"""Figures of a run, labels of tokens, and lines on scores that were measured differently."""

import pytest

from dopsd.algorithms.d_opsd.config import METRICS as DISTILLATION
from dopsd.analysis.figures import AGREEMENT, LABELS, SHARES
from dopsd.analysis.results import differing_keys
from dopsd.analysis.trajectory_figure import _label
from dopsd.models.backends import in_words
from dopsd.tracking.glossary import TRAINING

H200 = {
    "device": "NVIDIA H200",
    "dtype": "bfloat16",
    "quantization": "none",
    "attention": "flash_attention_2",
    "compile": False,
    "batch_size": 64,
    "packages": {"dopsd": "0.3.0", "torch": "2.13.0", "flash-attn": "2.8.3"},
}
A100 = H200 | {"device": "NVIDIA A100"}
SDPA = H200 | {"attention": "sdpa", "packages": {"dopsd": "0.3.0", "torch": "2.12.0"}}


def test_scores_that_agree_have_no_line():
    assert differing_keys({"a": [H200], "b": [dict(H200)], "c": [H200, H200]}) == []


def test_each_difference_has_one_line_with_its_runs_and_values():
    assert differing_keys({"a": [H200], "b": [A100], "c": [H200]}) == [
        "device differs: NVIDIA H200 in a, c, but NVIDIA A100 in b. Elsewhere, the same code scored"
        " 77.5 on one kind of GPU and 72.8 on another."
    ]
    fields = [line.split(" differs: ") for line in differing_keys({"a": [H200], "b": [SDPA]})]
    assert [name for name, _ in fields] == ["attention", "torch", "flash-attn"]
    assert fields[2][1].startswith("2.8.3 in a, but none in b.")


def test_ranks_on_two_devices_are_a_value_of_their_own():
    (line,) = differing_keys({"a": [H200, A100], "b": [A100]})
    assert line.startswith("device differs: NVIDIA A100 and NVIDIA H200 in a, but NVIDIA A100 in b")
    assert differing_keys({"a": [H200, A100], "b": [A100, H200]}) == []


def test_many_runs_fit_a_line():
    (line,) = differing_keys({f"r{i}": [A100 if i else H200] for i in range(8)})
    assert "NVIDIA A100 in r1, r2, r3, r4, 3 more." in line


def test_a_record_in_words_leaves_out_what_is_switched_off():
    assert in_words([SDPA]) == (
        "NVIDIA H200, bfloat16, attention sdpa, batch size 64, dopsd 0.3.0, torch 2.12.0"
    )


def test_every_name_in_a_figure_is_a_metric_with_that_unit():
    metrics = DISTILLATION | TRAINING
    units = {name: metrics[name].unit for name in LABELS}
    assert {name for name, unit in units.items() if unit == "share"} == set(SHARES)
    assert set(AGREEMENT) <= set(SHARES)
    for name, unit in units.items():
        assert (f"({unit})" in LABELS[name]) == (unit in ("tokens", "nats")), name


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("<answer>", "<a"),
        ("</answer>", "/a"),
        ("<|endoftext|>", "·"),
        ("<", "<"),  # tokens of language models
        ("</", "/"),
        ("Answer", "An"),
    ],
)
def test_a_label_fits_into_a_cell_whatever_the_token(token: str, label: str):
    assert _label(token) == label
