"""One run of a tournament in a process of its own: the command that `dopsd tournament` starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.distributed.launch import end_with_parent
from dopsd.pipeline.tournament import making
from dopsd.pipeline.tournament.cells import IMPOSSIBLE, TEST, Cell
from dopsd.pipeline.tournament.plan import read_plan

# a run that its method, task or data make impossible: the entry takes no part there
NO_PART = (Code.CONTRADICTION, Code.NO_SOLUTIONS, Code.NOTHING_TO_LEARN, Code.NOT_FINITE)


def main(words: list[str]) -> int:
    """Make or test the run that three words describe.

    Args:
        words: `make` or `test`, the plan's path, and the run's fields as JSON.

    Returns:
        The exit code.
    """
    end_with_parent()
    step, plan, fields = words
    try:
        cell = Cell(read_plan(Path(plan)), **json.loads(fields))
        making.test(cell) if step == TEST else making.make(cell)
    except DopsdError as error:
        log(error.coded)
        return IMPOSSIBLE if error.code in NO_PART else error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
