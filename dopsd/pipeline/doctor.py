"""`dopsd doctor`: is this machine ready for what params.yaml asks? Each check says what to do where
it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dopsd.config import profiles
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.errors import DopsdError
from dopsd.pipeline.checks.finding import Finding
from dopsd.pipeline.checks.machine import attention, disk, gpus, inputs, packages, python
from dopsd.pipeline.checks.services import hub, ports, prefect_server, remote, tracking_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHECKS: tuple[Callable[[Params], Iterator[Finding]], ...] = (
    python,
    packages,
    gpus,
    attention,
    disk,
    ports,
    tracking_server,
    prefect_server,
    remote,
    hub,
    inputs,
)


def settings(path: Path) -> tuple[Finding, Params]:
    """Whether params.yaml is sound; where it is not, the machine is looked at for the embedded
    profile.
    """
    try:
        return Finding("params", True, str(path)), load_params(path)
    except DopsdError as error:
        message = "; ".join(str(error).splitlines())
        embedded = Params.model_validate(profiles.resolve(profiles.EMBEDDED))
        return Finding(
            "params", False, message, "mend it; the rest of this table is for the embedded profile"
        ), embedded


def doctor(path: Path) -> None:
    """A table of all checks; raises DopsdError, exit status 1, where one of them stands in the
    way.
    """
    params_finding, params = settings(path)
    findings = [params_finding, *(finding for check in CHECKS for finding in check(params))]
    table = Table("", "check", "found", "what to do", box=SIMPLE)
    for finding in findings:
        table.add_row(
            {True: "ok", None: "-", False: "NO"}[finding.is_fit],
            finding.name,
            finding.said,
            finding.advice,
        )
    Console().print(table)
    unfit = [finding.name for finding in findings if finding.is_fit is False]
    if unfit:
        raise DopsdError(f"doctor: not ready: {', '.join(unfit)}", 1)
