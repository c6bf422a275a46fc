"""benchmarks/tournament on the toy base: a stop, a kill, the rest, and one test at the end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from waiting import until

PLAN = {
    "tasks": ["sudoku"],
    "entries": {"own": {"method": "infill", "knows": "gold answer"}, "d_opsd": {"knows": "reward"}},
    "own": "own",
    "tokens": 400,
    "seconds": 0.5,
    "most_updates": 12,
    "seeds": [0],
    "more_seeds": [1],
    "best": 1,
    "tuning": {"rates": [0.003]},
    "checkpoints": {"every": 1, "dense": 4, "sparse": 4},
    "switches": {"all_shown": {"entry": "own", "settings": {"reveal_ratio": 1.0}}},
    "switch_tasks": ["sudoku"],
}


@pytest.mark.nightly
def test_a_stopped_tournament_continues_and_tests_once_at_the_end(project):
    Path("plan.yaml").write_text(yaml.safe_dump(PLAN))
    log = Path("work/tournament/sudoku-infill-tournament_own_final-0.log")
    stopped = begun(lambda: log.is_file() and "updates" in log.read_text())
    stopped.send_signal(signal.SIGINT)
    stopped.communicate()
    assert stopped.returncode == 130 and not workers()

    killed = begun(lambda: bool(workers()))
    killed.kill()
    killed.communicate()
    until(lambda: not workers())  # they end with their parent

    refused = start("test")
    assert "the test comes once, at the end" in refused.communicate()[1]
    assert refused.returncode == 2
    made = start()
    printed, _ = made.communicate()
    assert made.returncode == 0
    found = json.loads(Path("reports/tournament/results.json").read_text())
    assert {(r["entry"], r["seed"]) for r in found["runs"]} == {
        ("own", 0), ("own", 1), ("d_opsd", 0), ("d_opsd", 1)
    }  # fmt: skip
    run = found["runs"][0]
    assert [row["update"] for row in run["curve"]][:5] == [0, 1, 2, 3, 4]
    assert all(row["tokens"] <= 400 for r in found["runs"] for row in [r["chosen"]["tokens"]])
    first = found["standings"][0]
    assert first["test"] is not None and f"{100 * first['test']:.1f}" in printed
    assert [row["switch"] for row in found["switches"]] == ["all_shown"]

    tested = Path(run["folder"], "tournament_test.json")
    written = tested.stat().st_mtime_ns
    again = start("--jobs", "2")
    again.communicate()
    assert again.returncode == 0  # all is made: nothing runs again
    assert tested.stat().st_mtime_ns == written


def start(*words: str) -> subprocess.Popen[str]:
    """Start the tournament."""
    command = [sys.executable, "-m", "benchmarks.tournament", "--plan", "plan.yaml", *words]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, **pipes)


def begun(is_there: Callable[[], bool]) -> subprocess.Popen[str]:
    """Start the tournament, and wait until something is there."""
    process = start()
    until(lambda: is_there() or process.poll() is not None)
    assert process.poll() is None
    return process


def workers() -> list[str]:
    """Processes of runs in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "cwd") == str(Path.cwd()):
                found.append((path / "cmdline").read_text())
        except OSError:
            continue  # it ended
    return [words for words in found if "tournament.make" in words]
