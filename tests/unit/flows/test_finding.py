"""Runs are found by name, id and state, however many others there are, and planned by schedules."""

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deployed import prefect_server
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.schedules import CronSchedule
from prefect.server.services.scheduler import schedule_deployments
from prefect.states import Cancelled, Completed, Running, Scheduled

from dopsd.core.errors import DopsdError
from flows import runs, watching
from flows.machines import TAG

pytestmark = pytest.mark.full  # starts a server


@flow(name="dopsd")
def empty() -> None:
    """Stand for the flow; nothing runs here."""


@flow(name="dopsd-compare")
def compared() -> None:
    """Stand for the flow of comparisons."""


@pytest.fixture(scope="module")
def client(prefect_database: Path) -> Iterator[SyncPrefectClient]:
    with prefect_server(prefect_database), get_client(sync_client=True) as opened:
        yield opened


def test_a_run_is_found_behind_pages_of_later_ones(client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "PAGE", 2)
    later = datetime.now(UTC) + timedelta(hours=1)
    flow_id = client.create_flow(empty)
    deployment = client.create_deployment(flow_id, "train")

    def submit(name: str, seconds: int):
        at = Scheduled(scheduled_time=later + timedelta(seconds=seconds))
        return client.create_flow_run_from_deployment(deployment, name=name, state=at).id

    first, running = submit("first", 0), submit("running", 1)
    for number in range(2, 7):
        submit(f"queued-{number}", number)
    for number in range(9, 6, -1):
        submit(f"planned-{number}", 86400 * number)
    client.set_flow_run_state(first, Completed(), force=True)
    for name in ("attach", "cancel"):  # none has begun, and none is due
        planned = f"running, planned for {later:%Y-%m-%d %H:%M} UTC (`dopsd cancel running`"
        said = f"no run is in progress; the last was first (Completed); the next one is {planned}"
        with pytest.raises(DopsdError, match=re.escape(said)):
            runs.find(client, name, None)
    assert watching._awaited(client, client.read_flow_run(running)).startswith("is planned for 20")
    twin = submit("running", 99)
    client.set_flow_run_state(submit("dropped", 9 * 86400), Cancelled(), force=True)
    client.set_flow_run_state(submit("second", 0), Completed(), force=True)
    with pytest.raises(DopsdError, match=rf"last was second.*`dopsd cancel {running}` stops it"):
        runs.find(client, "attach", None)
    client.set_flow_run_state(twin, Cancelled(), force=True)
    monkeypatch.setattr(runs, "SKEW", timedelta(hours=2))  # the queue waits by now
    assert runs.find(client, "attach", None).name == "queued-6"
    client.set_flow_run_state(running, Running(), force=True)
    assert runs.find(client, "attach", None).name == "running"
    for name in ("first", str(first), str(first)[:18].upper(), "queued-2"):
        expected = "queued-2" if name == "queued-2" else "first"
        assert runs.find(client, "attach", name).name == expected
    with pytest.raises(DopsdError, match="queued-6"):
        runs.find(client, "attach", "quued-6")
    cell, tags = client.create_deployment(flow_id, "cell"), [TAG]
    for _ in range(2):
        newest = client.create_flow_run_from_deployment(cell, name="s/rft/0", tags=tags)
        client.set_flow_run_state(newest.id, Running(), force=True)
        assert runs.find(client, "cancel", "s/rft/0").id == newest.id
        client.set_flow_run_state(newest.id, Completed(), force=True)
    assert runs.find(client, "attach", "s/rft/0").id == newest.id
    several = client.create_deployment(client.create_flow(compared), "compare")
    client.create_flow_run_from_deployment(several, name="big")
    assert runs.find(client, "cancel", "big").name == "big"
    with pytest.raises(DopsdError, match="attach: big is a comparison"):
        runs.find(client, "attach", "big")


def test_a_schedule_plans_runs(client):
    nightly = CronSchedule(cron="30 2 * * *", timezone="Europe/Berlin")
    schedules = [DeploymentScheduleCreate(schedule=nightly)]
    planned = client.create_deployment(client.create_flow(empty), "nightly", schedules=schedules)
    asyncio.run(schedule_deployments())  # as the server does in each minute
    only = DeploymentFilter(id=DeploymentFilterId(any_=[planned]))
    assert client.read_flow_runs(deployment_filter=only)[0].auto_scheduled
