"""`dopsd doctor`: check this machine for what params.yaml needs, and say what to do."""

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from dopsd.config import profiles
from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.errors import Code, DopsdError
from dopsd.core.progress import table_console
from dopsd.pipeline.doctor import machine
from dopsd.pipeline.doctor.card import graphics_card
from dopsd.pipeline.doctor.services import hub, ports, prefect_server, remote, tracking_server

CHECKS: tuple[Callable[[Params], Iterator[machine.Finding]], ...] = (
    machine.python,
    machine.packages,
    machine.visible_gpus,
    machine.kernels,
    graphics_card,
    machine.disk,
    machine.user,
    machine.commit,
    ports,
    tracking_server,
    prefect_server,
    remote,
    hub,
    machine.inputs,
    machine.starts,
)


def _settings(path: Path) -> tuple[machine.Finding, Params]:
    """Check and return the settings of params.yaml; if it has errors, return profile embedded."""
    try:
        return machine.Finding("params", True, str(path)), load_params(path)
    except DopsdError as error:
        message = "; ".join(str(error).splitlines())
        embedded = Params.model_validate(profiles.resolve(profiles.EMBEDDED))
        return machine.Finding(
            "params", False, message, "fix params.yaml; the rows below assume profile embedded"
        ), embedded


def doctor(path: Path) -> None:
    """Print a table of all checks."""
    params_finding, params = _settings(path)
    findings = [params_finding, *(finding for check in CHECKS for finding in check(params))]
    table = Table("", "check", "found", "what to do", box=SIMPLE)
    for finding in findings:
        table.add_row(
            {True: "ok", None: "-", False: "NO"}[finding.is_fit],
            finding.name,
            finding.message,
            "" if finding.is_fit else finding.advice,
        )
    table_console().print(table)
    unfit = [finding.name for finding in findings if finding.is_fit is False]
    if unfit:
        raise Code.NOT_READY.error(f"doctor: not ready: {', '.join(unfit)}", 1)
