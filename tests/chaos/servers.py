"""Prefect's server, a worker and MLflow of one workspace, kept over several trials, and flow runs
in it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ports import free_port

from chaos import processes
from chaos.attempt import GONE, Ended, updates_done
from chaos.folders import copy, environment, state_of

OVER = {"COMPLETED": 0, "FAILED": 1, "CRASHED": 1, "CANCELLED": 130}
LONGEST = 600.0  # seconds for a flow run, with the delays of its retries
LOOK_EVERY = 1.0
STAYS = (".prefect", "mlartifacts", "mlflow.db", ".git")
PARTS = (
    "flow",
    "guard",
    "dvc",
    "stage",
    "follow",
)  # of a run; what else is there belongs to the servers


class Platform:
    """What `make up` starts, in a workspace that is made new for every trial around it."""

    def __init__(self, place: Path, name: str) -> None:
        self.template, self.folder = place / "template", place / "trials" / name
        self.state = state_of(self.folder)
        processes.end_all(self.state)
        copy(self.template, self.folder)
        self.ports = free_port(), free_port()
        self.api = f"http://127.0.0.1:{self.ports[0]}/api"

    def services(self, *words: str) -> str:
        """infra/local's script; what it said."""
        script = (sys.executable, "infra/local/services.py", *words)
        found = subprocess.run(
            script,
            cwd=self.folder,
            env=environment(self.folder, self.state),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return (found.stdout + found.stderr).strip() if found.returncode else ""

    def up(self) -> str:
        """Start what is not there; what went wrong, or nothing."""
        return self.services(
            "up", "--prefect-port", str(self.ports[0]), "--mlflow-port", str(self.ports[1])
        )

    def down(self) -> None:
        self.services("down")
        processes.end_all(self.state)

    def reset(self, experiment: str) -> None:
        """The workspace as the template has it; servers and their databases stay."""
        for path in self.folder.iterdir():
            if path.name in (*STAYS, "work") or path.name.startswith("mlflow.db"):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in (self.folder / "work").iterdir():
            if path.name != "services":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self.template.iterdir():
            if path.name not in STAYS and not path.name.startswith("mlflow.db"):
                target = self.folder / path.name
                if path.is_dir():
                    shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True)
                else:
                    shutil.copy(path, target)
        file = self.folder / "params.yaml"
        file.write_text(file.read_text().replace("experiment: dopsd", f"experiment: {experiment}"))
        for path in (self.state / "phases").iterdir():
            path.unlink()

    def call(self, path: str, body: object | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.api}/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def service_sessions(self) -> dict[str, int]:
        """Process ids of the services, which lead sessions of their own; those that have ended are
        left out.
        """
        file = self.folder / "work" / "services" / "services.json"
        known = json.loads(file.read_text()) if file.is_file() else {}
        return {
            name: int(one["pid"])
            for name, one in known.items()
            if processes.is_alive(int(one["pid"]))
        }

    def run_processes(self) -> dict[int, str]:
        """What belongs to a run, by id."""
        return {
            pid: " ".join(w)[:150]
            for pid, w in processes.found(self.state).items()
            if processes.part(w) in PARTS
        }

    def of_service(self, name: str) -> list[int]:
        """A service and what it has started for itself."""
        leader = self.service_sessions().get(name, 0)
        return [
            pid
            for pid, words in processes.found(self.state).items()
            if processes.session(pid) == leader and processes.part(words) not in PARTS
        ]


class FlowRun:
    """A run of the deployment dopsd/train, with the interface of attempt.Run."""

    def __init__(self, platform: Platform, retried: str = "") -> None:
        self.platform, self.folder, self.state = platform, platform.folder, platform.state
        self.checked, self.is_done = 0.0, False
        self.notes: list[str] = []
        if retried:
            self.id = retried
            again = {"type": "SCHEDULED", "name": "AwaitingRetry"}
            again["state_details"] = {"scheduled_time": datetime.now(UTC).isoformat()}
            platform.call(f"flow_runs/{self.id}/set_state", {"state": again, "force": True})
        else:
            deployment = platform.call("deployments/name/dopsd/train")["id"]
            asked = {"parameters": {"profile": "params.yaml as it stands"}}
            self.id = platform.call(f"deployments/{deployment}/create_flow_run", asked)["id"]

    def cancel(self) -> None:
        self.platform.call(f"flow_runs/{self.id}/set_state", {"state": {"type": "CANCELLING"}})

    def read(self) -> dict[str, Any]:
        """Its state; of type UNKNOWN where no server answers."""
        with suppress(OSError, urllib.error.URLError, ValueError):
            return self.platform.call(f"flow_runs/{self.id}")["state"]
        return {"type": "UNKNOWN", "message": ""}

    def is_over(self) -> bool:
        if not self.is_done and time.monotonic() - self.checked > LOOK_EVERY:
            self.checked = time.monotonic()
            self.is_done = self.read()["type"] in OVER
        return self.is_done

    def group(self) -> list[int]:
        return [*processes.found(self.state)]

    def targets(self, name: str) -> list[int]:
        if name in ("worker", "prefect", "mlflow"):
            return self.platform.of_service(name)
        return self.group() if name == "group" else processes.of_part(self.state, name)

    def wait(self) -> Ended:
        """Until it has ended; a service that is gone is started again, as its user would."""
        until = time.monotonic() + LONGEST
        while not self.is_over() and time.monotonic() < until:
            if len(self.platform.service_sessions()) < 3:
                time.sleep(3.0)  # nobody notices at once
                told = self.platform.up()
                if told:
                    self.notes.append(f"make up: {told[-300:]}")
            time.sleep(LOOK_EVERY)
        state = self.read()
        before, until = updates_done(self.folder), time.monotonic() + GONE
        while (left := self.platform.run_processes()) and time.monotonic() < until:
            time.sleep(0.2)
        orphaned = updates_done(self.folder) - before
        processes.send([*left], 9)
        status = OVER.get(state["type"])
        return Ended(status, f"{self.logs()}\n{state['message'] or state['type']}", left, orphaned)

    def logs(self) -> str:
        asked = {
            "logs": {"flow_run_id": {"any_": [self.id]}},
            "sort": "TIMESTAMP_ASC",
            "limit": 200,
        }
        lines: list[str] = []
        with suppress(OSError, urllib.error.URLError, ValueError):
            for offset in range(0, 2000, 200):
                found = self.platform.call("logs/filter", asked | {"offset": offset})
                lines += [line["message"] for line in found]
                if len(found) < 200:
                    break
        return "\n".join(lines)
