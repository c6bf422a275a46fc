"""Metrics that no stage logs: of tournaments, of a run's cost, and of the check of a teacher."""

from __future__ import annotations

from dopsd.core.metrics import Metric

PERCENT = "dopsd.tracking.percent.with_percent"
POINTS = "dopsd.tracking.publish_tournament.points_of"
TOURNAMENT = {
    "eval/accuracy": Metric(
        "share",
        "accuracy of a checkpoint on validation; the step is its update, 0: base",
        POINTS,
    ),
    "eval/accuracy_percent": Metric("percent", "`eval/accuracy` times 100, for charts", PERCENT),
    "count/rollouts": Metric("rollouts", "rollouts until that update", POINTS),
    "count/tokens": Metric("tokens", "sampled tokens until that update", POINTS),
    "count/flops": Metric("operations", "floating-point operations until that update", POINTS),
    "time/cpu_seconds": Metric("seconds", "CPU seconds of one thread until that update", POINTS),
    "tournament/{budget}/test_accuracy": Metric(
        "share",
        "accuracy on test of the checkpoint that is best on validation within the budget, `tokens`"
        " or `seconds`",
        POINTS,
    ),
    "tournament/{budget}/validation_accuracy": Metric(
        "share", "its accuracy on validation, which chose it", POINTS
    ),
    "tournament/{budget}/update": Metric("updates", "its update", POINTS),
    "tournament/{budget}/tokens": Metric("tokens", "sampled tokens until there", POINTS),
    "tournament/{budget}/cpu_seconds": Metric("seconds", "CPU seconds until there", POINTS),
}

COST = "dopsd.tracking.run_cost.run_cost"
HOURS = "dopsd.tracking.run_cost.device_hours"
RUN_COST = {
    "cost/gpu_hours": Metric(
        "GPU-hours",
        "sum of `time/update_seconds` of all updates times the GPUs that made them, over all"
        " segments of an interrupted run; without starts, evaluations, and updates that a kill"
        " lost; absent of a run from DVC's cache",
        HOURS,
    ),
    "cost/cpu_hours": Metric(
        "CPU-hours",
        "the same for updates without a GPU: sum of `time/cpu_seconds` times the processes",
        HOURS,
    ),
    "cost/trajectories": Metric("sequences", "`trajectories` at the end of training", COST),
    "cost/rollouts": Metric("rollouts", "`rollouts` at the end of training", COST),
    "cost/sampled_tokens": Metric("tokens", "`sampled_tokens` at the end of training", COST),
}

VERIFY = "dopsd.pipeline.stages.verify_teacher.Verification._scores"
TEACHER = {
    "pass@1": Metric("share", "accuracy of the base's greedy answer", VERIFY),
    "pass@{attempts}": Metric("share", "accuracy of the best of so many sampled answers", VERIFY),
    "teacher at {ratio}": Metric(
        "share", "accuracy of a greedy answer that sees this share of its best answer", VERIFY
    ),
    "gold answer at {ratio}": Metric(
        "share",
        "the same, of the gold answer, in a place of its greedy answer that the verifier reads;"
        " nothing is shown without one; `solver's answer` where a solver knows it",
        VERIFY,
    ),
}
