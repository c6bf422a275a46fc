"""The flows' glue: commands that end with their flow, a server that is away, what the UI shows."""

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

import pytest
from conftest import ROOT
from prefect.settings import PREFECT_API_URL, temporary_settings
from waiting import until

from dopsd.core.paths import RunKey
from dopsd.pipeline.dvc.writer_lock import is_running
from flows import artifacts, running, server, stages

LOG = logging.getLogger("test")
WITH_ROOT = os.environ | {"PYTHONPATH": str(ROOT)}
SAVING = """
import signal, sys, time
from dopsd.core.processes import end_with_input
end_with_input(signal.SIGINT)
def save(*_):
    for _ in range(20):
        print('saving', flush=True)
        time.sleep(0.05)
    open('saved', 'w').close()
    sys.exit(130)
signal.signal(signal.SIGINT, save)
open('ready', 'w').close()
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def no_server_is_waited_for(monkeypatch):
    monkeypatch.setattr(running.server, "wait", lambda log: None)


def test_a_command_of_a_killed_flow_saves_and_the_next_run_waits_for_it(tmp_path, monkeypatch):
    """By a file: a pipe would be closed then, and the command would die of its own last words."""
    monkeypatch.chdir(tmp_path)
    code = (
        "import logging, sys; from flows import running;"
        f" running.run('train', (sys.executable, '-c', {SAVING!r}), logging.getLogger())"
    )
    flow = subprocess.Popen([sys.executable, "-c", code], env=WITH_ROOT)
    until(Path("ready").exists)
    flow.kill()
    flow.wait()
    running.begin(LOG)
    assert Path("saved").exists()
    (log,) = Path("work/logs").glob("*-train.log")
    assert log.read_text().count("saving") == 20


def test_a_command_that_ignores_the_interrupt_is_killed_with_what_it_started(tmp_path):
    code = (
        "import signal, subprocess, sys, time; from dopsd.core.processes import end_with_input;"
        " end_with_input(signal.SIGINT, 0.5); signal.signal(2, lambda *_: None);"
        " child = subprocess.Popen(['sleep', '600'], start_new_session=True);"
        " assert not sys.stdin.read();"  # /dev/null
        " open('ready', 'w').write(str(child.pid)); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        env=WITH_ROOT,
    )
    until(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").read_text())
    process.stdin.close()
    assert process.wait(120) == -signal.SIGKILL
    child = int((tmp_path / "ready").read_text())
    until(lambda: not is_running(child, "sleep"))


def test_a_failure_is_reported_in_the_words_of_the_command_that_failed():
    said = "dopsd: params.yaml: few\\nERROR: failed to run: python -m dopsd train, exited with 2"
    line = r"^train: params.yaml: few \(exit code 2\)$"
    with pytest.raises(running.CommandFailed, match=line) as f:
        running.run("train", ("sh", "-c", f"printf '{said}\\n'; exit 255"), LOG)
    assert f.value.is_mistake
    with pytest.raises(running.CommandFailed) as f:
        running.run("train", ("sh", "-c", "kill -9 $$"), LOG)
    assert not f.value.is_mistake


def test_lines_come_in_order_and_watchers_are_called():
    looks = []
    script = "for i in 1 2 3; do echo $i; done; sleep 1.2; echo end"
    listener = running.OutputListener()
    listener.on_tick, listener.on_line = lambda: looks.append("look"), looks.append
    said = running.run("count", ("sh", "-c", script), LOG, listener=listener)
    assert said == [seen for seen in looks if seen != "look"] == ["1", "2", "3", "end"]
    assert "look" in looks[: looks.index("end")]


@pytest.mark.full
def test_a_stop_ends_commands_of_all_tasks_at_once(tmp_path, here, monkeypatch):
    monkeypatch.setattr(running, "PATIENCE", 1.0)
    code = "import pathlib, signal, sys, time; signal.signal(2, signal.SIG_IGN); "
    code += "pathlib.Path(sys.argv[1]).touch()"
    code += "\nwhile not pathlib.Path('go_on').exists(): time.sleep(0.02)"
    ends = []

    def command(name: str) -> None:
        with pytest.raises(running.CommandFailed) as failed:
            running.run("train", (sys.executable, "-c", code, name), LOG)
        ends.append((name, failed.value.status))

    threads = [threading.Thread(target=command, args=(name,)) for name in ("a", "b", "c")]
    [thread.start() for thread in threads]
    until(lambda: all((tmp_path / name).exists() for name in ("a", "b", "c")))
    running.stop_all()
    [thread.join(300) for thread in threads]
    assert sorted(ends) == [(name, 130) for name in "abc"]  # though what they ran still saves
    (tmp_path / "go_on").touch()
    running.begin(LOG)


def test_half_a_line_is_not_logged_before_its_end_comes(tmp_path, caplog):
    with (tmp_path / "log").open("w+") as written, (tmp_path / "log").open() as reading:
        said: list[str] = []
        whole = ["train: saved"]
        for text, expected in (("train: sav", []), ("ed\nné", whole), ("xt", whole)):
            written.write(text)
            written.flush()
            running._log_new_lines(reading, said, LOG, running.OutputListener())
            assert said == expected
        running._log_new_lines(reading, said, LOG, running.OutputListener(), is_last=True)
        assert said == ["train: saved", "néxt"]


def test_a_server_that_is_away_is_noticed_at_once():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}):
            started = time.monotonic()
            assert not server.is_reachable()
            held.listen()
            assert server.is_reachable() and time.monotonic() - started < 60


def test_progress_is_that_of_this_run_and_shown_when_it_changes(here, monkeypatch):
    made = []

    def make(share: float, description: str, **_: object) -> str:
        made.append((share, description))
        return "id"

    monkeypatch.setattr(artifacts, "create_progress_artifact", make)
    monkeypatch.setattr(artifacts, "update_progress_artifact", lambda _, *p, **k: make(*p, **k))
    monkeypatch.setattr(artifacts.server, "is_reachable", lambda: True)
    monkeypatch.setattr(artifacts, "flag_stall", lambda *_: None)
    state = Path("work/train.json")
    state.parent.mkdir()
    state.write_text(json.dumps({"done": 9, "total": 10, "rate": 1.0, "steps": 9}))
    os.utime(state, (1, 1))  # of an earlier run
    assert artifacts.ProgressBar("evaluate_base", "my_sums").key == "evaluate-base-my-sums"
    bar = artifacts.ProgressBar("train", "sudoku")
    bar.finish()
    assert made == []
    for done in (2, 2, 6):
        state.write_text(json.dumps({"done": done, "total": 8, "rate": 0.1, "steps": 9}))
        bar.finish()
    assert made == [
        (25.0, "train: 2 of 8, 0.10/s, 1:00 left"),
        (75.0, "train: 6 of 8, 0.10/s, 0:20 left"),
    ]


def test_the_mark_of_a_stalled_command_ends_with_the_command(here, monkeypatch):
    flagged = []
    monkeypatch.setattr(artifacts, "flag_stall", lambda is_stalled, _: flagged.append(is_stalled))
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda *_, **__: "id")
    monkeypatch.setattr(artifacts.server, "is_reachable", lambda: True)
    monkeypatch.setattr(stages, "get_run_logger", lambda: LOG)

    def stall_and_fail(*words: object) -> None:
        state = {"done": 1, "total": 2, "rate": 1.0, "steps": 1, "stalled_after": -1, "usual": 1}
        Path("work").mkdir()
        Path("work/train.json").write_text(json.dumps(state))
        words[-1].finish()
        raise running.CommandFailed("train", 75, [])

    monkeypatch.setattr(stages, "run", stall_and_fail)
    with pytest.raises(running.CommandFailed):
        stages._repro("train@sudoku-d_opsd-0", "sudoku-d_opsd-0")
    assert flagged == [True, False]


def test_the_result_tells_numbers_and_where_they_come_from(tmp_path, monkeypatch):
    from cells import finished

    monkeypatch.chdir(tmp_path)
    finished("d_opsd", 0, {"a": 1.0, "b": 0.5})
    run_key = RunKey("sudoku", "d_opsd", 0)
    tested = json.loads((run_key.folder / "test/paired.json").read_text())
    tested["selected"]["split"] = "validation"
    (run_key.folder / "test/paired.json").write_text(json.dumps(tested))
    costs = {"updates": 2, "rollouts": 4, "trajectories": 3, "sampled_tokens": 160}
    (run_key.folder / "train.json").write_text(json.dumps(costs))
    log = "".join(f"{u},{0.5 if u % 2 else 0.25},{0.75 if u % 2 else ''}\n" for u in range(1, 21))
    (run_key.folder / "train.csv").write_text(f"update,loss,first_attempt_score\n{log}")
    curve = "update,accuracy,low,high,protocol,n\n0,0.25,0.2,0.3,greedy,2\n"
    (run_key.folder / "curve.csv").write_text(curve)
    text = artifacts.result(run_key, {"run": "http://127.0.0.1:5000/#/1"})
    assert "| greedy | 25.0 | 75.0 | +50.0 [+40.0, +60.0] | 2 |" in text
    assert "| 0 | 25.0 | 20.0 to 30.0 |" in text and "| 20 | 0.3750 | 0.7500 |" in text
    assert "2 updates, 4 rollouts (3 kept), 160 tokens" in text
    assert "[run](http://127.0.0.1:5000/#/1)" in text
    run_key.page.parent.mkdir(parents=True)
    run_key.page.touch()
    assert f"one HTML file: `{run_key.page}`" in artifacts.result(run_key, {})
    published = {"page": "http://127.0.0.1:5000", "experiment": "7", "runs": {str(run_key): "abc"}}
    links = stages.links(published | {"comparison": {"sudoku": "c"}}, run_key)
    text = artifacts.result(run_key, links)
    address = "http://127.0.0.1:5000/#/experiments/7/runs/abc/artifactPath/report/"
    mode = "?workflowType=machine_learning"
    assert f"[report]({address}{run_key.page.name}{mode})" in text and "HTML file" not in text
    assert links["run"].endswith(f"/runs/abc{mode}")
