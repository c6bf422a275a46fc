"""A tracking server that fails, as one line."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dopsd.core.errors import TEMPORARY, DopsdError
from dopsd.core.extras import require
from dopsd.tracking.client import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

START_OR_NAME = "`make up` starts servers here, then `source work/services/env` names them"


@contextmanager
def one_line(uri: str, command: str = "publish") -> Iterator[None]:
    """A missing package or a server that does not answer is one line, not mlflow's traceback."""
    require(command, "mlflow")
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        failure = "no space is left for the artifacts of" if is_full else "no expected answer from"
        message, advice = (
            " ".join(str(error).split())[:160],
            "" if is_full else f"; {START_OR_NAME}",
        )
        raise DopsdError(
            f"publish: {failure} {shown(uri)} ({message}); all results are on disk, publish again"
            f" later{advice}",
            TEMPORARY,
        ) from error
