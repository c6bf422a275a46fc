"""`make up`, `make down`: Prefect's server, a worker and MLflow on this machine, at 127.0.0.1.

Process ids, ports and logs are in work/services/. Prefect's database is in .prefect/, MLflow's in
mlflow.db.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from automations import make_automation
from join import join, leave
from pages import experiment_pages
from processes import (
    END,
    ENV,
    HOST,
    MACHINE,
    PIDS,
    POOL,
    ROOT,
    STATE,
    Service,
    State,
    Trouble,
    check_ports,
    command,
    end,
    here,
    is_answering,
    machine_name,
    prefect,
    read_state,
    start,
    wait_until_healthy,
    write_env,
)
from runs import FLOW, end_flows, pause, report_lost_runs, retry_stopped, stop_runs


def services(host: str, prefect: int, mlflow: int) -> list[Service]:
    """Return Prefect's server, MLflow and the worker, for this address and these ports."""
    # artifacts have a path, so that commands that read mlflow.db without a server find them too
    storage_options = (
        "--backend-store-uri",
        os.environ.get("MLFLOW_BACKEND_STORE_URI", "sqlite:///mlflow.db"),
        "--default-artifact-root",
        (ROOT / "mlartifacts").as_uri(),
    )
    server_options = (
        "--workers",
        "1",
        "--host",
        host,
        "--port",
        str(mlflow),
        "--no-serve-artifacts",
        *([] if host == HOST else [f"--allowed-hosts={host}:*"]),
    )
    return [
        Service(
            "prefect",
            command("prefect", "server", "start", "--host", host, "--port", str(prefect)),
            prefect,
            "/api/health",
            host,
        ),
        Service(
            "mlflow",
            command("mlflow", "server", *server_options, *storage_options),
            mlflow,
            "/health",
            host,
        ),
        Service(
            "worker", command("prefect", "worker", "start", "--pool", POOL, "--type", "process")
        ),
    ]


def environment(host: str, prefect: int, mlflow: int) -> dict[str, str]:
    """Return the environment of the services, for this address and these ports."""
    return os.environ | {
        "PREFECT_HOME": str(ROOT / ".prefect"),
        "PREFECT_API_URL": f"http://{host}:{prefect}/api",
        "PREFECT_SERVER_UI_API_URL": f"http://{host}:{prefect}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_CLI_PROMPT": "false",
        "MLFLOW_TRACKING_URI": f"http://{host}:{mlflow}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUTF8": "1",
    }


def deploy(env: dict[str, str]) -> None:
    """Create the work pool, and deploy prefect.yaml.

    Raises:
        Trouble: if a `prefect` command fails.
    """
    prefect("work-pool", "create", POOL, "--type", "process", "--overwrite", env=env)
    prefect("deploy", "--all", env=env)


def up(host: str, prefect: int | None, mlflow: int | None) -> None:
    """Start what does not run yet, and print the addresses.

    Args:
        host: Address at which the servers listen.
        prefect: Port of Prefect's server; None: the running one's, else 4200.
        mlflow: Port of MLflow; None: the running one's, else 5000.
    """
    started_at, state = time.monotonic(), read_state()
    prefect, mlflow = (
        port or int(state.get(name, {}).get("port", default_port))
        for port, name, default_port in ((prefect, "prefect", 4200), (mlflow, "mlflow", 5000))
    )
    if MACHINE.is_file() and "worker" in state:
        raise Trouble("this folder runs a worker for a server elsewhere; run `make down` first")
    MACHINE.unlink(missing_ok=True)
    env = environment(host, prefect, mlflow)
    server, tracking, worker = services(host, prefect, mlflow)
    check_ports([server, tracking], state)
    # a worker that lost its server no longer learns of cancellations; a flow asks by itself
    if "prefect" not in state and "worker" in state and not here(FLOW):
        end(int(state["worker"]["pid"]), state.pop("worker")["started"])
    sys.stdout.write("starting Prefect's server, MLflow and a worker, about half a minute\n")
    sys.stdout.flush()
    # relative, since Prefect makes an address of it for its database; the server begins in ROOT
    (ROOT / ".prefect").mkdir(exist_ok=True)
    start(server, env | {"PREFECT_HOME": ".prefect"}, state)
    start(tracking, env, state)
    wait_until_healthy(server, state)
    deploy(env)
    make_automation(f"{server.url}/api")
    pause(f"{server.url}/api", False)
    report_lost_runs(f"{server.url}/api", "worker" in state)
    start(worker, env, state)
    wait_until_healthy(tracking, state)
    pages = "".join(f"  {name:<12} {page}\n" for name, page in experiment_pages(tracking.url))
    write_env(env)
    sys.stdout.write(
        f"services started in {time.monotonic() - started_at:.0f} s\n"
        f"  Prefect      {server.url}/dashboard\n"
        f"  deployments  {server.url}/deployments\n"
        f"{pages}"
        f"  logs         {STATE.relative_to(ROOT)}/\n"
        f"start a run:   dopsd run   (in the UI, or after `source {STATE.relative_to(ROOT) / ENV}`:"
        " prefect deployment run dopsd/train)\n"
        "see results:   dopsd summary\n"
        "stop all:      make down\n"
    )
    if host != HOST:
        sys.stdout.write(
            f"note: nobody needs a password at {host}: whoever reaches ports {prefect} and {mlflow}"
            " can run programs here\n"
        )


def down() -> None:
    """Stop runs, then the worker while it can still report to the server, then the servers."""
    state = read_state()
    api, names = _api(state), [name for name in ("worker", "mlflow", "prefect") if name in state]
    if machine_name():
        leave(api, state)
    else:
        end_flows(api)
    for name in names:
        has_ended = end(int(state[name]["pid"]), state[name]["started"])
        kill_message = (
            f"killed {name} after waiting {END:.0f} s for its end; see {STATE / f'{name}.log'}\n"
        )
        sys.stdout.write(f"stopped {name}\n" if has_ended else kill_message)
    for path in (PIDS, STATE / ENV, MACHINE):
        path.unlink(missing_ok=True)
    if not state:
        sys.stdout.write("nothing was running\n")


def _api(state: State) -> str | None:
    """Return the address of the API to which this workspace's worker reports; None: no server."""
    if "prefect" in state:
        return f"http://{state['prefect'].get('host', HOST)}:{state['prefect']['port']}/api"
    joined = state.get("worker", {}).get("prefect")
    return f"{joined}/api" if joined and is_answering(f"{joined}/api") else None


def port_number(text: str) -> int:
    """Parse a port."""
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 1 to 65535")
    return int(text)


def main() -> int:
    """Run the action of the command line, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Start or stop Prefect, its worker and MLflow on this machine."
    )
    by_name = {
        "stop-runs": stop_runs,
        "retry-stopped": retry_stopped,
        "report-lost-runs": report_lost_runs,
        "resume": lambda api: pause(api, False),
        "make-automation": make_automation,
    }
    parser.add_argument("action", choices=("up", "down", *by_name))
    parser.add_argument("--prefect-port", type=port_number, help="default: 4200")
    parser.add_argument("--mlflow-port", type=port_number, help="default: 5000")
    parser.add_argument("--host", default=HOST, help=f"where servers listen; default: {HOST}")
    parser.add_argument("--server", help="run a worker for Prefect's server at this address")
    parser.add_argument("--mlflow", help="with --server: MLflow; default: its port 5000")
    parser.add_argument("--name", help="with --server: name of this machine")
    args = parser.parse_args()
    sys.path.append(str(ROOT))  # containers run this before dopsd is on their path
    from dopsd.core.environment import bypass_proxies, name_user

    bypass_proxies(args.host)
    name_user()
    try:
        if args.action == "up" and args.server:
            join(args.server, args.mlflow, args.name, environment(HOST, 4200, 5000))
        elif args.action == "up":
            up(args.host, args.prefect_port, args.mlflow_port)
        else:
            api = os.environ.get(
                "PREFECT_API_URL", f"http://{HOST}:{args.prefect_port or 4200}/api"
            )
            down() if args.action == "down" else by_name[args.action](api)
    except (Trouble, OSError) as error:
        sys.stderr.write(f"{args.action}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
