"""The flows' glue: what a run asks for, commands that end with their flow, devices, what the UI shows."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import get_args

import pytest
import yaml
from conftest import ROOT, write_params
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object

from dopsd import profiles
from dopsd.errors import DopsdError
from flows import artifacts, running, server, settings, stages
from flows.settings import Asked, Cell

LOG = logging.getLogger("test")
WORKER = """
import signal, sys, time
def save(*_):
    open('saved', 'w').close()
    sys.exit(130)
signal.signal(signal.SIGINT, save)
open('ready', 'w').close()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def no_server_is_waited_for(monkeypatch):
    monkeypatch.setattr(running.server, "wait", lambda log: None)


def until(holds) -> bool:
    """Whether it comes true within ten seconds."""
    ends = time.monotonic() + 10
    while not holds() and time.monotonic() < ends:
        time.sleep(0.05)
    return holds()


def test_a_guarded_command_saves_and_ends_when_its_starter_is_killed(tmp_path):
    command = [sys.executable, str(running.GUARD), "sh", "-c", f'{sys.executable} -c "{WORKER}"; true']
    code = f"import subprocess, time\nsubprocess.Popen({command!r}, stdin=subprocess.PIPE)\ntime.sleep(60)"
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    assert until((tmp_path / "ready").exists)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    assert until((tmp_path / "saved").exists)


def test_a_command_that_ignores_the_interrupt_is_killed_after_its_grace(tmp_path, monkeypatch):
    sys.path.insert(0, str(ROOT))
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); open('ready', 'w').close(); time.sleep(60)"
    patched = f"from flows import guard; guard.GRACE = 0.5; raise SystemExit(guard.main({[sys.executable, '-c', code]!r}))"
    guard = subprocess.Popen(
        [sys.executable, "-c", patched], stdin=subprocess.PIPE, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert until((tmp_path / "ready").exists)
    guard.stdin.close()
    assert guard.wait(10) == 130


def test_a_failure_is_told_in_the_words_of_the_command_that_failed():
    said = "dopsd: params.yaml: train.updates: expected more\\nERROR: failed to run: python -m dopsd train, exited with 2"
    with pytest.raises(
        running.CommandFailed, match=r"^train: params.yaml: train.updates: expected more \(exit status 2\)$"
    ) as f:
        running.run("train", ("sh", "-c", f"printf '{said}\\n'; exit 255"), LOG)
    assert f.value.is_mistake
    with pytest.raises(running.CommandFailed) as f:
        running.run("train", ("sh", "-c", "kill -9 $$"), LOG)
    assert not f.value.is_mistake


def test_lines_come_in_order_and_watchers_are_called():
    looks = []
    script = "for i in 1 2 3; do echo $i; done; sleep 1.2; echo end"
    watch = running.Watch()
    watch.look, watch.hear = lambda: looks.append("look"), looks.append
    assert running.run("count", ("sh", "-c", script), LOG, watch=watch) == ["1", "2", "3", "end"]
    assert [seen for seen in looks if seen != "look"] == ["1", "2", "3", "end"] and "look" in looks[: looks.index("end")]


def test_what_is_asked_becomes_settings_and_named_parameters_go_first():
    asked = Asked(task="gsm8k", seeds=[1], max_updates=2, overrides={"train.updates": 9, "tracking.uri": None})
    assert asked.changes == ["train.updates=2", "tracking.uri=null", "matrix.seeds=[1]", 'matrix.tasks=["gsm8k"]']
    assert {*get_args(settings.Profile)} == {*profiles.names(), settings.AS_IT_STANDS}


def test_a_wrong_key_is_refused_before_params_yaml_is_touched(project):
    write_params()
    before = Path("params.yaml").read_bytes()
    with pytest.raises(DopsdError, match=r"train\.learning_rat: unknown key; did you mean learning_rate"):
        settings.write(Asked(overrides={"train.learning_rat": 1}))
    assert Path("params.yaml").read_bytes() == before
    assert settings.write(Asked(settings.AS_IT_STANDS, max_updates=6)) == ["train.updates: 4 -> 6"]


def test_two_evaluations_never_share_a_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    devices, used, at_once = stages.Devices(stages.gpus()), [], []

    def take() -> None:
        with devices.one() as env:
            used.append(env["CUDA_VISIBLE_DEVICES"])
            at_once.append(len(used))
            time.sleep(0.05)
            used.remove(env["CUDA_VISIBLE_DEVICES"])

    threads = [threading.Thread(target=take) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert max(at_once) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with stages.Devices(stages.gpus()).one() as env:
        assert "CUDA_VISIBLE_DEVICES" not in env and env["WORLD_SIZE"] == "1"


def test_checkpoints_of_a_device_share_a_process_and_a_retry_asks_for_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked, code = [], "import sys; print('evaluate: done with checkpoint 25', flush=True); sys.exit(len(sys.argv) > 2)"

    def stage(_name, words, *rest):
        asked.append(words[words.index("--update") + 1 :])
        return running.run("evaluate", (sys.executable, "-c", code, *asked[-1]), *rest)

    monkeypatch.setattr(stages, "run", stage)
    shift = stages.Shift(Cell("sudoku", "d_opsd", 0), [25, 50], stages.Devices([]), LOG)
    shift.wait(25)
    with pytest.raises(running.CommandFailed):
        shift.wait(50)
    code = "print('evaluate: done with checkpoint 50')"
    shift.wait(50)
    shift.process.join()
    assert asked == [("25", "50"), ("50",)]


def test_a_server_that_is_away_is_noticed_at_once():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}):
            started = time.monotonic()
            assert not server.is_there()
            held.listen()
            assert server.is_there() and time.monotonic() - started < 1


def deployments() -> list[dict]:
    return yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.mark.parametrize("deployment", deployments(), ids=lambda d: d["name"])
def test_every_deployment_has_a_flow_whose_parameters_are_explained(deployment, monkeypatch):
    monkeypatch.chdir(ROOT)
    flow = import_object(deployment["entrypoint"])
    assert flow.name == {"train": "dopsd", "compare": "dopsd-compare", "rehearse": "dopsd-rehearse"}[deployment["name"]]
    for name, field in parameter_schema(flow).properties.items():
        assert field.get("description"), name
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
    assert all(schedule["active"] is False for schedule in deployment.get("schedules", []))


def test_progress_is_that_of_this_run_and_shown_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = []
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda p, **k: made.append((p, k["description"])) or "id")
    monkeypatch.setattr(artifacts, "update_progress_artifact", lambda i, p, **k: made.append((p, k["description"])))
    monkeypatch.setattr(artifacts.server, "is_there", lambda: True)
    state = Path("work/train.json")
    state.parent.mkdir()
    state.write_text(json.dumps({"done": 9, "total": 10, "rate": 1.0}))
    os.utime(state, (1, 1))  # of an earlier run
    bar = artifacts.ProgressBar("train", "sudoku")
    bar.finish()
    assert made == []
    for done in (2, 2, 6):
        state.write_text(json.dumps({"done": done, "total": 8, "rate": 0.1}))
        bar.finish()
    assert made == [(25.0, "train: 2 of 8, 0.10/s, 1.0 min left"), (75.0, "train: 6 of 8, 0.10/s, 0.3 min left")]


def test_the_result_tells_numbers_and_where_they_come_from(tmp_path, monkeypatch):
    from test_compare import finished

    monkeypatch.chdir(tmp_path)
    finished("d_opsd", 0, {"a": 1.0, "b": 0.5})
    cell = Cell("sudoku", "d_opsd", 0)
    tested = json.loads((cell.folder / "test/paired.json").read_text())
    tested["selected"]["split"] = "validation"
    (cell.folder / "test/paired.json").write_text(json.dumps(tested))
    costs = {"updates": 2, "rollouts": 4, "trajectories": 3, "sampled_tokens": 160}
    (cell.folder / "train.json").write_text(json.dumps(costs))
    log = "".join(f"{u},{0.5 if u % 2 else 0.25},{0.75 if u % 2 else ''}\n" for u in range(1, 21))
    (cell.folder / "train.csv").write_text(f"update,loss,first_attempt_score\n{log}")
    (cell.folder / "curve.csv").write_text("update,accuracy,low,high,protocol,n\n0,0.25,0.2,0.3,greedy,2\n")
    text = artifacts.result(cell, {"run": "http://127.0.0.1:5000/#/1"})
    assert "| greedy | 25.0 | 75.0 | +50.0 [+40.0, +60.0] | 2 |" in text
    assert "| 0 | 25.0 | 20.0 to 30.0 |" in text and "| 20 | 0.3750 | 0.7500 |" in text
    assert "2 updates, 4 rollouts (3 kept), 160 tokens" in text and "[run](http://127.0.0.1:5000/#/1)" in text
