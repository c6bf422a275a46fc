"""Rewards are of text without special tokens, as published trainers decode it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fakes import FakePolicy
from toys import llada_tokenizer

from dopsd.algorithms.common.config import GroupConfig
from dopsd.algorithms.common.groups import RewardedGroups
from dopsd.core.types import Problem
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.text import ChatText
from dopsd.models.tokenizer import LLADA_TEMPLATE
from dopsd.rollout.collector import RolloutCollector
from dopsd.rollout.config import CollectorConfig, SamplingConfig
from dopsd.tasks.common.task import Task
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.registry import TASKS, load_task

TOKENIZER = llada_tokenizer()
TOKENIZER.chat_template = LLADA_TEMPLATE
END, TURN, MASK = "<|endoftext|>", "<|eot_id|>", "<|mdm_mask|>"
EXACT = {"train": {"path": "a.csv"}, "verifier": {"type": "exact"}}
WHOLE = CustomTaskConfig.model_validate(
    EXACT | {"type": "custom", "answer_format": [{"text": "whole"}]}
)
NUMBERS = {"numbers": [3, 4, 5], "target": 12}
PUZZLE, GRID = "0234341221434321", "1234341221434321"
COMPLETIONS = {  # of each task: a problem, and completions that a special token in them spoils
    "chains": (Problem("a", "1 +2", "3"), ["3", "<answer>3</answer>", "<answer>4"]),
    "countdown": (Problem("a", "", "", None, NUMBERS), ["3 + 4 + 5", "<answer>3"]),
    "gsm8k": (Problem("a", "2 + 3", "5"), ["\n<answer>\n\\boxed{5}\n</answer>\n", "5"]),
    "math500": (Problem("a", "", "5"), ["5", "<answer>\n\\boxed{5}\n</answer>"]),
    "sudoku": (Problem("a", PUZZLE, GRID), [GRID, GRID[:15]]),
    "mine": (Problem("a", "2 + 3", "5"), ["5", "6"]),
}


def rewarded(task: Task, problem: Problem, text: str, reward: str, after_eos: bool):
    """Reward and verdict of a policy that writes this text and nothing else."""
    tokenizer = TOKENIZER
    end, mask = tokenizer.convert_tokens_to_ids([END, MASK])
    ids = torch.tensor(tokenizer(text)["input_ids"])
    size = {"gen_length": len(ids), "block_length": len(ids), "steps": 1}
    sampling = SamplingConfig(**size, text_after_eos=after_eos)
    policy = FakePolicy(len(ids), len(tokenizer), 50 * torch.eye(len(tokenizer))[ids])
    policy.mask_id, policy.eos_id, policy.suppress_tokens = mask, end, []
    config = LladaConfig(eos_token_id=end, mask_token_id=mask)
    policy.text = ChatText(tokenizer, SimpleNamespace(config=config))  # type: ignore[arg-type]
    attempts = CollectorConfig(attempts=2, first_temperature=0, retry_temperature=0, keep="all")
    collector = RolloutCollector(task, sampling, attempts, "compact", 0)
    groups = RewardedGroups(GroupConfig(group_size=2, reward=reward), collector)
    ((first, _),), _ = groups.sample(policy, [problem], 0)
    assert torch.equal(first.rollout.completion_ids, ids)
    return first.reward, first.is_correct


@pytest.mark.parametrize("ends", [0, 10, 100])
@pytest.mark.parametrize(("layout", "reward"), [("any_lines", 4.0), ("one_line", 3.5)])
def test_a_right_answer_is_worth_the_same_however_often_it_ends(ends, layout, reward):
    text = "<reasoning>\n2 and 3\n</reasoning>\n<answer>\n\\boxed{5}\n</answer>\n" + ends * END
    task = load_task("gsm8k", TASKS.config_class("gsm8k")(reward_layout=layout))
    # 2 right, 0.5 a whole number, 0.5 the exact lines, 0.5 four lines; not in d1: 0.5 the order
    assert rewarded(task, Problem("a", "2 + 3", "5"), text, "task", True) == (reward, True)


def test_no_special_token_changes_the_reward_of_any_task():
    made, tokens = {"mine": WHOLE}, TOKENIZER.added_tokens_decoder.values()
    special = {token.content for token in tokens if token.special}
    assert {END, TURN} < special and set(COMPLETIONS) == {*TASKS.names, "mine"}
    for name, (problem, texts) in COMPLETIONS.items():
        task = load_task(name, made.get(name) or TASKS.config_class(name)())
        for text in texts:
            for reward in ("task", "correct"):
                found = {
                    (ends, after_eos): rewarded(task, problem, text + ends, reward, after_eos)
                    for ends in ("", TURN + END, *sorted(special - {MASK}))
                    for after_eos in (False, True)
                }
                assert set(found.values()) == {found["", False]}, (name, text, reward, found)
