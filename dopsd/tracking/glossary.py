"""What training logs: unit and meaning of each metric, for reports and for docs/metrics.md.

What an algorithm or a task logs of its own stands in its folder: `METRICS` in config.py.
"""

from dopsd.core.metrics import Metric

COLLECT = "dopsd.training.trainer.Trainer.collect"
ADVANCE = "dopsd.training.trainer.Trainer.step"
SUMMARY = "dopsd.rollout.collector.RolloutCollector.summary"
DETECTOR = "dopsd.training.collapse.CollapseDetector"

COUNTERS = {
    "collects": Metric("collects", "collects of rollouts since the run began", COLLECT),
    "empty_collects": Metric(
        "collects", "collects among them that gave nothing to learn from", COLLECT
    ),
    "trajectories": Metric(
        "sequences", "rollouts or texts that the run has been trained on", COLLECT
    ),
    "rollouts": Metric("rollouts", "completions that the run has sampled", COLLECT),
    "sampled_tokens": Metric("tokens", "`rollouts` times `sampling.gen_length`", COLLECT),
}

TRAINING = {
    "update": Metric("updates", "number of the optimizer step, from 1", ADVANCE),
    "loss": Metric(
        "by algorithm",
        r"$\frac{1}{W} \sum_i w_i \ell_i$ over the sequences of the update on all processes, with"
        r" weights $w_i$ and losses $\ell_i$; $W$ is `train.prompts_per_collect` or $\sum_i w_i$,"
        " depending on the algorithm",
        "dopsd.training.grad_accumulation.MicroBatches.gradients",
        "what an update lowers, a weighted mean over its sequences; its size depends on the part of"
        " the answers that the update trains",
    ),
    "grad_norm": Metric(
        "1",
        r"$\lVert g \rVert_2$ of the gradient of all trained weights, before it is clipped to"
        " `train.grad_clip`",
        "dopsd.training.optim.optimizer_step",
        "length of the gradient of all trained weights, before it is clipped",
    ),
    "attempts_used": Metric("attempts", "attempts at a problem, mean over problems", SUMMARY),
    "kept_share": Metric(
        "share",
        "problems whose best attempt is kept (`keep`, `keep_threshold`); 1 where a method compares"
        " attempts in groups, whatever it leaves out then",
        SUMMARY,
    ),
    "best_score": Metric("share", "score of the best attempt, mean over problems", SUMMARY),
    "first_attempt_score": Metric(
        "share", "score of the first attempt, mean over problems, at its temperature", SUMMARY
    ),
    "completion_length": Metric(
        "tokens",
        "tokens before the first end of text in a first attempt, or all of them without one; mean"
        " over problems",
        SUMMARY,
    ),
    "rolling_score": Metric(
        "share",
        r"$\bar s$: `first_attempt_score`, mean over the last `train.collapse_window` collects;"
        " absent before there are so many",
        f"{DETECTOR}.means",
        "score of the first attempt, mean over the last collects (`train.collapse_window`); a fall"
        " far below its best is a collapse",
    ),
    "collapsed": Metric(
        "flag",
        r"1 from the first update at which $\bar s < (1 - d) b$ and"
        r" $\bar s < b - e \sqrt{2 v / (w n)}$, absent before; the symbols are in"
        " [Collapse](algorithms/index.md#collapse)",
        f"{DETECTOR}.is_collapsed",
        "1 once first attempts score far below their best rolling mean, absent before",
    ),
    **{f"count/{name}": metric for name, metric in COUNTERS.items()},
    "time/collect_seconds": Metric(
        "seconds", "wall time of a collect; not in `train.csv`", COLLECT
    ),
    "time/update_seconds": Metric(
        "seconds",
        "wall time since the update before, collects included; not in `train.csv`",
        ADVANCE,
    ),
    "time/cpu_seconds": Metric(
        "seconds",
        "time of the processors since the update before, all threads of the first process; other"
        " work on the machine hardly changes it; not in `train.csv`",
        ADVANCE,
    ),
    "time/tokens_per_second": Metric(
        "tokens/s",
        "tokens of the passes with gradients, with prompts and padding, in all processes, per"
        " `time/update_seconds`; not in `train.csv`",
        ADVANCE,
    ),
}
