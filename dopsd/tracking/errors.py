"""Report a failing tracking server in one line."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.extras import require
from dopsd.tracking.client import shown, start_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow.exceptions import MlflowException


@contextmanager
def one_line(uri: str, command: str = "publish") -> Iterator[None]:
    """Turn errors of mlflow in this context into one line.

    Args:
        uri: the tracking server.
        command: the command that needs it, for messages.

    Raises:
        DopsdError: if mlflow is not installed, the server fails or the disk is full.
    """
    require(command, "mlflow")
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        failure = "no space is left for the artifacts of" if is_full else "no expected answer from"
        message, advice = " ".join(str(error).split())[:160], "" if is_full else _start()
        raise DopsdError(
            f"publish: {failure} {shown(uri)} ({message}). All results are on disk: publish again"
            f" later.{advice}",
            TEMPORARY,
            code=Code.DISK_FULL if is_full else Code.TRACKING_SERVER,
        ) from error


def _start() -> str:
    start = start_command("MLflow")
    sourced = ", then `source work/services/env`" if start == "make up" else ""
    return f" Or start a server with `{start}`{sourced}."


def bad_request(message: str) -> MlflowException:
    """Return the error that MLflow's model server answers with status 400 and this message."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST

    return MlflowException(message, error_code=BAD_REQUEST)
