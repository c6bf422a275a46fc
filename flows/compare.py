"""`prefect deployment run dopsd-compare/compare`: methods x tasks x seeds, in one table and figure.

Each profile is a task. Its runs go through the flow `dopsd`, so finished stages do not run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from pydantic import Field

from flows.failures import failed
from flows.overrides import Overrides
from flows.running import DOPSD, run
from flows.settings import Hardware, Method, OtherCode, Preset, Profile
from flows.train import train

TABLE = Path("reports/compare/comparison.md")


@flow(name="dopsd-compare")
def compare(
    profiles: Annotated[list[Profile], Field(min_length=1)] | None = None,
    methods: list[Method] | None = None,
    seeds: list[Annotated[int, Field(ge=0)]] | None = None,
    preset: Preset = "reference",
    hardware: Hardware = "1x80gb",
    max_updates: Annotated[int, Field(ge=1)] | None = None,
    overrides: Overrides | None = None,
    allow_retrain: bool = False,
    other_code: OtherCode = "stop",
) -> list[str] | State[None]:
    """Train methods on tasks with several seeds, and compare them in one MLflow experiment.

    Args:
        profiles: Ready settings, one task each. Empty: embedded, which is 4x4 Sudoku on a CPU.
        methods: Methods to compare. Empty: d_opsd and diffu_grpo.
        seeds: Seeds of each method. Empty: 0, 1 and 2.
        preset: For profiles of language models: `reference` follows the published code, `paper`
            the paper's equations; `small` is `reference` on few problems.
        hardware: For profiles of language models: the hardware of this worker.
        max_updates: Number of updates of every method (train.updates). Empty: that of the profile.
        overrides: Other keys of params.yaml by full name, with their values, for all profiles.
        allow_retrain: Train the embedded base again if it does not match these settings or their
            data. Off: the run stops.
        other_code: For runs that other code began: stop with a message, continue them, or start
            them anew.
    """
    shared: dict[str, Any] = {
        "preset": preset,
        "hardware": hardware,
        "max_updates": max_updates,
        "overrides": overrides,
    }
    shared |= {"allow_retrain": allow_retrain, "other_code": other_code}
    shared |= {"methods": methods or ["d_opsd", "diffu_grpo"], "seeds": seeds or [0, 1, 2]}
    try:
        finished = [
            run_key for profile in profiles or ["embedded"] for run_key in train(profile, **shared)
        ]
        compare_runs(finished)
    except Exception as error:
        return failed(error)
    return finished


@task(name="compare", task_run_name="compare", cache_policy=NO_CACHE)
def compare_runs(runs: list[str]) -> None:
    """Write table and figure to reports/compare/, and show the table as an artifact."""
    run("compare", (*DOPSD, "compare", *runs), get_run_logger())
    get_run_logger().info("wrote table and figure to reports/compare/:\n%s", TABLE.read_text())
    figure_note = (
        "\n\nFigure of accuracy against updates, rollouts and seconds:"
        " `reports/compare/accuracy.png`. Report, one HTML file:"
        " `reports/compare/comparison.html`.\n"
    )
    create_markdown_artifact(
        TABLE.read_text() + figure_note,
        key="comparison",
        description=f"{len(runs)} runs side by side",
    )
