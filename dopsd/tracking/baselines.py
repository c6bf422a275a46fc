"""`dopsd baselines import`: add published accuracies to MLflow, for comparison with own runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.evaluation.published import published
from dopsd.tracking import dashboard
from dopsd.tracking.client import Identity, connect, find_run, log_once, shown, tracking_uri
from dopsd.tracking.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dopsd.tracking.config import TrackingConfig

# The length whose accuracy gets the metric name that trained runs use: profiles select at it.
SHOWN = 256


@dataclass(frozen=True)
class Baseline:
    """One published row: the accuracy of a method on a task."""

    task: str
    method: str
    accuracy: dict[int, float]  # in [0, 1], by answer length in tokens
    updates: int | None  # updates of the best checkpoint, if published

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics under the names of `dopsd publish`; the checkpoint was selected on test."""
        values = {f"best/test_accuracy/{length}": value for length, value in self.accuracy.items()}
        values["best/test_accuracy"] = self.accuracy[SHOWN]
        return values | ({} if self.updates is None else {"best/update": float(self.updates)})


def baselines() -> Iterator[Baseline]:
    """Yield every row of dopsd/evaluation/published.yaml."""
    table = published()
    for method, tasks in table["methods"].items():
        for task, row in tasks.items():
            # some rows have only the first length
            percent = zip(table["lengths"][task], row["accuracy"], strict=False)
            yield Baseline(
                task,
                method,
                {length: round(value / 100, 4) for length, value in percent},
                row.get("updates"),
            )


def import_published(tracking: TrackingConfig) -> int:
    """Import the published rows as MLflow runs, tagged source=published, and return their number.

    A second import finds the runs of the first one and changes nothing.

    Args:
        tracking: section `tracking`.

    Raises:
        DopsdError: if tracking is disabled or the server fails.
    """
    if not tracking.enabled:
        raise DopsdError(
            "tracking.enabled is false in params.yaml; to import, first run"
            " `dopsd params --set tracking.enabled=true`",
            code=Code.TRACKING_OFF,
        )
    uri, count = tracking_uri(tracking.uri), 0
    with one_line(uri, "baselines"):
        client = connect(uri)
        for row in baselines():
            tags = {
                "task": row.task,
                "method": row.method,
                "source": "published",
                "selection": "test",
            }
            tags |= {"model": "LLaDA-8B-Instruct", "paper": published()["source"]}
            name, key = f"published-{row.task}-{row.method}", f"published-{row.task}-{row.method}"
            params = {"task": row.task, "method.name": row.method}
            run_id = find_run(client, Identity(uri, tracking.experiment, name, key, tags, params))
            log_once(client, run_id, row.metrics, 0)
            client.set_terminated(run_id)
            dashboard.save(client, client.get_run(run_id).info.experiment_id, row.task)
            count += 1
    experiment = tracking.experiment
    log(
        f"baselines: {count} published rows are in {shown(uri)}, experiment {experiment}, tagged"
        " source=published"
    )
    return count
