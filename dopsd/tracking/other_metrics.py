"""Metrics that no stage logs: of a run's cost, and of the check of a teacher."""

from __future__ import annotations

from dopsd.core.metrics import Metric

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
