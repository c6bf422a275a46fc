"""Tables of every logged number, for docs/metrics.md: training, evaluation, comparisons, MLflow."""

from __future__ import annotations

from dataclasses import dataclass

from dopsd.core.metrics import Metric
from dopsd.tracking.client import SHOWN_IN_PERCENT, percent_name
from dopsd.tracking.glossary import COUNTERS, TRAINING

RUN_TOTALS = "dopsd.tracking.publish_run.run_cost"
HOURS = "dopsd.tracking.publish_run.device_hours"
RUN_COST = {
    "cost/gpu_hours": Metric(
        "GPU-hours",
        "sum of `time/update_seconds` of all updates times their GPUs, over all segments of an"
        " interrupted run; without starts, evaluations, and updates that a kill lost; absent of a"
        " run from DVC's cache",
        HOURS,
    ),
    "cost/cpu_hours": Metric(
        "CPU-hours",
        "the same for updates without a GPU: sum of `time/cpu_seconds` times the processes",
        HOURS,
    ),
    "cost/trajectories": Metric("sequences", "`trajectories` at the end of training", RUN_TOTALS),
    "cost/rollouts": Metric("rollouts", "`rollouts` at the end of training", RUN_TOTALS),
    "cost/sampled_tokens": Metric("tokens", "`sampled_tokens` at the end of training", RUN_TOTALS),
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


@dataclass(frozen=True)
class Table:
    """Metrics that are in the same files, by name; `{word}` in a name stands for any text."""

    title: str
    where: str  # Markdown
    metrics: dict[str, Metric]


REPORT = "dopsd.evaluation.evaluator.report"
COMPARE = "dopsd.pipeline.stages.test.compare"
BEST = "dopsd.tracking.publish_run._best_metrics"
ROW = "dopsd.analysis.tables.row_of"
MEANS = "dopsd.analysis.tables.means"
COSTS = "dopsd.analysis.results.Finished.costs"
INTERVAL = (
    "95% interval of {}: Wilson's where answers are right or wrong, a percentile bootstrap over"
    " problems where scores are partial"
)
PAIRED = r"$\frac{1}{n} \sum_i (s_i^{\text{best}} - s_i^{\text{base}})$ over the same problems"

COST = COUNTERS | {
    "updates": Metric(
        "updates", "update of the last checkpoint", "dopsd.training.resume.write_stage_outputs"
    )
}

EVALUATION = {
    "update": Metric("updates", "update of the checkpoint, 0 for the base or the start", REPORT),
    "accuracy": Metric(
        "share", r"$\frac{1}{n} \sum_i s_i$ with the score $s_i$ of the first attempt", REPORT
    ),
    "interval": Metric("share", INTERVAL.format("`accuracy`"), REPORT),
    "low": Metric("share", "lower end of `interval`", REPORT),
    "high": Metric("share", "upper end of `interval`", REPORT),
    "n": Metric("problems", "problems of the split", REPORT),
    "whole": Metric("share", "first attempts with full marks", REPORT),
    "per_problem": Metric("share", "score $s_i$ of the first attempt, by problem", REPORT),
    "steps": Metric(
        "steps",
        "denoising steps of a first attempt, mean: fewer than the protocol's if answers end early"
        " (`stop_after_eos`) or several tokens commit at once (`threshold`)",
        REPORT,
    ),
    "attempts": Metric("attempts", r"attempts $k$ at each problem", REPORT),
    "pass_at_k": Metric(
        "share", r"$\frac{1}{n} \sum_i \max_{a \le k} s_{i,a}$: the best of $k$ attempts", REPORT
    ),
    "pass_at_k_interval": Metric("share", INTERVAL.format("`pass_at_k`"), REPORT),
    "published": Metric(
        "share",
        "accuracy by the published rule of scoring",
        "dopsd.tasks.common.answers.score_by_rule",
    ),
    "strict": Metric(
        "share",
        "accuracy by the strict rule: an answer counts only in the format that was asked for",
        "dopsd.tasks.common.answers.score_by_rule",
    ),
}

SELECT = "dopsd.pipeline.stages.select.run"
SUMMARY_OF_CURVE = "dopsd.pipeline.stages.evaluate._summary"
SELECTION = {
    "base": Metric("share", "accuracy of the base on the selection split", SUMMARY_OF_CURVE),
    "start": Metric("share", "accuracy of `train.start_from`, if it is set", SUMMARY_OF_CURVE),
    "best": Metric("share", "highest accuracy of a checkpoint", SUMMARY_OF_CURVE),
    "best_update": Metric("updates", "first update that reaches `best`", SUMMARY_OF_CURVE),
    "last": Metric("share", "accuracy of the last checkpoint", SUMMARY_OF_CURVE),
    "n": Metric("problems", "problems of the selection split", SUMMARY_OF_CURVE),
    "update": Metric("updates", "`best_update`: the selected checkpoint", SELECT),
    "accuracy": Metric("share", "`best`: accuracy of the selected checkpoint", SELECT),
    "base_accuracy": Metric("share", "`base`", SELECT),
    "start_accuracy": Metric("share", "`start`", SELECT),
}

TEST = {
    "base": Metric("share", "accuracy of the base on test", COMPARE),
    "best": Metric("share", "accuracy of the selected checkpoint on test", COMPARE),
    "difference": Metric("share", PAIRED, COMPARE),
    "low": Metric("share", "lower end of the 95% bootstrap interval of `difference`", COMPARE),
    "high": Metric("share", "upper end of that interval", COMPARE),
}

MLFLOW = {
    **{
        f"best/area/{name}": Metric(
            "share",
            f"{whose}mean of accuracy on test over denoising steps, from 0 to those of the"
            " selecting protocol: the area under lines between the points of `evaluate.curve`"
            " (fixed steps), 0 at 0 steps",
            "dopsd.evaluation.speed.areas",
        )
        for name, whose in (("base", "base: "), ("best", ""), ("difference", "paired difference: "))
    },
    **{
        f"eval/{name}": Metric(
            metric.unit, f"`{name}` of a checkpoint; the step is its update, 0 as there", REPORT
        )
        for name, metric in EVALUATION.items()
        if name in ("accuracy", "low", "high", "whole")
    },
    "best/update": Metric("updates", "update of the selected checkpoint", BEST),
    "best/validation_accuracy": Metric(
        "share", "its accuracy on validation, which selected it", BEST
    ),
    "best/selection_on_test": Metric(
        "share", "the same where `select.split` is `test`: the test set itself selected it", BEST
    ),
    "best/test_accuracy": Metric(
        "share",
        "its accuracy on test by the protocol that selected; of a published row: length 256",
        BEST,
    ),
    "best/test_accuracy/{protocol}": Metric(
        "share", "its accuracy on test by each protocol; of a published row: by length", BEST
    ),
    "watch/{task}": Metric(
        "share", "its accuracy on test problems of a task of `evaluate.watch`, not trained", COMPARE
    ),
    "watch/{task}/difference": Metric("share", f"on these: {PAIRED}", COMPARE),
    "other_protocol/{paper}/accuracy/{length}": Metric(
        "share",
        "accuracy of a published row of another protocol, which its tag `protocol` describes; each"
        " protocol has a name, such as `2510.09541-three_shot`",
        "dopsd.tracking.baselines.baselines",
    ),
    "best/test_base_accuracy": Metric("share", "accuracy of the base on test", BEST),
    "best/test_difference": Metric("share", PAIRED, BEST),
    "best/test_difference_low": Metric("share", "lower end of its 95% bootstrap interval", BEST),
    "best/test_difference_high": Metric("share", "upper end of that interval", BEST),
    **{
        f"best/{name}": Metric(
            metric.unit, f"{metric.meaning}, until that update", "dopsd.tracking.publish_run._cost"
        )
        for name, metric in COUNTERS.items()
    },
    **RUN_COST,
    **{
        percent_name(name): Metric(
            "percent", f"`{name}` times 100, for charts", "dopsd.tracking.client.with_percent"
        )
        for name in SHOWN_IN_PERCENT
    },
}

RESULTS = {
    "base": Metric("share", "accuracy of the base on test", ROW),
    "base_interval": Metric("share", "95% interval of `base`", ROW),
    "trained": Metric(
        "share", "accuracy of the selected checkpoint on test; mean over seeds", MEANS
    ),
    "trained_interval": Metric("share", "95% interval of `trained`", ROW),
    "difference": Metric("share", f"{PAIRED}; or of two methods", MEANS),
    "interval": Metric(
        "share",
        "95% bootstrap interval of `difference` over problems; of several seeds, over both",
        "dopsd.analysis.results.paired_over_seeds",
    ),
    "n": Metric("problems", "problems of the test split", ROW),
    "seeds": Metric("runs", "number of seeds that are averaged", MEANS),
    "update": Metric("updates", "update of the selected checkpoint", ROW),
    "updates": Metric(
        "updates", "updates until the selected checkpoint; of several runs their mean", COSTS
    ),
    "trajectories": Metric("sequences", "`count/trajectories` there", COSTS),
    "rollouts": Metric("rollouts", "`count/rollouts` there", COSTS),
    "sampled_tokens": Metric("tokens", "`count/sampled_tokens` there", COSTS),
    "seconds": Metric(
        "seconds",
        "sum of `time/update_seconds` and `time/borrowed_seconds` until there; unknown of a run"
        " from DVC's cache",
        COSTS,
    ),
    "best": Metric(
        "share",
        "best mean accuracy of the method `compare.baseline` on the selection split; the cost is"
        " that of the first checkpoint that reaches it",
        "dopsd.pipeline.results.comparison.reached",
    ),
    "over_first": Metric(
        "share",
        "ablation: paired difference to the first row",
        "dopsd.pipeline.results.ablate.table",
    ),
    "over_base": Metric(
        "share", "ablation: paired difference to the base", "dopsd.pipeline.results.ablate.table"
    ),
    "last": Metric(
        "share",
        "ablation: accuracy of the last checkpoint on the selection split",
        "dopsd.pipeline.results.ablate.table",
    ),
}

TABLES = [
    Table(
        "Training",
        "Columns of `train.csv`, rows of `work/train-*/log.jsonl`, and in MLflow with the prefix"
        " `train/`. Scores and lengths of rollouts are in the row of the first update after a"
        " collect.",
        TRAINING,
    ),
    Table("Cost of a run", "`train.json`, at the end of training.", COST),
    Table(
        "Evaluation",
        "`curve.csv`, `base.json`, `test/paired.json`, and `dopsd evaluate` and `dopsd score` on"
        " files and in MLflow. Each file but the table says in `measured_on`"
        " [what computed it](evaluation.md#where-a-number-came-from).",
        EVALUATION,
    ),
    Table(
        "Selection",
        "`evaluate.json`, with `measured_on`, and `best/select.json`.",
        SELECTION,
    ),
    Table("Test", "`test.json`, with `measured_on`.", TEST),
    Table(
        "Published runs in MLflow",
        "`dopsd publish` adds these to the metrics of training, and `dopsd baselines import` logs"
        " accuracies and updates of published rows.",
        MLFLOW,
    ),
    Table("Comparisons", "`dopsd summary`, `dopsd compare` and `dopsd ablate`.", RESULTS),
    Table(
        "Teacher",
        "Rows of `teacher.json` of `dopsd verify-teacher`, each with `accuracy`, `interval`,"
        " `n` and `measured_on`.",
        TEACHER,
    ),
]
