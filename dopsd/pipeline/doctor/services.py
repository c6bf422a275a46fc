"""Checks of what this machine connects to: ports, MLflow, Prefect, DVC remote, Hugging Face hub."""

from __future__ import annotations

import base64
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dopsd.pipeline.doctor.machine import Finding
from dopsd.pipeline.dvc.command import ask_dvc
from dopsd.tracking.client import local_port, shown, start_command, started_here, tracking_uri

if TYPE_CHECKING:
    from dopsd.config.params import Params

PORTS = {"MLflow": 5000, "Prefect": 4200}
HEALTH = {"MLflow": "/health", "Prefect": "/api/health"}
MACHINE = Path("work/services/machine")  # name of this machine, where it joined a server
SOURCED = Path("work/services/env")  # written by `make up`
HUB = "https://huggingface.co"
TIMEOUT = 3.0  # seconds for an answer from the network


def ports(_: Params) -> Iterator[Finding]:
    """Check that the ports of MLflow and Prefect are free, or that these servers answer there."""
    for name, default_port in PORTS.items():
        port = local_port(name.lower(), default_port)
        address = f"127.0.0.1:{port}"
        if not is_taken(port):
            yield Finding(f"port of {name}", True, f"{address} is free")
        elif answers(f"http://{address}{HEALTH[name]}"):
            yield Finding(f"port of {name}", True, f"{name} answers on {address}")
        else:
            start = start_command(name)
            option = f"{name.upper()}_PORT=" if start == "make up" else "--port "
            advice = f"choose another port: `{start} {option}{port + 100}`"
            yield Finding(f"port of {name}", None, f"another program uses {address}", advice)


def is_taken(port: int) -> bool:
    """Tell whether something listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(TIMEOUT)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    """Tell whether a URL answers with success."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT):
            return True
    except (urllib.error.URLError, OSError, ValueError):
        return False


def tracking_server(params: Params) -> Iterator[Finding]:
    """Check that the MLflow server answers, if tracking uses one."""
    uri = tracking_uri(params.tracking.uri)
    if not uri.startswith("http"):
        yield Finding("tracking", True, "a local file" if params.tracking.enabled else "off")
        return
    is_up = answers(f"{uri.rstrip('/')}/health")
    message = f"{shown(uri)} {'answers' if is_up else 'does not answer'}"
    yield Finding("tracking", is_up, message, advice_for("MLflow", "MLFLOW_TRACKING_URI"))


def advice_for(server: str, name: str) -> str:
    """Return how to set the environment variable of a server that does not answer."""
    if SOURCED.is_file():
        return f"`source {SOURCED}` sets {name} to the server of `make up`"
    return f"`{start_command(server)}` starts one; or set {name} to another server, or unset it"


def prefect_server(_: Params) -> Iterator[Finding]:
    """Check the server that `prefect` commands in this folder use, and that a worker is online."""
    api = f"http://127.0.0.1:{local_port('prefect', PORTS['Prefect'])}/api"
    api = os.environ.get("PREFECT_API_URL", api).rstrip("/")
    if not answers(f"{api}/health"):
        advice = f"only for `prefect deployment run`: {advice_for('Prefect', 'PREFECT_API_URL')}"
        yield Finding("prefect server", None, f"{api} does not answer", advice)
        return
    is_configured = "PREFECT_API_URL" in os.environ or f":{PORTS['Prefect']}/" in api
    advice = f"`prefect` uses port {PORTS['Prefect']}: {advice_for('Prefect', 'PREFECT_API_URL')}"
    yield Finding("prefect server", True if is_configured else None, f"{api} answers", advice)
    pool = "machines" if MACHINE.is_file() else "dopsd"
    online = [worker["name"] for worker in workers(api, pool) if worker["status"] == "ONLINE"]
    start = start_command("Prefect")
    worker = start if start == "make up" else f"prefect worker start --pool {pool}"
    count = f"{len(online)} online in pool {pool}"
    if has_lost_worker():
        online, count = [], "the one that was started here has ended"
    advice = f"runs wait for a worker: `{worker}` starts one"
    yield Finding("prefect worker", True if online else None, count, advice)


def has_lost_worker() -> bool:
    """Return whether the worker that was started here has ended; its server learns that later."""
    pid = started_here().get("worker", {}).get("pid")
    try:
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def workers(api: str, pool: str) -> list[dict[str, str]]:
    """Return the workers of a work pool; none if it does not exist."""
    headers = {"Content-Type": "application/json"}
    if secret := os.environ.get("PREFECT_API_AUTH_STRING"):
        headers["Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
    request = urllib.request.Request(f"{api}/work_pools/{pool}/workers/filter", b"{}", headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            known: list[dict[str, str]] = json.load(response)
            return known
    except (urllib.error.URLError, OSError, ValueError):
        return []


def remote(_: Params) -> Iterator[Finding]:
    """Check that DVC has a remote, to share data and results."""
    result = ask_dvc("remote", "list")
    names = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    message = ", ".join(names) or (
        "none" if result.returncode == 0 else "this folder is no DVC project"
    )
    advice = "to share data and results: `dvc remote add -d NAME URL`"
    yield Finding("dvc remote", True if names else None, message, advice)


def hub(_: Params) -> Iterator[Finding]:
    """Check that the Hugging Face hub answers."""
    is_up, advice = answers(HUB), "name local files in section data of params.yaml"
    message = f"{HUB} {'answers' if is_up else 'does not answer'}"
    yield Finding("hub", True if is_up else None, message, advice)
