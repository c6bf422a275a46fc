"""`dopsd doctor`: is this machine ready for what params.yaml asks? Each check says what to do where
it is not.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dopsd.config import profiles
from dopsd.config.loading import load_params, missing_files
from dopsd.config.params import Params
from dopsd.core.errors import DopsdError
from dopsd.tracking.client import local_port, shown, tracking_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CORE = ("torch", "transformers", "peft", "accelerate", "safetensors")
PLATFORM = ("datasets", "dvc", "mlflow", "prefect", "fastapi")
PORTS = {"MLflow": 5000, "Prefect": 4200}
HEALTH = {"MLflow": "/health", "Prefect": "/api/health"}
POOL = "dopsd"  # as in prefect.yaml
SOURCED = Path("work/services/env")  # written by `make up`
HUB = "https://huggingface.co"
PATIENCE = 3.0  # seconds for an answer from the network
ROOM = {True: 2, False: 60}  # GB of free disk for a run: of the embedded base, of an 8B checkpoint


@dataclass(frozen=True)
class Finding:
    """What a check saw; `is_fit` None: it may matter or not."""

    name: str
    is_fit: bool | None
    said: str
    advice: str = ""


def python(_: Params) -> Iterator[Finding]:
    is_fit = sys.version_info >= (3, 11)
    yield Finding(
        "python", is_fit, sys.version.split()[0], "" if is_fit else "install Python 3.11 or newer"
    )


def packages(_: Params) -> Iterator[Finding]:
    try:
        bounds = {
            requirement.name: requirement.specifier
            for requirement in map(Requirement, requires("dopsd") or [])
        }
    except PackageNotFoundError:  # it runs from its source alone
        bounds = {}
    for names, is_core in ((CORE, True), (PLATFORM, False)):
        for name in names:
            try:
                installed = version(name)
                is_fit = installed in bounds.get(name, SpecifierSet())
                advice = f"wants {bounds.get(name)}: pip install -c constraints.txt -e ."
                yield Finding(name, is_fit, installed, "" if is_fit else advice)
            except PackageNotFoundError:
                advice = (
                    "pip install -c constraints.txt -e ."
                    if is_core
                    else "needed for the pipeline, not for training alone"
                )
                yield Finding(name, False if is_core else None, "not installed", advice)


def gpus(params: Params) -> Iterator[Finding]:
    import torch

    processes = params.launch.processes
    if not torch.cuda.is_available():
        is_small = bool(params.pretrain.tasks)
        yield Finding(
            "gpu",
            True if is_small else None,
            "none",
            "" if is_small else "an 8B model on a CPU takes months: rehearse here",
        )
        return
    count = torch.cuda.device_count()
    devices = ", ".join(
        f"{torch.cuda.get_device_name(i)} {torch.cuda.mem_get_info(i)[1] / 1e9:.0f} GB"
        for i in range(count)
    )
    yield Finding(
        "gpu",
        count >= processes,
        devices,
        "" if count >= processes else f"set launch.processes to {count}",
    )


def attention(params: Params) -> Iterator[Finding]:
    chosen = {params.model_of(task).attention for task in params.matrix.tasks}
    is_installed, implementation = find_spec("flash_attn") is not None, ", ".join(sorted(chosen))
    is_fit = is_installed or "flash_attention_2" not in chosen
    message = f"{implementation}; flash_attn is {'' if is_installed else 'not '}installed"
    yield Finding(
        "attention",
        is_fit,
        message,
        "" if is_fit else "pip install flash-attn --no-build-isolation, or attention: sdpa",
    )


def disk(params: Params) -> Iterator[Finding]:
    free, required = shutil.disk_usage(Path.cwd()).free / 1e9, ROOM[bool(params.pretrain.tasks)]
    yield Finding(
        "disk",
        free >= required,
        f"{free:.0f} GB free",
        "" if free >= required else f"a run wants about {required} GB",
    )


def ports(_: Params) -> Iterator[Finding]:
    for name, default_port in PORTS.items():
        port = local_port(name.lower(), default_port)
        address = f"127.0.0.1:{port}"
        if not is_taken(port):
            yield Finding(f"port of {name}", True, f"{address} is free")
        elif answers(f"http://{address}{HEALTH[name]}"):
            yield Finding(f"port of {name}", True, f"{name} answers on {address}")
        else:
            advice = f"by another program; choose one: `make up {name.upper()}_PORT={port + 100}`"
            yield Finding(f"port of {name}", None, f"{address} is taken", advice)


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(PATIENCE)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE):
            return True
    except (urllib.error.URLError, OSError, ValueError):
        return False


def tracking_server(params: Params) -> Iterator[Finding]:
    uri = tracking_uri(params.tracking.uri)
    if not uri.startswith("http"):
        yield Finding("tracking", True, "a local file" if params.tracking.enabled else "off")
        return
    is_up = answers(f"{uri.rstrip('/')}/health")
    yield Finding(
        "tracking",
        is_up,
        f"{shown(uri)} {'answers' if is_up else 'is silent'}",
        "" if is_up else advice_for("MLFLOW_TRACKING_URI"),
    )


def advice_for(name: str) -> str:
    """Which line is missing where this variable names a server that is silent, or none."""
    if SOURCED.is_file():
        return f"`source {SOURCED}` sets {name} to the server of `make up`"
    return f"`make up` starts one; or set {name} to another, or unset it"


def prefect_server(_: Params) -> Iterator[Finding]:
    """The server that `prefect` commands in this folder talk to, and whether a worker waits for
    runs there.
    """
    api = f"http://127.0.0.1:{local_port('prefect', PORTS['Prefect'])}/api"
    api = os.environ.get("PREFECT_API_URL", api).rstrip("/")
    if not answers(f"{api}/health"):
        advice = f"only for `prefect deployment run`: {advice_for('PREFECT_API_URL')}"
        yield Finding("prefect server", None, f"{api} is silent", advice)
        return
    is_configured = "PREFECT_API_URL" in os.environ or f":{PORTS['Prefect']}/" in api
    advice = (
        ""
        if is_configured
        else f"`prefect` asks port {PORTS['Prefect']}: {advice_for('PREFECT_API_URL')}"
    )
    yield Finding("prefect server", True if is_configured else None, f"{api} answers", advice)
    online = [worker["name"] for worker in workers(api) if worker["status"] == "ONLINE"]
    advice = (
        "" if online else f"runs would wait: `make up`, or `prefect worker start --pool {POOL}`"
    )
    yield Finding(
        "prefect worker", True if online else None, f"{len(online)} in the pool {POOL}", advice
    )


def workers(api: str) -> list[dict[str, str]]:
    """Workers of the pool that prefect.yaml deploys to; none where there is no such pool."""
    request = urllib.request.Request(
        f"{api}/work_pools/{POOL}/workers/filter", b"{}", {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            known: list[dict[str, str]] = json.load(response)
            return known
    except (urllib.error.URLError, OSError, ValueError):
        return []


def remote(_: Params) -> Iterator[Finding]:
    result = subprocess.run(
        [sys.executable, "-m", "dvc", "remote", "list"], capture_output=True, text=True, check=False
    )
    names = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    message = ", ".join(names) or ("none" if result.returncode == 0 else "no DVC project here")
    yield Finding(
        "dvc remote",
        True if names else None,
        message,
        "" if names else "`dvc remote add -d NAME URL` shares data and results",
    )


def hub(_: Params) -> Iterator[Finding]:
    is_up = answers(HUB)
    yield Finding(
        "hub",
        True if is_up else None,
        f"{HUB} {'answers' if is_up else 'is silent'}",
        "" if is_up else "name local files in data.*",
    )


def inputs(params: Params) -> Iterator[Finding]:
    missing = missing_files(params)
    yield Finding(
        "files",
        not missing,
        "all there" if not missing else "; ".join(missing),
        "download them, or name others" if missing else "",
    )


CHECKS: tuple[Callable[[Params], Iterator[Finding]], ...] = (
    *(
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
    ),
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
