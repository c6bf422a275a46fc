"""What a whole run cost: hours of its devices, and what it sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.core.files import WORK, read_json
from dopsd.core.metrics import COUNTED
from dopsd.core.paths import LOG
from dopsd.core.tables import read_log
from dopsd.training.machine import MACHINE
from dopsd.training.run_identity import object_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dopsd.core.paths import RunKey

HOUR = 3600.0  # seconds


def run_cost(key: RunKey) -> dict[str, float]:
    """Return the cost of a finished run as metrics of MLflow.

    Hours are of the updates of all processes that trained the run, one after the other: a resumed
    run has them all in its log. They are unknown of a run from DVC's cache.
    """
    totals = read_json(key.folder / "train.json", "dopsd train")
    scratch = WORK / totals["fingerprint"]
    rows = read_log(scratch / LOG) if (scratch / LOG).is_file() else []
    parts = object_of(scratch / MACHINE).get("parts", [])
    counts = {f"cost/{name}": float(totals[name]) for name in COUNTED if name in totals}
    return counts | device_hours(rows, parts)


def device_hours(
    rows: Sequence[dict[str, float]], parts: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """Return GPU-hours of updates that GPUs made, and CPU-hours of those that processors made.

    Args:
        rows: the log: a row for each update.
        parts: the record of machines; each begins after its `after_update`, and names the device of
            each process.

    Returns:
        GPU-hours: wall time times GPUs. CPU-hours: time of the first process' threads, times the
        processes. Either is absent without such updates, both without a record.
    """
    hours: dict[str, float] = {}
    for row in rows:
        devices = [part["devices"] for part in parts if part["after_update"] < row["update"]]
        if not devices:
            continue
        is_cpu = "(CPU" in devices[-1][0]
        seconds = row.get("time/cpu_seconds", 0.0) if is_cpu else row["time/update_seconds"]
        name = "cost/cpu_hours" if is_cpu else "cost/gpu_hours"
        hours[name] = hours.get(name, 0.0) + seconds * len(devices[-1]) / HOUR
    return hours
