"""One run of a tournament in a process of its own: the command that `dopsd tournament` starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.pipeline.tournament import making
from dopsd.pipeline.tournament.cells import TEST, Cell
from dopsd.pipeline.tournament.plan import read_plan


def main(words: list[str]) -> int:
    """Make or test the run that three words describe.

    Args:
        words: `make` or `test`, the plan's path, and the run's fields as JSON.

    Returns:
        The exit code.
    """
    step, plan, fields = words
    try:
        cell = Cell(read_plan(Path(plan)), **json.loads(fields))
        making.test(cell) if step == TEST else making.make(cell)
    except DopsdError as error:
        log(error.coded)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
