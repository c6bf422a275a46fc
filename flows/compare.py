"""`prefect deployment run dopsd-compare/compare`: methods x tasks x seeds, in one table and figure.

Each profile is a task. Its runs go through the flow `dopsd`, so finished stages do not run again.
Where machines joined this server, they train the runs, and this workspace collects the results.
"""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from pydantic import Field

from dopsd.config import params_file, profiles
from dopsd.config.loading import checked, load_params
from dopsd.core.errors import Code
from dopsd.core.fingerprint import checkout_digest
from dopsd.core.paths import RunKey
from dopsd.pipeline.run.request import PARAMS, RunRequest, check
from dopsd.training.pretraining.origin import ALLOWANCE
from flows import stages
from flows.artifacts import SERVER_ERRORS
from flows.machines import Cell, Cells, have_joined
from flows.running import DOPSD, begin, failed, run, stop_all
from flows.settings import Hardware, Method, OtherCode, Overrides, Preset, Profile
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
            data. Off: the run stops. Not where machines joined.
        other_code: For runs that other code began: stop with a message, continue them, or start
            them anew.
    """
    requests = [
        RunRequest(
            profile,
            preset,
            hardware,
            None,
            methods or ["d_opsd", "diffu_grpo"],
            seeds or [0, 1, 2],
            max_updates,
            overrides or {},
        )
        for profile in profiles or ["embedded"]
    ]
    how: dict[str, Any] = {"allow_retrain": allow_retrain, "other_code": other_code}
    try:
        with get_client(sync_client=True) as client:
            finished = (
                elsewhere(client, requests, how) if have_joined(client) else here(requests, how)
            )
        compare_runs(finished)
    except BaseException as error:
        stop_all()
        return failed(error)
    return finished


def here(requests: list[RunRequest], how: dict[str, Any]) -> list[str]:
    """Train all runs in this workspace, one after the other, and return their names."""
    names: list[str] = []
    for request in requests:
        parameters = {name: value for name, value in request.parameters.items() if value}
        names += train(**parameters, **how)
    return names


def elsewhere(
    client: SyncPrefectClient, requests: list[RunRequest], how: dict[str, Any]
) -> list[str]:
    """Train all runs on the machines that joined, collect the results, and return their names."""
    if how["allow_retrain"]:
        raise Code.OPTIONS.error(
            "allow_retrain: runs on other machines need the same base in every clone; train it here"
            f" (`{ALLOWANCE}=1 dopsd repro pretrain`), commit base/ and dvc.lock, and pull them"
            " there"
        )
    stages.require_remote()
    requests = [portable(request) for request in requests]
    keys = [[run.key for run in check(request).runs] for request in requests]
    shared = how | {"share": True, "code": checkout_digest(Path.cwd())}
    cells = [
        Cell(run_key, json.loads(json.dumps(_cell_of(request, run_key).parameters | shared)))
        for request, keys_of_task in zip(requests, keys, strict=True)
        for run_key in keys_of_task
    ]
    Cells(client, cells, get_run_logger()).run(lambda: show_machines(cells))
    begin(get_run_logger())
    names: list[str] = []
    for request, keys_of_task in zip(requests, keys, strict=True):
        done: object = stages.write_settings(request)
        done = stages.collect(keys_of_task, request.profile, done)
        if load_params().tracking.enabled:
            stages.publish(keys_of_task, done)
        names += [str(run_key) for run_key in keys_of_task]
    return names


def portable(request: RunRequest) -> RunRequest:
    """Return a request that means the same on a machine with another params.yaml."""
    if request.source:
        return request
    shipped, own = (
        params_file.flat(checked(raw, PARAMS).model_dump(mode="json"))
        for raw in (profiles.resolve(profiles.EMBEDDED), request.raw())
    )
    changed = {key: value for key, value in own.items() if shipped.get(key, ...) != value}
    return replace(request, profile=profiles.EMBEDDED, overrides=changed | request.overrides)


def _cell_of(request: RunRequest, run_key: RunKey) -> RunRequest:
    """Return the request of one run out of those of a request."""
    return replace(request, task=run_key.task, methods=[run_key.method], seeds=[run_key.seed])


def show_machines(cells: list[Cell]) -> None:
    """Show as an artifact which machine works on what, and what is done."""
    rows = [{"run": str(c.key), "machine": c.machine, "state": c.state} for c in cells]
    with suppress(*SERVER_ERRORS):
        create_table_artifact(rows, key="machines", description="Runs of the comparison by machine")


@task(name="compare", task_run_name="compare", cache_policy=NO_CACHE)
def compare_runs(runs: list[str]) -> None:
    """Write table and figure to reports/compare/, and show the table as an artifact."""
    run("compare", (*DOPSD, "compare", *runs), get_run_logger())
    get_run_logger().info(
        "wrote table and figure to reports/compare/:\n%s", TABLE.read_text(encoding="utf-8")
    )
    figure_note = (
        "\n\nFigure of accuracy against updates, rollouts and seconds:"
        " `reports/compare/accuracy.png`. Report, one HTML file:"
        " `reports/compare/comparison.html`.\n"
    )
    create_markdown_artifact(
        TABLE.read_text(encoding="utf-8") + figure_note,
        key="comparison",
        description=f"{len(runs)} runs side by side",
    )
