"""Fail in one line, without Prefect's traceback, where only a person can fix the error."""

from __future__ import annotations

import logging

from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun
from prefect.states import Failed

from dopsd.core.errors import DopsdError
from flows.running import CommandFailed, TakenAway

EXPLAINED = (
    DopsdError,
    CommandFailed,
    TakenAway,
)  # their messages name what is wrong and what to do
ENGINES = ("prefect.flow_runs", "prefect.task_runs")  # loggers of the engine, for the whole process


def drop_traceback(record: logging.LogRecord) -> bool:
    """Filter log records: drop the traceback of an explained error.

    A record of FailedRun is dropped as a whole, since it only repeats the message of a state.

    Returns:
        Whether the record is logged.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, EXPLAINED):
        record.exc_info = None
    return not isinstance(error, FailedRun)


for name in ENGINES:
    logging.getLogger(name).addFilter(drop_traceback)


def failed(error: BaseException) -> State[None]:
    """Return the state Failed with the message of an explained error of this flow or of a subflow.

    Raises:
        BaseException: `error` itself, if its message explains nothing; Prefect then logs the
            traceback.
    """
    if isinstance(error, DopsdError):
        return Failed(message=error.coded)
    if isinstance(error, (CommandFailed, TakenAway, FailedRun)):
        return Failed(message=str(error))
    raise error
