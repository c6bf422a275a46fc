"""`make up SERVER=http://HOST:4200`: run a worker of this workspace for a server elsewhere.

The worker has a work pool and a deployment of its own, dopsd-NAME and dopsd/train-NAME, so that
machines do not take each other's runs. `dopsd-compare` gives each machine one run at a time.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from urllib.parse import urlsplit

from processes import (
    MACHINE,
    ROOT,
    STATE,
    Service,
    State,
    Trouble,
    command,
    pool,
    read_state,
    start,
    write_env,
)
from runs import ask_prefect, pause, report_lost_runs

OWNER = f"{socket.gethostname()}:{ROOT}"  # of this workspace's work pool, in its description


def default_name() -> str:
    """Return this machine's and this folder's name, in the characters of a name for Prefect."""
    return re.sub(r"[^a-z0-9]+", "-", f"{socket.gethostname()}-{ROOT.name}".lower()).strip("-")


def check(server: str, mlflow: str, name: str, state: State) -> None:
    """Check what a machine needs before anything is changed.

    Raises:
        Trouble: if an address does not answer, this workspace runs servers, or DVC has no remote.
    """
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
        raise Trouble(f"NAME={name}: use lowercase letters, digits and single dashes")
    if "prefect" in state:
        raise Trouble("this folder runs servers of its own; run `make down` first")
    if "worker" in state:
        own, worker = pool().removeprefix("dopsd-"), state["worker"]
        now = (own, worker.get("prefect"), worker.get("mlflow"))
        if now != (name, server, mlflow):
            raise Trouble(
                f"this folder's worker runs as {now[0]} for SERVER={now[1]} MLFLOW={now[2]}; run"
                " `make down` first"
            )
    for key, url, health in (("SERVER", server, "/api/health"), ("MLFLOW", mlflow, "/health")):
        try:
            with urllib.request.urlopen(url + health, timeout=10):
                pass
        except (OSError, ValueError) as error:
            raise Trouble(
                f"{key}={url} does not answer ({error}); is `make up` running there, and the port"
                " open or forwarded (`ssh -N -L 4200:127.0.0.1:4200 -L 5000:127.0.0.1:5000 HOST`)?"
            ) from None
    from dopsd.pipeline.dvc_remote import remote_problem  # not at the top: see `join`

    if why := remote_problem(ROOT):
        raise Trouble(why)
    check_name(f"{server}/api/work_pools/dopsd-{name}", name)


def check_name(pool_url: str, name: str) -> None:
    """Check that no other machine works under a name.

    Raises:
        Trouble: if a worker of another host or folder is there.
    """
    try:
        owner = ask_prefect(pool_url)["description"]
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            return
        raise
    is_there = any(w["status"] == "ONLINE" for w in ask_prefect(f"{pool_url}/workers/filter", {}))
    if owner and owner != OWNER and is_there:
        raise Trouble(f"NAME={name} is that of {owner}, which is at work; choose another NAME")


def join(server: str, mlflow: str | None, name: str | None, env: dict[str, str]) -> None:
    """Deploy this workspace's training flow to a server elsewhere, and start its worker.

    Args:
        server: Address of Prefect's server.
        mlflow: Address of MLflow; None: port 5000 of the same host.
        name: Name of this machine; None: that of the host and the folder.
        env: Environment of the worker, without addresses.

    Raises:
        Trouble: if something is missing, or a `prefect` command fails.
    """
    # not at the top: containers run this folder's commands before dopsd is on their path
    from dopsd.core.fingerprint import checkout_digest

    started_at, state = time.monotonic(), read_state()
    server = server.rstrip("/").removesuffix("/api")
    host = urlsplit(server).hostname or ""
    mlflow, name = (mlflow or f"http://{host}:5000").rstrip("/"), name or default_name()
    check(server, mlflow, name, state)
    sys.stdout.write(f"joining {server} as {name}, about half a minute\n")
    sys.stdout.flush()
    env |= {"PREFECT_API_URL": f"{server}/api", "MLFLOW_TRACKING_URI": mlflow}
    STATE.mkdir(parents=True, exist_ok=True)
    MACHINE.write_text(f"{name}\n", encoding="utf-8")
    prefect("work-pool", "create", pool(), "--type", "process", "--overwrite", env=env)
    prefect("work-pool", "set-concurrency-limit", pool(), "1", env=env)
    ask_prefect(f"{env['PREFECT_API_URL']}/work_pools/{pool()}", {"description": OWNER}, "PATCH")
    deployed = (
        "-n",
        f"train-{name}",
        "-p",
        pool(),
        "--version",
        checkout_digest(ROOT),
        "--tag",
        "dopsd",
    )
    prefect("deploy", "flows/train.py:train", *deployed, env=env)
    pause(env["PREFECT_API_URL"], False)
    report_lost_runs(env["PREFECT_API_URL"], "worker" in state)
    write_env(env)
    words = ("prefect", "worker", "start", "--pool", pool(), "--type", "process", "--name", name)
    is_new = "worker" not in state
    start(Service("worker", command(*words)), env, state, prefect=server, mlflow=mlflow)
    joined = f"joined {server} in {time.monotonic() - started_at:.0f} s"
    sys.stdout.write(
        f"machine {name} {joined if is_new else f'had joined {server}'}\n"
        f"  takes runs of  {pool()}, one at a time\n"
        f"  log            {(STATE / 'worker.log').relative_to(ROOT)}\n"
        "which runs:    `dopsd attach` here; a comparison says why a machine gets none\n"
        "stop:          make down   (a run in progress saves; another machine continues it)\n"
    )


def prefect(*words: str, env: dict[str, str]) -> None:
    """Run a `prefect` command.

    Raises:
        Trouble: with its last line, if it fails.
    """
    process = subprocess.run(
        command("prefect", "--no-prompt", *words),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    if process.returncode:
        last_lines = (process.stdout + process.stderr).strip().splitlines()[-1:]
        raise Trouble(f"`prefect {' '.join(words)}` failed: {''.join(last_lines)}")
