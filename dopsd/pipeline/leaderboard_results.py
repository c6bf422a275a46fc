"""Reading the file of a finished tournament, `reports/tournament/results.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import parse_object
from dopsd.pipeline.leaderboard_schema import VERSION, Results

if TYPE_CHECKING:
    from pathlib import Path


def read_results(path: Path) -> dict[str, Any]:
    """Return the results of a tournament.

    Raises:
        DopsdError: if the file is missing, damaged, or of another version.
    """
    if not path.is_file():
        raise DopsdError(
            f"{path}: no such file; run `dopsd tournament` first, or name the file with --results",
            code=Code.NO_RESULTS,
        )
    raw = parse_object(path.read_bytes(), path)
    if raw.get("version") != VERSION:
        raise DopsdError(
            f"{path}: version {str(raw.get('version'))[:40]}, expected {VERSION}; run"
            " `dopsd tournament` again with this release",
            code=Code.RESULT_DAMAGED,
        )
    try:
        return Results.model_validate_json(path.read_bytes()).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise DopsdError(
            f"{path}: {f'{where}: ' if where else ''}{message}; restore the file, or run"
            " `dopsd tournament` again",
            code=Code.RESULT_DAMAGED,
        ) from error
