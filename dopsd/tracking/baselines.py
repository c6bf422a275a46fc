"""`dopsd baselines import`: add published accuracies to MLflow, for comparison with own runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.progress import log
from dopsd.evaluation.published import PublishedTable, published_tables
from dopsd.tracking import dashboard
from dopsd.tracking.client import (
    Identity,
    connect,
    find_run,
    log_once,
    one_line,
    shown,
    tracking_uri,
    with_percent,
)
from dopsd.tracking.config import TrackingConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient


# The length whose accuracy gets the metric name that trained runs use: profiles select at it.
SHOWN = 256


@dataclass(frozen=True)
class Baseline:
    """One published row: the accuracy of a method on a task."""

    task: str
    method: str
    accuracy: dict[int | str, float]  # in [0, 1], by answer length in tokens, or their `mean`
    updates: int | None  # updates of the best checkpoint, if published
    table: PublishedTable  # the paper's table

    @property
    def source(self) -> str:
        """The paper."""
        return self.table.source

    @property
    def other_protocol(self) -> str | None:
        """How it was measured, if not as our profiles do."""
        return None if self.table.as_profiles else self.table.protocol

    @property
    def name(self) -> str:
        """Name of its run, and its fingerprint."""
        name = f"published-{self.task}-{self.method}"
        return name if self.table.as_profiles else f"{name}-{self.table.key}"

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics under the names of `dopsd publish`, where it was measured as our profiles do.

        Those of another protocol have names of their own, so that they share no column and chart.
        """
        metric = metric_of(self.table)
        values = {f"{metric}/{length}": value for length, value in self.accuracy.items()}
        if not self.table.as_profiles:
            return values
        values[metric] = self.accuracy[SHOWN]
        return values | ({} if self.updates is None else {"best/update": float(self.updates)})


def metric_of(table: PublishedTable) -> str:
    """Return the name of a table's accuracies, without the length."""
    return "best/test_accuracy" if table.as_profiles else f"other_protocol/{table.key}/accuracy"


def baselines() -> Iterator[Baseline]:
    """Yield every row of every published table."""
    for table in published_tables():
        yield from _rows(table)


def _rows(table: PublishedTable) -> Iterator[Baseline]:
    for method, tasks in table.methods.items():
        for task, row in tasks.items():
            # some rows have only the first length
            percent = zip(table.lengths[task], row["accuracy"], strict=False)
            yield Baseline(
                task,
                method,
                {length: round(value / 100, 4) for length, value in percent},
                row.get("updates"),
                table,
            )


def import_published(tracking: TrackingConfig) -> int:
    """Import the published rows as MLflow runs, tagged source=published, and return their number.

    A second import finds the runs of the first one and changes nothing.
    """
    if not tracking.enabled:
        raise Code.TRACKING_OFF.error(
            "tracking.enabled is false in params.yaml; to import, first run"
            " `dopsd params --set tracking.enabled=true`"
        )
    uri = tracking_uri(tracking.uri)
    with one_line(uri, "baselines"):
        client = connect(uri)
        runs = [_import_row(client, uri, tracking.experiment, row) for row in baselines()]
        experiment_id = client.get_run(runs[0]).info.experiment_id
        for task in sorted({row.task for row in baselines()}):
            dashboard.save(client, experiment_id, task)
    log(
        f"baselines: {len(runs)} published rows are in {shown(uri)}, experiment"
        f" {tracking.experiment}, tagged source=published. Compare within one group only:"
    )
    counts = Counter(row.table.key for row in baselines())
    for table in published_tables():
        log(f"  {table.source}: {counts[table.key]} rows, `{metric_of(table)}`: {table.protocol}")
    return len(runs)


def _import_row(client: MlflowClient, uri: str, experiment: str, row: Baseline) -> str:
    """Log a row, and return the id of its run."""
    tags = {
        "task": row.task,
        "method": row.method,
        "source": "published",
        "selection": row.table.selection,
        "protocol": row.other_protocol or str(SHOWN),
        "model": "LLaDA-8B-Instruct",
        "paper": row.source,
    }
    params = {"task": row.task, "method.name": row.method}
    run_id = find_run(client, Identity(uri, experiment, row.name, row.name, tags, params))
    log_once(client, run_id, with_percent(row.metrics), 0)
    client.set_terminated(run_id)
    return run_id
