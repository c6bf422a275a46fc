"""`dopsd leaderboard --publish`: a tournament's runs as MLflow runs, and its page.

Each run is found again by its fingerprint, task, entry and seed: publishing twice changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.palette import run_colour
from dopsd.tracking.client import Identity, connect, find_run, shown, tracking_uri
from dopsd.tracking.errors import one_line
from dopsd.tracking.pages import PAGE, local_page
from dopsd.tracking.percent import with_percent
from dopsd.tracking.points import Point, log_missing
from dopsd.tracking.run_colours import COLOUR_TAG

if TYPE_CHECKING:
    from pathlib import Path

    from mlflow import MlflowClient

    from dopsd.tracking.config import TrackingConfig

CURVE = {  # metric: key of a checkpoint
    "eval/accuracy": "accuracy",
    "count/rollouts": "rollouts",
    "count/tokens": "tokens",
    "count/flops": "flops",
    "time/cpu_seconds": "cpu_seconds",
}
CHOSEN = {  # metric of a budget: key of the chosen checkpoint
    "test_accuracy": "test",
    "validation_accuracy": "validation",
    "update": "update",
    "tokens": "tokens",
    "cpu_seconds": "cpu_seconds",
}


def publish(results: dict[str, Any], tracking: TrackingConfig) -> dict[str, str]:
    """Send every run of a tournament to MLflow.

    Args:
        results: what `dopsd.pipeline.leaderboard_results.read_results` returns.
        tracking: section `tracking`.

    Returns:
        The address of each run, by task/entry/seed.

    Raises:
        DopsdError: if tracking is disabled or the server fails.
    """
    uri = _uri(tracking)
    links = {}
    with one_line(uri, "leaderboard"):
        client = connect(uri)
        for run in results["runs"]:
            identity = identity_of(run, results, tracking, uri)
            run_id = find_run(client, identity)
            log_missing(client, run_id, with_percents(points_of(run)))
            client.set_terminated(run_id)
            links[f"{run['task']}/{run['entry']}/{run['seed']}"] = _link(client, uri, run_id)
    return links


def publish_page(page: Path, tracking: TrackingConfig) -> str:
    """Log a leaderboard as an artifact of the experiment's run `leaderboard`.

    Args:
        page: the file.
        tracking: section `tracking`.

    Returns:
        The address of that run.

    Raises:
        DopsdError: if tracking is disabled or the server fails.
    """
    uri, experiment = _uri(tracking), experiment_of(tracking)
    identity = Identity(
        uri, experiment, "leaderboard", "leaderboard", {"source": "leaderboard"}, {}
    )
    with one_line(uri, "leaderboard"):
        client = connect(uri)
        run_id = find_run(client, identity)
        client.log_artifact(run_id, str(page))
        client.set_terminated(run_id)
        return _link(client, uri, run_id)


def experiment_of(tracking: TrackingConfig) -> str:
    """Return the name of the experiment with the tournament's runs."""
    return f"{tracking.experiment}-tournament"


def identity_of(
    run: dict[str, Any], results: dict[str, Any], tracking: TrackingConfig, uri: str
) -> Identity:
    """Return the MLflow run of a tournament's run."""
    entry, rules = results["entries"][run["entry"]], results["rules"]
    parts = {"task": run["task"], "entry": run["entry"], "seed": str(run["seed"])}
    budget = f"{rules['tokens']:g} tokens or {rules['seconds']:g} CPU seconds"
    name = "-".join(parts.values())
    knows, named = entry["knows"][run["task"]], [run["fingerprint"], *parts.values(), budget]
    digest = hashlib.sha256("/".join(named).encode()).hexdigest()
    colour = run_colour(ALGORITHMS, entry["method"], run["seed"])
    tags = parts | {"method": entry["method"], "knowledge": knows, "budget": budget}
    tags |= {"source": "tournament", "fingerprint": run["fingerprint"], COLOUR_TAG: colour}
    params = parts | {"method.name": entry["method"], "knowledge": knows}
    params |= {"budget.tokens": f"{rules['tokens']:g}", "budget.seconds": f"{rules['seconds']:g}"}
    params |= {"rate": f"{run['rate']:g}", "command": run["command"], **run["settings"]}
    return Identity(uri, experiment_of(tracking), name, f"tournament-{digest[:16]}", tags, params)


def points_of(run: dict[str, Any]) -> list[Point]:
    """Return the metrics of a run: its curve by update, and what each budget allows."""
    points = [
        Point(metric, float(checkpoint[key]), int(checkpoint["update"]))
        for checkpoint in run["curve"]
        for metric, key in CURVE.items()
    ]
    for budget, chosen in run["chosen"].items():
        points += [
            Point(f"tournament/{budget}/{metric}", float(chosen[key]), 0)
            for metric, key in CHOSEN.items()
            if chosen and chosen[key] is not None
        ]
    return points


def with_percents(points: list[Point]) -> list[Point]:
    """Return points, and those of shares in percent as well."""
    return [
        Point(metric, value, step)
        for name, share, step, _ in points
        for metric, value in with_percent({name: share}).items()
    ]


def _uri(tracking: TrackingConfig) -> str:
    """Return the server's address, or refuse where tracking is off."""
    if not tracking.enabled:
        raise DopsdError(
            "tracking.enabled is false in params.yaml; to publish, first run"
            " `dopsd params --set tracking.enabled=true`",
            code=Code.TRACKING_OFF,
        )
    return tracking_uri(tracking.uri)


def _link(client: MlflowClient, uri: str, run_id: str) -> str:
    """Return the address of a run for browsers."""
    page = os.environ.get(PAGE) or (shown(uri) if uri.startswith("http") else local_page())
    experiment = client.get_run(run_id).info.experiment_id
    return f"{page.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"
