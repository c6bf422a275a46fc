"""A training whose process is stopped is flagged on Prefect's server, until it goes on."""

import json
import os
import signal
import sys
from pathlib import Path
from threading import Thread

import pytest
from conftest import write_params
from deployed import prefect_server
from prefect import flow, get_run_logger, tags, task
from prefect.client.orchestration import get_client
from waiting import until

from dopsd.core.progress import FEWEST
from flows import artifacts
from flows.artifacts import ProgressBar
from flows.running import begin, run

pytestmark = pytest.mark.full  # starts a server, and trains
TRAIN = """
import os
from pathlib import Path
from dopsd.cli.main import main
from dopsd.core import progress
progress.FLOOR = 3.0
Path("pid").write_text(str(os.getpid()))
raise SystemExit(main(["train"]))
"""


def has_usual_times() -> bool:
    """Whether training has made enough updates to know what is usual."""
    state = Path("work/train.json")
    return state.exists() and json.loads(state.read_text())["done"] > FEWEST


def test_a_stopped_process_is_flagged_and_the_flag_ends_when_it_goes_on(
    project: Path, prefect_database: Path, monkeypatch: pytest.MonkeyPatch
):
    write_params(train__updates=300, train__checkpoint_every=300)
    monkeypatch.setattr(artifacts, "EVERY", 0.2)
    events: list[str] = []
    monkeypatch.setattr(artifacts, "emit_event", lambda name, **_: events.append(name))

    @task
    def train() -> None:
        bar = ProgressBar("train", "x")
        run("train", (sys.executable, "-c", TRAIN), get_run_logger(), None, bar)

    @flow
    def training() -> None:
        begin(get_run_logger())
        train()

    with prefect_server(prefect_database), get_client(sync_client=True) as client:

        def is_flagged() -> bool:
            return any("stalled" in found.tags for found in client.read_flow_runs())

        outcome: list[str] = []

        def train_again() -> None:
            """As after a process that was killed while the run had the tag."""
            with tags("stalled"):
                outcome.append(training(return_state=True).name)

        thread = Thread(target=train_again, daemon=True)
        thread.start()
        until(has_usual_times)
        until(lambda: not is_flagged())
        pid = int(Path("pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            until(is_flagged)
            descriptions = [str(found.description) for found in client.read_artifacts()]
            assert any("no update for" in text for text in descriptions)
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not is_flagged())
        thread.join(300)
        assert outcome == ["Completed"] and not is_flagged()
        assert events == [artifacts.PROGRESSED, artifacts.STALLED, artifacts.PROGRESSED]
