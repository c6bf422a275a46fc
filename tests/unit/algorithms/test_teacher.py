"""Training states of a rollout: which steps, what is shown, which positions and weights."""

from __future__ import annotations

import pytest
import torch
from autoregressive_toys import save_source
from hypothesis import given
from hypothesis import strategies as st

from dopsd.algorithms.d_opsd.algorithm import DOpsd
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import (
    BlockSchedule,
    recorded_steps,
    reveal,
    states_by_update,
    trained_steps,
)
from dopsd.core.errors import DopsdError
from dopsd.core.types import Rollout
from dopsd.models.a2d.convert import Form, convert
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.training.pretraining.config import Distilling

EOS, MASK = 8, 9
BLOCKS = BlockSchedule(block_length=4, num_transfer_tokens=(2, 2), mask_id=MASK, eos_id=EOS)
PLAIN = {"drop_remainder": False, "updates_per_trajectory": 1}
ALL = {"record": "all", "record_last_block": True}


def rollout(ids: list[int], revealed: list[int], name: str = "p", prompt: int = 2) -> Rollout:
    return Rollout(name, 0, torch.arange(prompt), torch.tensor(ids), torch.tensor(revealed))


# three blocks of four, two a step; the text ends in the third block
LONG = rollout([1, 2, 3, 4, 5, 6, 7, 1, 2, EOS, EOS, EOS], [0, 1, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5])


def test_the_last_block_is_not_recorded_unless_asked_for():
    assert recorded_steps(LONG, DOpsdConfig(), BLOCKS) == [0, 1, 2, 3]
    assert recorded_steps(LONG, DOpsdConfig(**ALL), BLOCKS) == [0, 1, 2, 3, 4, 5]


def test_a_state_counts_while_a_mask_is_left_before_the_first_end_of_text():
    early_end = rollout([1, 2, EOS, EOS, 3, 3, 3, 3], [0, 1, 0, 1, 2, 2, 3, 3])
    # step 0: nothing committed; step 1: an end of text stands, position 1 before it is masked;
    # steps 2, 3: finished
    assert recorded_steps(early_end, DOpsdConfig(record_last_block=True), BLOCKS) == [0, 1]
    assert recorded_steps(early_end, DOpsdConfig(**ALL), BLOCKS) == [0, 1, 2, 3]


def test_future_blocks_are_revealed_by_the_floor_of_the_ratio_and_nothing_of_the_present_block():
    shown = reveal(LONG, [0], DOpsdConfig(reveal_ratio=0.3), BLOCKS, key=1)[0]
    assert int(shown.sum()) == 2  # floor(0.3 x 8)
    assert not shown[:4].any()


def test_nothing_is_revealed_once_the_next_block_starts_at_or_after_the_first_end_of_text():
    for fifth, shown in ((EOS, 0), (5, 1)):
        run = rollout([1, 2, 3, 4, fifth, EOS, EOS, EOS], [0, 1, 0, 1, 2, 2, 3, 3])
        (found,) = reveal(run, [0], DOpsdConfig(reveal_ratio=1.0), BLOCKS, key=1)
        assert found.int().tolist() == [0] * 4 + [shown] * 4


def test_all_masked_reveals_inside_the_block_and_takes_those_positions_out_of_the_candidates():
    config = DOpsdConfig(reveal_scope="all_masked", reveal_ratio=0.5, **ALL, **PLAIN)
    states = states_by_update([LONG], config, BLOCKS, (0, 0))[0]
    for row in range(len(states)):
        shown = (states.teacher_ids[row] != states.student_ids[row])[-12:]
        assert not (states.candidates[row] & shown).any()
        assert int(states.k[row]) == min(2, int(states.candidates[row].sum())) > 0


def test_a_state_without_a_position_left_is_dropped():
    config = DOpsdConfig(reveal_scope="all_masked", reveal_ratio=1.0, **ALL, **PLAIN)
    assert states_by_update([LONG], config, BLOCKS, (0, 0)) == []


def test_draws_are_independent_by_step_and_repeatable():
    half = DOpsdConfig(reveal_ratio=0.5)
    draws = [reveal(LONG, [0], half, BLOCKS, key)[0].tolist() for key in (1, 1, 2, 3, 4)]
    assert draws[0] == draws[1]
    assert len({tuple(d) for d in draws}) > 1


def test_student_and_teacher_rows_by_hand():
    config = DOpsdConfig(reveal_ratio=1.0, **PLAIN)
    states = states_by_update([LONG], config, BLOCKS, (0, 0))[0]
    assert states.step.tolist() == [0, 1, 2, 3]
    assert states.block.tolist() == [0, 0, 1, 1]
    assert states.student_ids[1].tolist() == [0, 1, 1, MASK, 3, MASK] + [MASK] * 8
    assert states.teacher_ids[1].tolist() == [0, 1, 1, MASK, 3, MASK, 5, 6, 7, 1, 2, EOS, EOS, EOS]
    for flags in (states.candidates, states.committed):
        assert flags[1].int().tolist() == [0, 1, 0, 1] + [0] * 8
    assert states.weight.tolist() == [0.25] * 4
    assert states.teacher_ids[2].tolist()[-4:] == [2, EOS, EOS, EOS]


def test_shorter_prompts_are_padded_on_the_left_and_masked():
    longer = rollout([1] * 12, [s // 2 for s in range(12)], "q", 4)
    (states,) = states_by_update([LONG, longer], DOpsdConfig(**PLAIN), BLOCKS, (0, 0))
    assert states.student_mask[0].tolist()[:4] == [False, False, True, True]
    assert states.student_mask[-1].all()


def test_a_causal_teacher_reads_the_answer_and_knows_nothing_after_its_end():
    (states,) = states_by_update([LONG], Distilling(state_sample=0), BLOCKS, (0, 0))
    assert states.step.tolist() == [0, 1, 2, 3, 4]
    assert (states.teacher_ids[:, 2:] == LONG.completion_ids).all()
    assert states.student_ids[1].tolist() == [0, 1, 1, MASK, 3, MASK] + [MASK] * 8
    assert states.candidates[1].int().tolist() == [0, 1, 0, 1] + [0] * 8
    assert states.candidates[4].int().tolist() == [0] * 8 + [1, 1, 0, 0]  # with the end itself


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("shift", "size"), [(1, None), (0, None), (0, 4)])
def test_the_source_teaches_by_forward_kl_at_masked_tokens(kind, shift, size, tmp_path):
    """By hand from transformers' own model: the logits after token k - 1 are those of token k."""
    source = save_source(tmp_path / "source", kind, num_hidden_layers=2)
    convert(tmp_path / "source", tmp_path / "base", Form(shift, None, torch.float32))
    policy = load_policy(ModelConfig(path=str(tmp_path / "base"), block_size=size), None, 0)
    policy.train_all()
    policy.keep_reference()
    with torch.no_grad():
        for weight in policy.trainable().values():  # the student has learnt since
            weight.add_(torch.full_like(weight, 0.02))
    config = Distilling(state_sample=0)
    blocks = BlockSchedule(4, (2, 2), policy.mask_id, policy.eos_id)
    policy.use_teacher("base", 0.0, attention=config.teacher_attention)
    long = Rollout("a", 0, torch.tensor([30, 31, 32]), LONG.completion_ids + 20, LONG.revealed_at)
    long.completion_ids[10:] = policy.eos_id
    short = Rollout("b", 0, torch.tensor([33]), LONG.completion_ids + 40, LONG.revealed_at)
    (batch,) = states_by_update([long, short], config, blocks, (0, 0))
    found = DOpsd(config, None, blocks).loss(policy, batch).total  # type: ignore[arg-type]
    keep = [i for i in range(policy.vocabulary) if i not in policy.suppress_tokens]
    expected = 0.0
    with torch.no_grad():
        for row in (long, short):
            p, text, total = len(row.prompt_ids), row.completion_ids, 0.0
            theirs = source(torch.cat([row.prompt_ids, text])[None]).logits[0, p - 1 : -1, keep]
            for step in range(6):
                masked = row.revealed_at >= step
                noisy = torch.cat([row.prompt_ids, text.masked_fill(masked, policy.mask_id)])
                ours = policy.head(policy.hidden(noisy[None], None))[0, p:, keep]
                first = step // 2 * 4
                places = [k for k in range(first, first + 4) if masked[k] and k <= (
                    10 if row is long else 11)]  # fmt: skip
                t, s = theirs[places].log_softmax(-1), ours[places].log_softmax(-1)
                total += float((t.exp() * (t - s)).sum(-1).mean())
            expected += total / 6
    assert found.item() == pytest.approx(expected, rel=1e-5) and expected > 0.1
    assert (policy.output_shift, policy.block_size) == (shift, size)


def test_a_causal_teacher_is_shown_nothing_else_and_needs_a_source_that_was_causal(prepared):
    with pytest.raises(ValueError, match="set reveal_ratio to 0"):
        Distilling(reveal_ratio=0.5)
    policy = load_policy(ModelConfig(path=str(prepared / "base/sudoku")), None, 0)
    with pytest.raises(DopsdError, match="a base that was made of an autoregressive"):
        policy.use_teacher("base", 0.0, attention="causal")


def test_states_of_a_rollout_by_threshold_by_hand():
    """Blocks of 4; the first takes two steps of three and one tokens, the second one step."""
    revealed = torch.tensor([0, 1, 0, 0, 4, 4, 4, 4])
    rollout = Rollout("p", 0, torch.arange(2), torch.tensor([1, 2, 3, 4, 5, 6, 7, 1]), revealed)
    blocks = BlockSchedule(4, (1,) * 4, MASK, EOS, by_threshold=True)
    config = DOpsdConfig(record_last_block=True, drop_remainder=False, updates_per_trajectory=1)
    (found,) = states_by_update([rollout], config, blocks, (0, 0))
    assert found.step.tolist() == [0, 1, 4] and found.block.tolist() == [0, 0, 1]
    assert found.k.tolist() == [3, 1, 4] and found.committed.sum(1).tolist() == [3, 1, 4]


@pytest.mark.parametrize(
    ("count", "chunks", "drop", "expected"),
    [
        (9, 4, True, [2, 2, 2, 2]),  # floor((9-1)/4) x 4
        (8, 4, True, [1, 1, 1, 1]),  # the last state and the remainder are dropped
        (9, 4, False, [2, 2, 2, 3]),
        (3, 4, True, [1, 1]),  # fewer states: fewer chunks, where the published code stops
        (1, 4, False, [1]),
    ],
)
def test_states_are_cut_into_chunks_or_dealt_to_the_updates(count, chunks, drop, expected):
    wide = BlockSchedule(1, (1,), MASK, EOS)
    run = rollout([1] * (count + 1), list(range(count + 1)))
    cut = {"drop_remainder": drop, "updates_per_trajectory": chunks, "record_last_block": False}
    found = trained_steps(run, DOpsdConfig(**cut), wide, key=0)
    assert [len(chunk) for chunk in found] == expected
    assert [s for chunk in found for s in chunk] == list(range(sum(expected)))
    dealt = trained_steps(run, DOpsdConfig(**cut, chunks="interleaved"), wide, key=0)
    assert sorted(s for chunk in dealt for s in chunk) == list(range(sum(expected)))
    assert all(chunk == list(range(i, sum(expected), len(dealt))) for i, chunk in enumerate(dealt))


def test_a_sample_of_states_has_the_asked_size_and_differs_by_key():
    wide = BlockSchedule(1, (1,), MASK, EOS)
    run = rollout([1] * 21, list(range(21)))
    config = DOpsdConfig(state_sample=5, **PLAIN)
    samples = {tuple(trained_steps(run, config, wide, key=k)[0]) for k in range(6)}
    assert {len(s) for s in samples} == {5}
    assert len(samples) > 1


@given(
    st.permutations(range(12)),
    st.floats(0, 1),
    st.sampled_from(["future_blocks", "all_masked"]),
    st.integers(0, 99),
)
def test_what_is_shown_is_always_masked_for_the_student_and_never_more_than_asked(
    order, ratio, scope, key
):
    revealed = [0] * 12
    for block in range(3):
        for rank, place in enumerate(p for p in order if p // 4 == block):
            revealed[place] = block * 2 + rank // 2
    run = rollout([1] * 12, revealed)
    for step in range(6):
        config = DOpsdConfig(reveal_scope=scope, reveal_ratio=ratio)
        (shown,) = reveal(run, [step], config, BLOCKS, key)
        masked = run.revealed_at >= step
        assert not (shown & ~masked).any()
        assert int(shown.sum()) <= int(ratio * int(masked.sum()))
