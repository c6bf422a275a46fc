"""Supervised fine-tuning: solutions of the task or of a file, masked anew in every batch."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import write_params
from test_literal import collected as collected_of

from dopsd.algorithms.common.batch import MaskedTexts
from dopsd.algorithms.common.losses import masked_diffusion_loss
from dopsd.algorithms.common.masking import MaskedText, masked
from dopsd.algorithms.common.solutions import padded, solution
from dopsd.algorithms.sft.config import SftConfig
from dopsd.config.loading import load_params
from dopsd.config.named_files import missing_files
from dopsd.core.errors import DopsdError
from dopsd.core.rng import key_from
from dopsd.core.types import Problem
from dopsd.training.run_identity import identify

TRACES = "data/external/traces.jsonl"


def traces_file() -> Path:
    Path(TRACES).parent.mkdir(exist_ok=True)
    return Path(TRACES)


def collected(**changes):
    return collected_of("sft", False, **changes)


def test_the_tasks_own_solutions_are_learnt_with_their_padding(project):
    loop, batch = collected()
    texts = [loop.policy.text.decode(row) for row in batch.targets]
    problems = {problem.answer: problem for problem in loop.problems}
    for text in texts:
        problem = problems[text.split("<answer>")[1].split("</answer>")[0]]
        assert loop.task.verify(problem, text).correct
    assert batch.targets.shape == (2, 40) and (batch.targets[:, -1] == loop.policy.eos_id).all()
    assert loop.counters["rollouts"] == 0 and loop.counters["trajectories"] == 2


def test_rows_of_a_file_are_asked_and_answered_as_they_stand(project):
    rows = [{"question": "12", "response": "3412"}, {"question": "3", "response": "1" * 50}]
    traces_file().write_text("".join(json.dumps(row) + "\n" for row in rows))
    loop, batch = collected(traces={"path": TRACES}, length=8)
    texts = {loop.policy.text.decode(row) for row in batch.targets}
    assert texts == {"3412"} and batch.targets.shape[1] == 8  # the other is longer
    with pytest.raises(DopsdError, match=r"none of 2 rows .* at most 2 tokens .* at most 254"):
        collected(traces={"path": TRACES}, length=2)


def test_traces_are_all_read_before_one_is_read_again_and_ranks_read_different_ones(project):
    rows = [{"question": "1", "response": str(10 + i)} for i in range(24)]
    traces_file().write_text("".join(json.dumps(row) + "\n" for row in rows))
    loop, _ = collected(traces={"path": TRACES}, length=8)
    sft, order = loop.algorithm, [*loop.problems]
    both = [sft._traced(order[rank:4:2], 0) for rank in range(2)]  # shares of one collect
    texts = [loop.policy.text.decode(c) for part in both for _, c in part]
    assert len(set(texts)) == 4
    epoch = [loop.policy.text.decode(c) for _, c in sft._traced(order, 0)]  # 64 problems, 24 traces
    assert {epoch.count(str(10 + i)) for i in range(24)} == {2, 3}
    # the first collect of the second epoch goes on at trace 64
    later = len(order) // loop.settings.prompts_per_collect
    assert loop.policy.text.decode(sft._traced(order[:1], later)[0][1]) == str(10 + 64 % 24)


def test_the_loss_is_cross_entropy_over_the_share_of_masks(fake_policy):
    """Two of four tokens masked at t = 0.4: (-ln 0.91 - ln 0.1) / 0.4 / 4, by hand."""
    fake_policy.table = torch.zeros(4, 10)
    fake_policy.table[0, 3] = math.log(91)  # 0.91 there, 0.01 elsewhere
    fake_policy.length = 4
    ids, targets = torch.tensor([[1, 2, 9, 4, 9, 6]]), torch.tensor([[3, 4, 5, 6]])
    loss_mask = torch.tensor([[True, False, True, False]])
    batch = MaskedTexts(ids, ids > 0, targets, loss_mask, torch.tensor([1 / 0.4]), torch.ones(1))
    by_hand = (-math.log(0.91) - math.log(0.1)) / 0.4 / 4
    assert masked_diffusion_loss(fake_policy, batch).item() == pytest.approx(by_hand, rel=1e-5)


def test_the_share_of_masks_is_uniform_and_its_inverse_is_the_weight(fake_policy):
    text = torch.full((200,), 3)
    texts = [MaskedText(torch.tensor([1]), text, key=key_from("t", i)) for i in range(400)]
    batch = masked(fake_policy, texts)
    share = 1 / batch.token_weight
    assert float(share.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(share.min()) >= 0.001 and float(share.max()) <= 1
    assert float(share.quantile(0.25)) == pytest.approx(0.25, abs=0.06)
    masks = batch.loss_mask.float().mean(1)
    assert torch.allclose(masks, share, atol=0.15)  # 4 standard errors of 200 tokens


def test_another_file_of_traces_is_another_run_and_a_missing_one_is_named(project):
    path = traces_file()
    path.write_text('{"question": "1", "response": "2"}\n')
    write_params(matrix__methods=["sft"], method__sft__traces={"path": TRACES})
    before = identify(load_params().run("sudoku", "sft", 0)).folder
    path.write_text('{"question": "1", "response": "3"}\n')
    assert identify(load_params().run("sudoku", "sft", 0)).folder != before
    path.unlink()
    assert "method.sft.traces.path: data/external/traces.jsonl" in missing_files(load_params())


def test_what_train_does_not_name_stays_as_published():
    kept = SftConfig.model_validate({"train": {"updates": 1250}}).train
    found = (kept.learning_rate, kept.prompts_per_collect, kept.lora.alpha, kept.updates)
    assert found == (1e-5, 16, 256, 1250)
    assert SftConfig.model_validate({"train": {"lora": None}}).train.lora is None


def test_a_problem_without_a_solution_is_refused_by_name():
    class Bare:
        name = "countdown"

    with pytest.raises(DopsdError, match="sft: countdown problem c-1 has no reference solution"):
        solution(Bare(), Problem("c-1", "1 2", "3"), "sft")
    assert solution(Bare(), Problem("c-1", "1 2", "3", "one and two"), "sft") == "one and two"


def test_masks_are_those_of_the_text_whatever_stands_beside_it(fake_policy):
    one = MaskedText(torch.tensor([1, 2]), torch.tensor([3, 4, 5, 6]), key=7)
    other = MaskedText(torch.tensor([1, 2, 3, 4]), torch.tensor([6, 5, 4, 3]), key=8, weight=0.5)
    alone, beside = masked(fake_policy, [one]), masked(fake_policy, [one, other])
    assert torch.equal(alone.loss_mask[0], beside.loss_mask[0])
    assert alone.token_weight[0] == beside.token_weight[0] and beside.weight.tolist() == [1.0, 0.5]
    assert torch.equal(beside.ids[:, -4:] == fake_policy.mask_id, beside.loss_mask)


def test_padding_fills_and_cuts():
    assert padded(torch.tensor([1, 2]), 4, 9).tolist() == [1, 2, 9, 9]
    assert padded(torch.tensor([1, 2, 3]), 2, 9).tolist() == [1, 2]


def test_texts_of_several_lengths_are_masked_and_weighed_as_each_alone(fake_policy):
    """Each token of a text weighs 1 / (t L), whatever is beside it."""
    fake_policy.table = torch.randn(8, 10, generator=torch.Generator().manual_seed(0))
    texts = [MaskedText(torch.tensor([2, 3]), torch.arange(2, 2 + n), key=n) for n in (2, 5, 3)]
    together = masked(fake_policy, texts)
    assert together.targets.shape == (3, 5)
    assert together.mask[:, 2:].sum(1).tolist() == [2, 5, 3]  # padding is not seen
    assert together.loss_mask.sum(1).tolist() == [
        masked(fake_policy, [text]).loss_mask.sum().item() for text in texts
    ]
    for row, text in enumerate(texts):
        alone, n = masked(fake_policy, [text]), len(text.completion)
        assert torch.equal(together.loss_mask[row, :n], alone.loss_mask[0])
        assert together.token_weight[row] / 5 == pytest.approx(alone.token_weight.item() / n)
    fake_policy.block_size = 4
    assert masked(fake_policy, texts).targets.shape == (3, 8)  # whole blocks


def test_what_follows_the_end_is_not_learnt_if_padding_is_ignored(project):
    rows = [{"question": "12", "response": "3412"}, {"question": "3", "response": "1"}]
    traces_file().write_text("".join(json.dumps(row) + "\n" for row in rows))
    loop, batch = collected(traces={"path": TRACES}, length=8, padding="ignore")
    eos = loop.policy.eos_id
    learnt = [t[m].tolist() for t, m in zip(batch.targets, batch.mask[:, -5:], strict=True)]
    assert {len(row) for row in learnt} <= {2, 5}
    assert all(row[-1] == eos and eos not in row[:-1] for row in learnt)
    loop, batch = collected(traces={"path": TRACES}, length=8, padding="ignore", predict="all")
    assert batch.ids.shape[1] - batch.targets.shape[1] == 1  # the first token alone stays


def test_chats_are_learnt_as_their_last_answer(project):
    chat = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    chat += [{"role": "user", "content": "3"}, {"role": "assistant", "content": "45"}]
    traces_file().write_text(json.dumps({"id": 1, "messages": chat}) + "\n")
    loop, batch = collected(traces={"path": TRACES}, length=8)
    assert {loop.policy.text.decode(row) for row in batch.targets} == {"45"}
    prompt = loop.policy.text.decode(batch.ids[0, :-8])
    assert prompt.endswith("<|user|>1<|assistant|>2<|user|>3<|assistant|>")
    loop, batch = collected(traces={"path": TRACES}, length=8, held_out_every=1)  # of one none
    assert {loop.policy.text.decode(row) for row in batch.targets} == {"45"}
    other = {"id": 2, "messages": [{"role": "usr", "content": "1"}, chat[1]]}
    for row in ({"id": 1, "messages": chat[:1]}, other):
        traces_file().write_text(json.dumps(row) + "\n")
        with pytest.raises(DopsdError, match=r"traces.jsonl:1: .*expected (messages|a role of)"):
            collected(traces={"path": TRACES}, length=8)


def test_texts_that_are_not_learnt_are_looked_at(project, capsys):
    loop, _ = collected(held_out_every=2)
    first = loop.algorithm.held_out.measure(loop.policy, 0)
    assert {name: count for name, (_, count) in first.items()} == {
        "held_out_low": 12, "held_out_half": 12, "held_out_high": 12
    }  # fmt: skip
    assert "sft: an answer: " in capsys.readouterr().err
    again = loop.algorithm.held_out.measure(loop.policy, 1)
    assert first == again  # the same masks
    texts, policy = loop.algorithm.held_out.texts, loop.policy
    bound = sum(masked_diffusion_loss(policy, masked(policy, [t], 0.5, 0.5)).item() for t in texts)
    assert first["held_out_half"][0] == pytest.approx(bound, rel=1e-4)
