"""How a flow fails where only a person can fix it: in one line, without the tracebacks of Prefect's
engine.
"""

from __future__ import annotations

import logging

from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun
from prefect.states import Failed

from dopsd.core.errors import DopsdError
from flows.running import CommandFailed

EXPLAINED = (DopsdError, CommandFailed)  # their messages name what is wrong and what to do
ENGINES = (
    "prefect.flow_runs",
    "prefect.task_runs",
)  # loggers of the engine, for all runs of a process


def drop_traceback(record: logging.LogRecord) -> bool:
    """Keep a record, without the traceback of an explained error; a FailedRun only repeats the
    message of a state.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, EXPLAINED):
        record.exc_info = None
    return not isinstance(error, FailedRun)


for name in ENGINES:
    logging.getLogger(name).addFilter(drop_traceback)


def failed(error: BaseException) -> State[None]:
    """Return the state Failed with the message of an explained error, of this flow or of one that
    it called.

    Raises:
        BaseException: `error` itself, if its message explains nothing; Prefect then logs the
            traceback.
    """
    if isinstance(error, (*EXPLAINED, FailedRun)):
        return Failed(message=str(error))
    raise error
