"""What the benchmarks time computes the same as the plain procedure, on a few rows."""

import sys

import pytest
import torch
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import evaluate
import rollout
import trajectory
import update
from shapes import CHUNK, Shape, embedded, vocabulary

pytestmark = pytest.mark.full


@pytest.fixture
def shape(monkeypatch: pytest.MonkeyPatch) -> Shape:
    monkeypatch.chdir(ROOT)
    if not (ROOT / "base/sudoku/model.safetensors").is_file():
        pytest.skip("base/sudoku is not there: `dvc repro pretrain` or `git checkout base`")
    return embedded(3, torch.device("cpu"))


def test_greedy_rollouts_are_plains_token_for_token(shape: Shape):
    assert rollout.same(shape) == 3


def test_loss_and_gradients_of_an_update_are_plains_within_1e5(shape: Shape):
    assert 0 < update.same(shape) < 1e-5


def test_greedy_answers_are_plains_stopped_at_their_end_or_not(shape: Shape):
    assert evaluate.same(evaluate.cut(evaluate.asked(shape, 5))) == 5


def test_attempts_in_waves_are_those_that_plain_makes_one_after_the_other(shape: Shape):
    many = embedded(12, torch.device("cpu"))
    assert trajectory.same(many) > len(many.prompts)


def test_the_check_sees_a_gradient_that_is_off(shape: Shape, monkeypatch: pytest.MonkeyPatch):
    loss = update.plain.chunk_loss
    monkeypatch.setattr(update.plain, "chunk_loss", lambda *given: 1.0001 * loss(*given))
    with pytest.raises(AssertionError, match="loss or gradients differ"):
        update.same(shape)


def test_the_wide_shape_is_llada_vocabulary_on_about_50_million_parameters():
    shape = vocabulary(1, torch.device("cpu"))
    assert shape.policy.vocabulary == 126464 and shape.states == CHUNK
    frozen = [p.numel() for p in shape.policy.core.parameters() if not p.requires_grad]
    assert 45e6 < sum(frozen) < 60e6
