"""Sample answers, look at their denoising states, and score them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from torch import Tensor

from dopsd.api.settings import load_task
from dopsd.core.errors import Code
from dopsd.core.types import NEVER, Problem, Rollout, Score
from dopsd.rollout.engine import SamplingPlan, generate_until_correct
from dopsd.rollout.prompts import PromptSet, decoding
from dopsd.tasks.common.task import Task
from dopsd.training.run_settings import RunSettings

if TYPE_CHECKING:
    from dopsd.models.llm_policy import LlmPolicy

MASK, END = "·", "_"  # of a masked token and of an end-of-sequence token in a trace


def sample(
    policy: LlmPolicy,
    problems: Sequence[Problem | str],
    run: RunSettings,
    temperature: float = 0.0,
    attempts: int = 1,
    seed: int = 0,
) -> list[Rollout]:
    """Denoise answers to problems, each from masks alone.

    A rollout depends on the policy, the problem, the settings, the attempt and the seed, never on
    what else is sampled with it.

    Args:
        problems: problems of the run's task, or texts, which the task makes problems of.
        run: `run.sampling` has lengths and steps in tokens, `run.model.prompt_style` how a problem
            is put to the model.
        temperature: of the Gumbel noise; 0: greedy, so that all attempts are alike.
        seed: key of the noise. The rollouts of attempt n are those of `seed` and n.

    Returns:
        The rollouts, problem by problem, attempts in order. `completion_ids` [G] are the answer's
        tokens, `revealed_at` [G] the step that committed each.

    Raises:
        DopsdError: if a problem is given twice, is too long for the model, or is none of the task.

    Example:
        >>> import dopsd
        >>> run = dopsd.run_settings("embedded")
        >>> policy = dopsd.load_policy(dopsd.embedded_base())
        >>> rollouts = dopsd.sample(policy, ["0410020420430020"], run, temperature=0.9, attempts=2)
        >>> [tuple(rollout.completion_ids.shape) for rollout in rollouts]
        [(40,), (40,)]
    """
    if not isinstance(attempts, int) or attempts < 1:
        raise Code.ARGUMENT.error(
            f"sample: attempts {attempts}: expected a whole number of 1 or more"
        )
    if not isinstance(temperature, int | float) or not 0 <= temperature < float("inf"):
        raise Code.ARGUMENT.error(
            f"sample: temperature {temperature}: expected a number of 0 or more"
        )
    task = load_task(run)
    asked = _asked(task, problems, "sample")
    if len({problem.id for problem in asked}) < len(asked):
        raise Code.ARGUMENT.error(
            "sample: a problem is given twice; set attempts to sample it more often"
        )
    prompt_set = PromptSet(task, asked, "sample", run.model.prompt_style)
    prompts = list(zip(asked, prompt_set.prompts(policy, run.sampling), strict=True))
    plan = SamplingPlan(
        attempts, temperature, temperature, False, decoding(run.sampling), (seed, 0)
    )
    rollouts = generate_until_correct(policy, prompts, plan, lambda problem, rollout: False)
    return [rollout for problem in asked for rollout in rollouts[problem.id]]


def _asked(task: Task, problems: Sequence[Problem | str], function: str) -> list[Problem]:
    if isinstance(problems, str | Problem):
        raise Code.ARGUMENT.error(f"{function}: problems: expected a list, found one problem")
    return [task.ask(problem) if isinstance(problem, str) else problem for problem in problems]


@dataclass(frozen=True)
class TraceStep:
    """The state of an answer before one denoising step, and what the step commits."""

    step: int
    ids: Tensor  # [G], the policy's mask id where a token is masked
    committed: Tensor  # [G], True at the tokens that this step commits
    text: str  # with · for a mask and _ for an end-of-sequence token


def trace(policy: LlmPolicy, rollout: Rollout) -> list[TraceStep]:
    """Return the denoising states of a rollout, from masks alone to the finished answer.

    Args:
        policy: the model that made the rollout, for its tokenizer and special tokens.
        rollout: an answer; the state before step s is where(revealed_at >= s, mask, ids).

    Returns:
        A state before each step that commits tokens, and the finished answer, whose `committed` is
        False everywhere.

    Example:
        >>> import dopsd
        >>> run = dopsd.run_settings("embedded")
        >>> policy = dopsd.load_policy(dopsd.embedded_base())
        >>> (rollout,) = dopsd.sample(policy, ["0410020420430020"], run)
        >>> steps = dopsd.trace(policy, rollout)
        >>> len(steps), [int(step.committed.sum()) for step in steps[:3]]
        (21, [2, 2, 2])
    """
    if not isinstance(rollout, Rollout):
        raise Code.ARGUMENT.error(f"trace: expected one rollout, found {type(rollout).__name__}")
    commits = sorted({*rollout.revealed_at.tolist()} - {NEVER})
    states = []
    for step in [*commits, commits[-1] + 1]:
        is_masked = (rollout.revealed_at >= step) & (step <= commits[-1])
        ids = rollout.completion_ids.masked_fill(is_masked, policy.mask_id)
        states.append(TraceStep(step, ids, rollout.revealed_at == step, _text(policy, ids)))
    return states


def _text(policy: LlmPolicy, ids: Tensor) -> str:
    """Decode runs of tokens between masks together: a character may be several tokens."""
    signs = {policy.mask_id: MASK, policy.eos_id: END}
    pieces = []
    for sign, run in groupby(ids.tolist(), key=signs.get):
        tokens = list(run)
        pieces.append(sign * len(tokens) if sign else str(policy.tokenizer.decode(tokens)))
    return "".join(pieces)


def score(
    policy: LlmPolicy,
    rollouts: Sequence[Rollout],
    problems: Sequence[Problem | str],
    run: RunSettings,
) -> list[Score]:
    """Score rollouts with the verifier of the run's task.

    Args:
        policy: the model that made the rollouts, for its tokenizer.
        rollouts: answers, in any order.
        problems: the problems that they answer, as given to `sample`; found by id.
        run: `run.data.scoring` says by which rule.

    Returns:
        A score for each rollout: `score` in [0, 1], `correct` for full marks, and the `answer` that
        was found in the text.

    Raises:
        DopsdError: if the problem of a rollout is not among them.

    Example:
        >>> import dopsd
        >>> run = dopsd.run_settings("embedded")
        >>> policy = dopsd.load_policy(dopsd.embedded_base())
        >>> problem = dopsd.load_task(run).ask("0410020420430020")
        >>> (score,) = dopsd.score(policy, dopsd.sample(policy, [problem], run), [problem], run)
        >>> 0 <= score.score <= 1
        True
    """
    task = load_task(run)
    by_id = {problem.id: problem for problem in _asked(task, problems, "score")}
    if missing := sorted({rollout.problem_id for rollout in rollouts} - by_id.keys()):
        raise Code.ARGUMENT.error(
            f"score: problem {missing[0]} of a rollout is not among the problems"
        )
    after_eos = run.sampling.text_after_eos
    return [
        task.verify(by_id[r.problem_id], policy.text.decode(r.completion_ids, after_eos))
        for r in rollouts
    ]
