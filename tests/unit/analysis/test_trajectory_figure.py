"""Labels of tokens in the figure of a trajectory."""

import pytest

from dopsd.analysis.trajectory_figure import _label


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
