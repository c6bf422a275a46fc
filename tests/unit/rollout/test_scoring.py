"""Which attempt is kept, what is counted, and intervals against known values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import EOS, FakePolicy, FakeText
from pydantic import ValidationError

from dopsd.core.errors import DopsdError
from dopsd.core.statistics import bootstrap, few, wilson
from dopsd.core.types import Problem, Score
from dopsd.evaluation.evaluator import report
from dopsd.rollout import collector as collecting
from dopsd.rollout.collector import RolloutCollector
from dopsd.rollout.config import CollectorConfig, SamplingConfig
from dopsd.rollout.prompts import PromptSet


class Marked:
    """A task whose verdicts are written down: attempt n of a problem scores scores[n]."""

    name = "marked"

    def __init__(self, graded: bool, **scores: list[float]) -> None:
        self.graded, self.scores = graded, scores
        self.prompt_set = dict.fromkeys(scores, 0)

    def messages(self, problem: Problem, style: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": problem.prompt}]

    def verify(self, problem: Problem, text: str) -> Score:
        value = self.scores[problem.id][self.prompt_set[problem.id]]
        self.prompt_set[problem.id] += 1
        return Score(text, value, value == 1.0)


SAMPLING = SamplingConfig(gen_length=2, block_length=2, steps=1)


def collect(task: Marked, **config: object):
    settings = CollectorConfig(**{"attempts": 4} | config)
    collector = RolloutCollector(task, SAMPLING, settings, "compact", 0)  # type: ignore[arg-type]
    problems = [Problem(name, "12", "x") for name in task.scores]
    found = collector.collect(FakePolicy(2), problems, 0)
    return collector, {item.problem.id: item for item in found}


def test_a_graded_task_keeps_the_best_attempt_and_the_latest_on_ties():
    _, found = collect(
        Marked(True, a=[0.5, 0.75, 0.25, 0.75], b=[0.25, 0.1, 0.0, 0.2]), keep_threshold=0.5
    )
    assert (found["a"].best.attempt, found["a"].score.score, found["a"].attempts) == (3, 0.75, 4)
    assert found["a"].first_score.score == 0.5
    assert found["a"].is_kept and not found["b"].is_kept
    _, found = collect(Marked(True, a=[0.25, 0.0, 0.0, 0.0]), keep_threshold=0.25)
    assert found["a"].is_kept  # the threshold itself is enough


class EndingText(FakeText):
    """Cuts a text at its end, unless all of it is asked for."""

    def decode(self, ids: torch.Tensor, after_eos: bool = False, special: bool = True) -> str:
        text = super().decode(ids)
        return text if after_eos else text.partition(str(EOS))[0]


@pytest.mark.parametrize(("after_eos", "scored"), [(False, "5"), (True, f"5{EOS}6")])
def test_the_text_after_its_end_is_scored_where_it_is_asked_for(after_eos: bool, scored: str):
    policy = FakePolicy(3, table=torch.eye(10)[[5, EOS, 6]] * 50)
    policy.text = EndingText()
    sampling = SamplingConfig(gen_length=3, block_length=3, steps=1, text_after_eos=after_eos)
    collector = RolloutCollector(Marked(False, a=[1.0]), sampling, CollectorConfig(), "compact", 0)  # type: ignore[arg-type]
    (found,) = collector.collect(policy, [Problem("a", "12", "x")], 0)
    assert found.score.answer == scored


def test_what_is_not_sampled_cannot_be_scored():
    with pytest.raises(ValidationError, match="text_after_eos scores what stop_after_eos"):
        SamplingConfig(stop_after_eos=True, text_after_eos=True)


def test_an_ungraded_task_stops_at_the_first_right_answer_and_wants_it_whole():
    _, found = collect(
        Marked(False, a=[0.0, 1.0, 1.0, 1.0], b=[0.9, 0.9, 0.9, 0.9]), keep_threshold=0.1
    )
    assert (found["a"].best.attempt, found["a"].attempts, found["a"].is_kept) == (1, 2, True)
    assert (found["b"].attempts, found["b"].is_kept) == (4, False)
    _, found = collect(Marked(False, b=[0.0] * 4), keep="all")
    assert found["b"].is_kept


def test_a_collect_counts_what_it_cost():
    collector, found = collect(Marked(False, a=[0.0, 1.0], b=[0.5] * 4))
    firsts = [item.first_rollout for item in found.values()]
    lengths = [[*rollout.completion_ids.tolist(), EOS].index(EOS) for rollout in firsts]
    assert [rollout.attempt for rollout in firsts] == [0, 0]
    summary = collector.summary(FakePolicy(2), list(found.values()))
    assert summary.counters == {"trajectories": 1, "rollouts": 6, "sampled_tokens": 12}
    figures = {"attempts_used": 3.0, "best_score": 0.75, "completion_length": sum(lengths) / 2}
    figures |= {"first_attempt_score": 0.25, "first_attempt_square": 0.125, "kept_share": 0.5}
    assert summary.metrics.means() == figures


def test_a_collect_of_empty_answers_is_said_once(capsys, monkeypatch):
    monkeypatch.setattr(collecting, "_said", set())
    collector, found = collect(Marked(False, **dict.fromkeys("abcd", [0.0] * 4)))
    capsys.readouterr()
    collecting._said.clear()
    items = list(found.values())

    def summed(empty: int) -> str:
        firsts = [EOS] * empty + [1] * (4 - empty)
        made = [
            replace(i, first_rollout=replace(i.first_rollout, completion_ids=torch.tensor([n, 1])))
            for i, n in zip(items, firsts, strict=True)
        ]
        collector.summary(FakePolicy(2), made)
        return capsys.readouterr().err

    assert summed(1) == ""  # a quarter
    assert "warning: 2 of 4 first answers to" in summed(2)
    assert summed(4) == ""


def test_wilson_by_hand():
    assert wilson(8, 10) == pytest.approx((0.4901, 0.9433), abs=1e-4)
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0)
    assert few(34, "problems") and few(0, "problems") == few(35, "problems") == []


def test_bootstrap_covers_the_mean_and_repeats():
    values = [0.0, 0.25, 0.5, 0.75, 1.0] * 20
    low, high = bootstrap(values, 2000)
    assert low < 0.5 < high
    assert (high - low) / 2 == pytest.approx(1.96 * 0.3536 / 10, rel=0.1)
    assert bootstrap(values, 2000) == (low, high)
    assert bootstrap([0.3] * 7, 100) == pytest.approx((0.3, 0.3))


def judged(score: float, strict: float = 0.0) -> Score:
    return Score("x", score, score == 1.0, {"published": score, "strict": strict})


@pytest.mark.parametrize(("graded", "interval"), [(False, wilson(1, 2)), (True, None)])
def test_a_report_has_first_attempts_and_the_best_of_all_with_fitting_intervals(graded, interval):
    problems = [Problem("a", "1", "x"), Problem("b", "12", "x")]
    prompt_set = PromptSet(Marked(graded), problems, "test", "compact")  # type: ignore[arg-type]
    scores = {"b": [judged(0.0), judged(0.0), judged(1.0)], "a": [judged(1.0, 1.0)]}
    found = report(prompt_set, SAMPLING, scores, 12.5, 3, 100)
    assert (found.accuracy, found.whole, found.pass_at_k) == (0.5, 0.5, 1.0)
    assert (found.n, found.attempts) == (2, 3)
    assert found.per_problem == {"a": 1.0, "b": 0.0}
    assert found.figures == {"published": 0.5, "strict": 0.5}
    assert found.interval == (interval or bootstrap([1.0, 0.0], 100))


def prompts() -> PromptSet:
    problems = [Problem("a", "123", "x"), Problem("b", "12345", "x")]
    return PromptSet(Marked(True), problems, "test", "compact")  # type: ignore[arg-type]


def test_prompts_are_cut_on_the_left_only_where_asked_and_the_share_is_known():
    prompt_set = prompts()
    cutting = SAMPLING.model_copy(update={"max_prompt_tokens": 4, "prefill": "7"})
    found = [ids.tolist() for ids in prompt_set.prompts(FakePolicy(2), cutting)]
    assert found == [[1, 2, 3, 7], [3, 4, 5, 7]]
    assert prompt_set.share_cut(FakePolicy(2), cutting) == 0.5
    assert [len(ids) for ids in prompt_set.prompts(FakePolicy(2), SAMPLING)] == [3, 5]
    assert prompt_set.share_cut(FakePolicy(2), SAMPLING) == 0.0


def test_a_prompt_longer_than_the_model_was_trained_for_is_named():
    policy = FakePolicy(2)
    policy.max_length = 6
    with pytest.raises(DopsdError, match=r"marked problem b: a prompt of 5 .* of 2 .* model's 6"):
        prompts().prompts(policy, SAMPLING)


def test_the_same_problem_is_answered_the_same_in_any_company():
    task = Marked(True, a=[0.1] * 8, b=[0.1] * 8)
    both = collect(task)[1]["a"].best
    alone = collect(Marked(True, a=[0.1] * 8))[1]["a"].best
    assert torch.equal(both.completion_ids, alone.completion_ids)
