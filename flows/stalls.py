"""Flag a run without updates on Prefect's server: a tag of the run, and an event for automations.

The state of the run stays as it is. An automation that named it would undo a cancellation, or open
a run again that has ended meanwhile.
"""

from __future__ import annotations

from uuid import UUID

from prefect import get_run_logger, runtime
from prefect.client.orchestration import get_client
from prefect.events import emit_event

TAG = "stalled"
STALLED, PROGRESSED = "dopsd.run.stalled", "dopsd.run.progressed"  # events


def flag(is_stalled: bool, text: str) -> None:
    """Set or remove the tag of this task's run, and emit the event; do nothing without a change.

    Args:
        is_stalled: Whether the run has made no update for long, or does again.
        text: Progress, for the log and the event.
    """
    run_id = UUID(runtime.flow_run.id)
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id)
        if (TAG in run.tags) == is_stalled:
            return
        tags = {*run.tags, TAG} if is_stalled else {*run.tags} - {TAG}
        client.update_flow_run(run_id, tags=sorted(tags))
    emit_event(
        STALLED if is_stalled else PROGRESSED,
        resource={
            "prefect.resource.id": f"prefect.flow-run.{run_id}",
            "prefect.resource.name": run.name,
        },
        payload={"progress": text},
    )
    message = f"stalled: {text}" if is_stalled else f"no longer stalled: {text}"
    (get_run_logger().warning if is_stalled else get_run_logger().info)(message)
