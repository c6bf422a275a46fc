"""Report a failing tracking server in one line."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.extras import require
from dopsd.tracking.client import shown, start_command
from dopsd.tracking.config import address_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow.exceptions import MlflowException

PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
# in errors about answers of other servers
FOREIGN = ("'detail': 'Not Found'", "not in a valid JSON format")


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
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    if fault := address_fault(uri):
        raise _refused(command, uri.rpartition("@")[2][:200], fault)
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        raise  # of a local database: a mistake that stays
    except (MlflowException, OSError, SQLAlchemyError, ImportError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        failure = "no space is left for the artifacts of" if is_full else "no expected answer from"
        message, advice = " ".join(str(error).split())[:160], "" if is_full else _start()
        is_away = isinstance(error, OperationalError)  # of a database
        if _stays(error) or (isinstance(error, (SQLAlchemyError, ImportError)) and not is_away):
            raise _refused(command, shown(uri), message) from error
        raise DopsdError(
            f"{command}: {failure} {shown(uri)} ({message}). All results are on disk: publish again"
            f" later.{advice}",
            TEMPORARY,
            code=Code.DISK_FULL if is_full else Code.TRACKING_SERVER,
        ) from error


def _stays(error: Exception) -> bool:
    """Tell whether a server would answer so again: it refused, or is another server than MLflow."""
    status = getattr(error, "get_http_status_code", lambda: 0)()
    is_refused = status // 100 == 4 and status not in PASSING  # noqa: PLR2004
    return (is_refused and getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS") or any(
        text in str(error) for text in FOREIGN
    )


def _refused(command: str, place: str, reason: str) -> DopsdError:
    return DopsdError(
        f"{command}: {place}: {reason}; MLFLOW_TRACKING_URI or tracking.uri names the server",
        code=Code.TRACKING_REFUSED,
    )


def _start() -> str:
    start = start_command("MLflow")
    sourced = ", then `source work/services/env`" if start == "make up" else ""
    return f" Or start a server with `{start}`{sourced}."


def bad_request(message: str) -> MlflowException:
    """Return the error that MLflow's model server answers with status 400 and this message."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST

    return MlflowException(message, error_code=BAD_REQUEST)
