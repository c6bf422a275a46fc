"""Watch a run until its end: `dopsd run` and `dopsd attach`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, StateType

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.pipeline.run_request import RunRequest, check
from dopsd.pipeline.run_view import INTERRUPTED, Display, RunView, expected_stages, split_code
from flows import runs, server
from flows.run_state import view_of

LOOK_EVERY = 1.0  # seconds
AWAY = "Prefect's server does not answer; the run goes on, and so does this view once it is back"


def watch(client: SyncPrefectClient, run: FlowRun, command: str) -> None:
    """Show a run until it ends; Ctrl-C leaves it running.

    Args:
        client: Client of Prefect's server.
        run: The run.
        command: Command that messages name.

    Raises:
        DopsdError: if the run fails (exit code 1), is cancelled, or the view is left (130).
    """
    with leaving(run, command):
        run = _until_over(client, run)
        _report_end(client, run, command)


@contextmanager
def leaving(run: FlowRun, command: str) -> Iterator[None]:
    """Say at a Ctrl-C that the run goes on; the same command would start another.

    Args:
        run: A run that the server has.
        command: Command that the message names.

    Raises:
        DopsdError: at a Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise DopsdError(
            f"{command}: left {run.name}, which goes on; `dopsd attach {run.name}` shows it again,"
            f" `dopsd cancel {run.name}` stops it",
            INTERRUPTED,
            code=Code.RUN_LEFT,
        ) from None


def _until_over(client: SyncPrefectClient, run: FlowRun) -> FlowRun:
    """Show a run until it ends, and return it as it ended."""
    expected = _expected(run.parameters)
    view = RunView(run.name, (run.state_name or "").lower())
    with Display(f"Ctrl-C leaves the view; the run goes on (`dopsd cancel {run.name}`)") as display:
        try:
            while True:
                display.show(view)
                if look := _look(client, run, expected):
                    run, view = look
                    if runs.is_over(run):
                        return run
                else:
                    view.note = AWAY
                time.sleep(LOOK_EVERY)
        finally:
            display.show(view, is_last=True)


def _look(
    client: SyncPrefectClient, run: FlowRun, expected: list[str]
) -> tuple[FlowRun, RunView] | None:
    """Return the run and its view as they are now, or None while the server is away or failing."""
    if server.is_reachable():
        with server.passing_failures():
            run = client.read_flow_run(run.id)
            return run, view_of(client, run, expected)
    return None


def _expected(parameters: dict[str, Any]) -> list[str]:
    """Return the stages that a run with these parameters will have; none if they are not valid."""
    names = RunRequest.__dataclass_fields__
    values = {name: v for name, v in parameters.items() if name in names and v is not None}
    try:
        return ["settings", *expected_stages(check(RunRequest(**values), can_retrain=True))]
    except (DopsdError, TypeError):
        return []


def _report_end(client: SyncPrefectClient, run: FlowRun, command: str) -> None:
    """Return if the run is completed.

    Raises:
        DopsdError: with the reason, if the run failed, crashed or was cancelled.
    """
    message = (run.state.message or "") if run.state else ""
    if run.state_type == StateType.COMPLETED:
        return
    if run.state_type == StateType.CANCELLED:
        saved = ""
        with server.passing_failures():
            saved = runs.saved_by(client, run)
        outcome = saved or "training saves its last finished update"
        message = f"{command}: {run.name} was cancelled; {outcome}"
        raise DopsdError(message, INTERRUPTED, code=Code.RUN_CANCELLED)
    state = (run.state_name or "failed").lower()
    message, code = split_code(message or "no reason given")
    raise DopsdError(f"{command}: {run.name} {state}: {message}", 1, code=code)
