"""`prefect deployment run dopsd-compare/compare`: methods x tasks x seeds, then one table and
figure of all of them.

Each profile is a task; its runs go through the flow `dopsd`, so that what is finished is not run
again.
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
    """Train methods on tasks with seeds, all in one MLflow experiment, and lay them side by side.

    Args:
        profiles: ready settings, a task each; empty: embedded, which is 4x4 Sudoku on a CPU
        methods: methods to compare; empty: d_opsd and diffu_grpo
        seeds: seeds of each; empty: 0, 1 and 2
        preset: of llada-8b profiles: `reference` is what the published code does, `paper` what the
            paper's equations say
        hardware: of llada-8b profiles: the GPUs of this worker
        max_updates: number of updates of every method (train.updates); empty: the profile's
        overrides: other keys of params.yaml by full name, and their values; for all profiles
        allow_retrain: train the embedded base again where it does not match these settings or their
            data; else the run stops
        other_code: what to do with runs that other code began: stop and say so, continue them, or
            train them anew
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
        lay_side_by_side(finished)
    except Exception as error:
        return failed(error)
    return finished


@task(name="compare", task_run_name="compare", cache_policy=NO_CACHE)
def lay_side_by_side(runs: list[str]) -> None:
    """Table and figure in reports/compare/, and the table as an artifact."""
    run("compare", (*DOPSD, "compare", *runs), get_run_logger())
    get_run_logger().info("reports/compare/ has the table and the figure:\n%s", TABLE.read_text())
    figure_note = (
        "\n\nThe figure, accuracy against updates, rollouts and seconds:"
        " `reports/compare/accuracy.png`.\n"
    )
    create_markdown_artifact(
        TABLE.read_text() + figure_note,
        key="comparison",
        description=f"{len(runs)} runs side by side",
    )
