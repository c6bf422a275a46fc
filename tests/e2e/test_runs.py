"""`dopsd run`, `attach` and `cancel` against the services, and `dopsd run --local`."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from ports import free_port
from terminals import BOUND, CTRL_C, Terminal
from waiting import until
from warm_python import warm_bin
from workspace import Workspace, results, take_cache

DOPSD = (sys.executable, "-m", "dopsd")
SERVICES = (sys.executable, "infra/local/services.py")
SHORT = ("--updates", "2", "--set", "train.checkpoint_every=1")
LONG = ("--updates", "5000", "--set", "train.checkpoint_every=1000")
KEY = "sudoku/d_opsd/0"

pytestmark = pytest.mark.full


class Project(Workspace):
    """A workspace with commands of `dopsd` on pipes and on terminals."""

    def dopsd(self, *words: str) -> subprocess.CompletedProcess[str]:
        here = {"cwd": self.folder, "env": self.env, "timeout": BOUND}
        return subprocess.run([*DOPSD, *words], capture_output=True, text=True, **here)

    def terminal(self, *words: str) -> Terminal:
        return Terminal([*DOPSD, *words], self.folder, self.env)

    def ask(self, port: int, route: str) -> list[dict] | int:
        url, kind = f"http://127.0.0.1:{port}/api/{route}", {"Content-Type": "application/json"}
        request = urllib.request.Request(url, b"{}", kind)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def updates_done(folder: Path) -> int:
    return json.loads((folder / "work/train.json").read_text())["done"]


def test_a_run_is_started_watched_left_and_cancelled_and_a_wrong_one_is_never_submitted(
    reproduced, prefect_database, empty_database, tmp_path
):
    by_dvc, project = results(reproduced), Project(tmp_path / "project")
    shutil.copytree(prefect_database.parent, project.folder / ".prefect")
    shutil.copyfile(empty_database, project.folder / "mlflow.db")
    ports = {name: free_port() for name in ("prefect", "mlflow")}
    try:
        words = [f"--{name}-port={port}" for name, port in ports.items()]
        told = project.run(*SERVICES, "up", *words)
        assert "`source work/services/env`: prefect deployment run dopsd/train" in told
        project.env = {k: v for k, v in project.env.items() if k != "PREFECT_API_URL"}

        refused = project.dopsd("run", "--set", "train.updats=5")
        assert refused.returncode == 2 and "did you mean updates?" in refused.stderr
        assert project.ask(ports["prefect"], "flow_runs/count") == 0

        started = project.dopsd("run", "--detach", *SHORT)
        assert started.returncode == 0, started.stderr
        name = started.stdout.split()[0]
        assert f"dopsd attach {name}" in started.stdout
        watched = project.dopsd("attach", name)
        assert watched.returncode == 0, watched.stdout + watched.stderr
        assert f"run: {name}: completed" in watched.stdout
        assert re.search(rf"train {KEY}: done after \d+:\d\d\n", watched.stdout)
        assert re.search(r"accuracy: update [12], selected: [\d.]+% \[", watched.stdout)
        assert re.search(rf"{KEY} +[\d.]+ \[", watched.stdout), "the end is that of summary"
        assert f"Prefect: http://127.0.0.1:{ports['prefect']}/runs/flow-run/" in watched.stdout
        assert results(project.folder) == by_dvc and project.repro() == set()
        names = ("train/checkpoints.json", "evaluate.json", "best", "test.json")
        wanted = {"data/sudoku/train.jsonl", "base/sudoku", *(f"runs/{KEY}/{n}" for n in names)}
        assert wanted <= by_dvc.keys()

        screen = project.terminal("run", *LONG)
        screen.until(r"\d+ of 5000, [\d.]+/s, [\d:]+ left")
        screen.press(CTRL_C)
        assert screen.end() == 130
        (left,) = re.findall(r"left (\S+), which goes on; `dopsd attach \1`", screen.text)
        before = updates_done(project.folder)
        until(lambda: updates_done(project.folder) > before, "another update")

        unknown = project.dopsd("attach", "nobody")
        assert unknown.returncode == 2 and f"there is {left}, {name}" in unknown.stderr
        watcher = project.terminal("attach")
        watcher.until(rf"▶|run {left}")
        stopped = project.dopsd("cancel")
        assert stopped.returncode == 0, stopped.stderr
        (update,) = re.findall(rf"cancelled {left}; saved at update (\d+) in", stopped.stdout)
        assert int(update) > before
        assert watcher.end() == 130 and f"{left} was cancelled; saved at update" in watcher.text
        assert "no run is in progress" in project.dopsd("cancel").stderr
        assert project.dopsd("attach", left).returncode == 130

        failing = project.dopsd("run", *SHORT, "--set", "launch.processes=0")
        assert failing.returncode == 2
        assert project.ask(ports["prefect"], "flow_runs/count") == 2
    finally:
        ended = project.run(*SERVICES, "down")
    assert ended.count("stopped ") == 3 and "killed" not in ended
    away = project.dopsd("attach")
    assert away.returncode == 75
    assert "run `make up` and `source work/services/env`" in away.stderr


def test_a_local_run_shows_the_stages_and_ctrl_c_saves(reproduced, tmp_path):
    project = Project(tmp_path / "project")
    take_cache(reproduced, project.folder)
    screen = project.terminal("run", "--local", *LONG)
    screen.until(r"[1-9]\d* of 5000, [\d.]+/s, [\d:]+ left")
    screen.press(CTRL_C)
    assert screen.end() == 130
    assert re.search(r"stopped by SIGINT; saved at update [1-9]\d* in work/train-", screen.text)
    assert f"■ train {KEY}" in screen.text

    project.env["PATH"] = f"{warm_bin()}{os.pathsep}{project.env['PATH']}"
    piped = project.dopsd("run", "--local", *SHORT, "--set", "train.learning_rate=0.002")
    assert piped.returncode == 0, piped.stdout + piped.stderr
    assert "prepare sudoku: up to date\n" in piped.stdout
    accuracy = r"accuracy: [\d.]+% \[[\d.]+, [\d.]+\] on 12 validation problems"
    assert re.search(accuracy, piped.stdout)
    assert re.search(rf"{KEY} +[\d.]+ \[", piped.stdout), "the end is that of summary"
    assert "run: local: completed" in piped.stdout and project.repro() == set()

    stages = project.folder / "dvc.yaml"
    stages.write_text(stages.read_text().replace("dopsd prepare", "dopsd preparee"))
    failed = project.dopsd("run", "--local", *SHORT, "--set", "train.learning_rate=0.002")
    assert failed.returncode == 2 and "prepare sudoku: failed after" in failed.stdout
    assert "dopsd: run: " in failed.stderr and "; output: work/logs/" in failed.stderr
