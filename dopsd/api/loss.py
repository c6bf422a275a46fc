"""The d-OPSD loss of given rollouts, and the training states that it is computed on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dopsd.algorithms.common.base import AlgorithmContext, LossOutput
from dopsd.algorithms.common.batch import States
from dopsd.algorithms.d_opsd.algorithm import DOpsd, build
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import states_by_update
from dopsd.api.settings import load_task
from dopsd.core.errors import Code
from dopsd.core.types import Rollout
from dopsd.training.run_settings import RunSettings

if TYPE_CHECKING:
    from dopsd.models.llm_policy import LlmPolicy


def training_states(
    policy: LlmPolicy, rollouts: Sequence[Rollout], run: RunSettings, collect: int = 0
) -> States:
    """Return the denoising states of rollouts as d-OPSD trains on them, in one batch.

    A state is what the student saw before a step, and the same with part of the rollout's future
    revealed: what the teacher sees (arXiv 2606.18195, section 3).

    Args:
        rollouts: the rollouts to learn from; choosing them by score is the caller's part.
        run: `run.algorithm` is section `method.d_opsd`, `run.sampling` has blocks and steps,
            `run.key.seed` and `update` key the tokens that are revealed.
        collect: number of the collect, part of the random key.

    Returns:
        B states: `student_ids` and `teacher_ids` [B, P+G], `candidates` [B, G], the masked
        positions of the current block that the teacher was not shown, `k` [B], how many of them
        are trained on, `weight` [B], 1 / (states of the rollout).

    Raises:
        DopsdError: if the settings are not d-OPSD's, or no state is left to train on.

    Example:
        >>> import dopsd
        >>> run = dopsd.run_settings("embedded")
        >>> policy = dopsd.load_policy(dopsd.embedded_base())
        >>> rollouts = dopsd.sample(policy, ["0410020420430020"], run)
        >>> states = dopsd.training_states(policy, rollouts, run)
        >>> states.student_ids.shape == states.teacher_ids.shape
        True
    """
    states = _states(_algorithm(policy, run), rollouts, run, collect, "training_states")
    return states.to(policy.device)


def d_opsd_loss(
    policy: LlmPolicy, rollouts: Sequence[Rollout], run: RunSettings, collect: int = 0
) -> LossOutput:
    """Return the d-OPSD loss of rollouts, with gradients to the adapter.

    The divergence between the teacher's and the student's distributions (arXiv 2606.18195,
    section 3) over all recorded states in one batch, whatever `updates_per_trajectory` says.

    Args:
        policy: the model in training, loaded with an adapter.
        run: settings, as in `training_states`; `method.d_opsd` names divergence and reduction.
        collect: number of the collect, part of the random key.

    Returns:
        `total` [], in nats, summed over rollouts: divide by their number. `metrics` are sums and
        counts; `metrics.means()` has their means.

    Raises:
        DopsdError: if the policy has nothing to train, or as in `training_states`.

    Example:
        >>> import dopsd
        >>> run = dopsd.run_settings("embedded")
        >>> policy = dopsd.load_policy(dopsd.embedded_base(), adapter=run.train.lora)
        >>> rollouts = dopsd.sample(policy, ["0410020420430020"], run, temperature=0.9)
        >>> loss = dopsd.d_opsd_loss(policy, rollouts, run)
        >>> loss.total.backward()
    """
    if not policy.trainable():
        raise Code.NO_TRAINABLE.error(
            "d_opsd_loss: the policy has nothing to train; load it with adapter=run.train.lora"
        )
    algorithm = _algorithm(policy, run)
    states = _states(algorithm, rollouts, run, collect, "d_opsd_loss")
    return algorithm.loss(policy, states.to(policy.device))


def _algorithm(policy: LlmPolicy, run: RunSettings) -> DOpsd:
    config = run.algorithm
    if not isinstance(config, DOpsdConfig):
        raise Code.ARGUMENT.error(f"method {run.key.method}: expected d_opsd, whose loss this is")
    if config.teacher == "ema":
        raise Code.ARGUMENT.error(
            "method.d_opsd.teacher: ema is an average over the updates of a run; set base or live,"
            " or use train"
        )
    settings = run.train
    context = AlgorithmContext(
        load_task(run),
        policy,
        run.model,
        run.sampling,
        run.key.seed,
        settings.updates,
        settings.prompts_per_collect,
        settings.states_at_once,
    )
    return build(config.model_copy(update={"updates_per_trajectory": 1}), context)


def _states(
    algorithm: DOpsd,
    rollouts: Sequence[Rollout],
    run: RunSettings,
    collect: int,
    function: str,
) -> States:
    if isinstance(rollouts, Rollout) or not rollouts:
        raise Code.ARGUMENT.error(f"{function}: rollouts: expected a list of one or more")
    length = run.sampling.gen_length
    if other := [len(r.completion_ids) for r in rollouts if len(r.completion_ids) != length]:
        raise Code.ARGUMENT.error(
            f"{function}: a rollout has {other[0]} tokens, and run.sampling.gen_length is {length};"
            " give the settings that it was sampled with"
        )
    key = run.key.seed, collect
    batches = states_by_update(rollouts, algorithm.config, algorithm.blocks, key)
    if not batches or batches[0] is None:
        raise Code.NOTHING_TO_LEARN.error(
            f"{function}: no state of these rollouts is left to train on; give more rollouts, or"
            " set method.d_opsd.record to all"
        )
    return batches[0]
