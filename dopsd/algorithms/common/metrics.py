"""Metrics that several algorithms log, for the glossary of the docs."""

from __future__ import annotations

from dopsd.core.metrics import Metric

DIVERGENCE = "dopsd.algorithms.d_opsd.divergence"
ENTROPY = r"$-\sum_v p_{side}(v) \ln p_{side}(v)$ of the {name}, mean over target positions"
UNSURE = "how unsure the {} is about a token, mean over target positions; 0: quite sure"

DISTILLATION = {
    "divergence": Metric(
        "nats",
        r"divergence of student $p_s$ and teacher $p_t$ before clipping, mean over target"
        r" positions. `forward_kl`: $\sum_v p_t(v) \ln \frac{p_t(v)}{p_s(v)}$; `reverse_kl`:"
        r" $\sum_v p_s(v) \ln \frac{p_s(v)}{p_t(v)}$; `jsd`: $\beta \mathrm{KL}(p_t, m) +"
        r" (1-\beta) \mathrm{KL}(p_s, m)$ with $m = (1-\beta) p_s + \beta p_t$. With"
        r" `loss_vocabulary: teacher_top_k`, both are renormalised over the teacher's top $k$",
        f"{DIVERGENCE}.Divergence.__call__",
        "how far the student's predictions are from the teacher's, mean over target positions; 0:"
        " equal",
    ),
    "clip_ratio": Metric(
        "share",
        "entries of the loss's vocabulary whose term of the divergence exceeds `clip`, mean over"
        " target positions; with `clip_mode: position` the positions whose divergence does; 0"
        " without a clip",
        f"{DIVERGENCE}.Divergence.__call__",
    ),
    "overlap_top20": Metric(
        "share",
        r"$\lvert T_{20}(p_s) \cap T_{20}(p_t) \rvert / 20$, where $T_{20}$ are the 20 likeliest"
        " tokens, mean over target positions",
        f"{DIVERGENCE}.top_overlap",
        "tokens that are among the 20 likeliest of both student and teacher, mean over target"
        " positions; in a small vocabulary most of the 20 have almost no probability, so it can"
        " fall while the two agree better: look at the shared probability",
    ),
    "shared_mass": Metric(
        "share",
        r"$\sum_v \min(p_s(v), p_t(v))$, mean over target positions: 1 less the total variation",
        f"{DIVERGENCE}.shared_mass",
        "probability that student and teacher give to the same tokens, mean over target positions",
    ),
    "student_entropy": Metric(
        "nats",
        ENTROPY.format(side="s", name="student"),
        "dopsd.algorithms.common.losses.entropy",
        UNSURE.format("student"),
    ),
    "teacher_entropy": Metric(
        "nats",
        ENTROPY.format(side="t", name="teacher"),
        "dopsd.algorithms.common.losses.entropy",
        UNSURE.format("teacher"),
    ),
    "block_{b}/{name}": Metric(
        "as `NAME`",
        "each metric of this table over the states in block `b` alone; the first block is 0",
        "dopsd.algorithms.d_opsd.algorithm._by_block",
    ),
}
SAMPLED = "dopsd.algorithms.common.groups.RewardedGroups.sample"
GROUPS = {
    "reward": Metric(
        "reward",
        "mean reward of the completions: the task's, or 1 for a right answer (`reward: correct`)",
        SAMPLED,
    ),
    "flat_groups": Metric(
        "share", "groups whose completions all have one reward, and so no advantage", SAMPLED
    ),
}
MASKED_LOGP = Metric(
    "nats",
    r"$\ln p_\theta(y_k)$ with the whole completion masked, mean over the tokens of the"
    " completions",
    "dopsd.algorithms.common.losses.masked_cross_entropy",
    "log-probability of a token of the completions, seen with the whole completion masked",
)
MASKED_CROSS_ENTROPY = Metric(
    "nats",
    r"$\frac{1}{t L} \sum_{k \text{ masked}} -\ln p(y_k)$ of a text with share of masks $t$"
    " and length $L$, padding included; mean over texts",
    "dopsd.algorithms.common.losses.masked_diffusion_loss",
    "how surprised the model is by the masked tokens of the texts that it learns, mean over texts",
)
TRACE_LOSS = "dopsd.algorithms.trace_rl.algorithm.state_losses"
TRACE = GROUPS | {
    "kept_groups": Metric(
        "share",
        "groups that are trained on: their rewards differ, with a mean between `least_mean_reward`"
        " and `most_mean_reward`",
        "dopsd.algorithms.trace_rl.algorithm.TraceRl.collect",
    ),
    "kl": Metric(
        "nats",
        r"$e^{\Delta} - \Delta - 1$ with $\Delta = \ln p_{\text{ref}} - \ln p_\theta$, mean over"
        " predicted tokens: estimated KL to the policy of `kl_to`",
        TRACE_LOSS,
        "estimated distance (KL divergence) from the policy of `kl_to`, mean over tokens",
    ),
    "clip_ratio": Metric(
        "share",
        r"predicted tokens whose gain the clip lowers: $\mathrm{clip}(r, 1 \pm \epsilon) A < r A$"
        r" with $r = p_\theta / p_{\text{old}}$ and the advantage $A$",
        TRACE_LOSS,
        "tokens whose gain the clip lowers, since their probability has already changed much",
    ),
    "logp": Metric(
        "nats",
        r"$\ln p_\theta(y_k)$ in the recorded state, mean over predicted tokens",
        "dopsd.algorithms.common.views.view_logps",
        "log-probability of a token of the rollouts, in the state in which it is predicted",
    ),
}
