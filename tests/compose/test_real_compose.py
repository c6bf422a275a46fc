"""`make integration-compose`: a whole run in real containers, and a worker that ends."""

import fcntl
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from composed import COMPOSE
from conftest import ROOT
from engine import Engine, missing
from images import CACHE, build
from small_settings import SHORT_RUN
from stack import Stack
from waiting import DEADLINE, until
from workspace import Workspace, overrides

from dopsd.core.fingerprint import sha256
from dopsd.core.tables import read_table

pytestmark = [
    pytest.mark.compose,
    pytest.mark.skipif(bool(missing()), reason=f"needs containers: {missing()}"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files of a git checkout"),
]
ADAPTER = "runs/sudoku/d_opsd/0/best/adapter_model.safetensors"
UPDATES, HIT_AFTER = 100, 5
TRAINING = "work/train.json"
STOPPED = 143  # by SIGTERM; Docker's own kill after the grace period would be 137
REPORT = ROOT / "reports" / "compose"


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Rows of what was seen, for benchmarks/RESULTS.md."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    rows = ["| what | seen |", "|---|---|"]
    REPORT.mkdir(parents=True, exist_ok=True)
    yield rows
    (REPORT / "results.md").write_text(f"Commit `{commit}`.\n\n" + "\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, table: list[str]) -> Iterator[Engine]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.fail(f"{CACHE}: another test run uses these images; set DOPSD_IMAGES")
        with Engine(CACHE, tmp_path_factory.mktemp("online"), is_online=True) as online:
            for tag, (seconds, size) in build(online, REPORT).items():
                table.append(f"| image `{tag}` | {seconds:.0f} s, {size} |")
        with Engine(CACHE, tmp_path_factory.mktemp("alone"), is_online=False) as alone:
            yield alone


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("repository") / "origin")


@pytest.fixture(scope="module")
def stack(
    engine: Engine, origin: Workspace, tmp_path_factory: pytest.TempPathFactory, table: list[str]
) -> Iterator[Stack]:
    stack = Stack(engine, tmp_path_factory.mktemp("stack"), origin)
    try:
        table.append(f"| `up -d --wait`, new volumes | healthy in {stack.up():.0f} s |")
        yield stack
    finally:
        (REPORT / "containers.log").write_text(stack.compose("logs", "--timestamps", check=False))
        started = time.monotonic()
        stack.compose("down", "--volumes")
        table.append(f"| `down --volumes` | {time.monotonic() - started:.1f} s |")


def test_only_the_two_pages_are_published_and_only_here(stack: Stack):
    for address in ("http://127.0.0.1:4200/api/health", "http://127.0.0.1:5000/health"):
        stack.engine.inside("python3", COMPOSE / "healthy.py", address)
    ports = stack.engine.run("docker", "ps", "--format", "{{.Ports}}")
    published = re.findall(r"(\S+):(\d+)->", ports)
    assert sorted(published) == [("127.0.0.1", "4200"), ("127.0.0.1", "5000")]


def test_a_whole_run_completes(stack: Stack, table: list[str], tmp_path: Path):
    started = time.monotonic()
    asked = f"overrides={json.dumps(overrides())}"
    run = ("prefect", "deployment", "run", "dopsd/train", "--watch", "--param", asked)
    assert "http://127.0.0.1:4200/runs/flow-run/" in stack.worker(*run)
    table.append(f"| a whole run of the small settings | {time.monotonic() - started:.0f} s |")
    for name, amount in stack.memory().items():
        table.append(f"| memory of {name}, after that run | {amount} |")
    assert set(stack.sql("prefect", "SELECT state_type FROM task_run")) == {"COMPLETED"}
    assert stack.sql("mlflow", "SELECT status FROM runs") == ["FINISHED"]
    stored = stack.stored("mlflow")
    assert sum(name.endswith("adapter_model.safetensors") for name in stored) == 2
    stack.worker("dvc", "push", "--quiet")
    assert stack.stored("dvc")
    champion = "work/champion"
    download = ("mlflow", "artifacts", "download", "-u", "models:/dopsd-sudoku@champion")
    stack.worker(*download, "-d", champion)
    there = stack.workspace
    assert sha256(there / champion / "adapter_model.safetensors") == sha256(there / ADAPTER)


def test_the_image_alone_runs_the_demo(engine: Engine, table: list[str]):
    started = time.monotonic()
    changes = " ".join(f"--set={key}={value}" for key, value in SHORT_RUN.items())
    steps = f"dopsd init demo && cd demo && dopsd params {changes} && dopsd repro && dopsd summary"
    said = engine.run("docker", "run", "--rm", "dopsd:cpu", "sh", "-c", steps)
    assert "whole grids right:" in said
    table.append(f"| the small settings in one container | {time.monotonic() - started:.0f} s |")


def test_an_idle_worker_stops_within_seconds_and_comes_back_with_new_code(
    stack: Stack, origin: Workspace, table: list[str]
):
    started = time.monotonic()
    stack.compose("stop", "worker")
    table.append(f"| `stop worker`, idle | {time.monotonic() - started:.1f} s |")
    assert stack.state("worker")["State"]["ExitCode"] == STOPPED
    assert time.monotonic() - started < 60
    (origin.folder / "NEWS").write_text("new code\n")
    origin.commit()
    table.append(f"| `up -d --wait` after that | {stack.up():.0f} s |")
    head = origin.run("git", "rev-parse", "HEAD").strip()
    assert stack.worker("git", "rev-parse", "HEAD") == head


def submit(stack: Stack, **changes: object) -> str:
    """Start a run that trains for a while; its id."""
    stack.up()
    (stack.workspace / TRAINING).unlink(missing_ok=True)  # of an earlier run
    asked = f"overrides={json.dumps(overrides(train__updates=UPDATES, **changes))}"
    said = stack.worker("prefect", "deployment", "run", "dopsd/train", "--param", asked)
    return re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", said)[0]


def state_of(stack: Stack, run: str) -> str:
    return stack.sql("prefect", f"SELECT state_type FROM flow_run WHERE id = '{run}'")[0]


def in_training(stack: Stack, run: str) -> None:
    """Wait until updates advance."""
    path = stack.workspace / TRAINING

    def is_advancing() -> bool:
        assert state_of(stack, run) in ("SCHEDULED", "PENDING", "RUNNING"), logs(stack, run)
        return path.is_file() and json.loads(path.read_text())["done"] >= HIT_AFTER

    until(is_advancing, "training")


def checkpoints(stack: Stack) -> list[int]:
    """Updates of the checkpoints of the run that train.json names."""
    scratch = json.loads((stack.workspace / TRAINING).read_text())["scratch"]
    return sorted(int(path.name[5:]) for path in (stack.workspace / scratch).glob("step-??????"))


def logs(stack: Stack, run: str) -> str:
    return stack.worker("prefect", "flow-run", "logs", run)


def continue_after(stack: Stack, run: str, update: int) -> None:
    """Wait for the end of a run, which must begin with the checkpoint of that update."""

    def is_over() -> bool:
        state = state_of(stack, run)
        assert state not in ("FAILED", "CRASHED", "CANCELLED"), logs(stack, run)
        return state == "COMPLETED"

    until(is_over, "Completed", 1, 3 * DEADLINE)
    assert f"continuing after update {update} from" in logs(stack, run)
    rows = read_table(stack.workspace / "runs/sudoku/d_opsd/0/train.csv")
    assert [row["update"] for row in rows] == list(range(1, UPDATES + 1))


def test_a_worker_in_training_stops_after_a_save_and_its_run_goes_on_after_up(
    stack: Stack, table: list[str]
):
    run = submit(stack, train__checkpoint_every=10 * UPDATES)
    in_training(stack, run)
    table.append(f"| memory of worker, in training | {stack.memory()['worker']} |")
    started = time.monotonic()
    stack.compose("stop", "worker")
    table.append(f"| `stop worker`, in training | {time.monotonic() - started:.1f} s |")
    assert stack.state("worker")["State"]["ExitCode"] == STOPPED
    saved = checkpoints(stack)[-1]  # before it: those of an earlier run that this one continues
    assert HIT_AFTER <= saved < UPDATES
    stack.up()
    continue_after(stack, run, saved)
    table.append(f"| the run then | continued after update {saved} of {UPDATES}, Completed |")


def test_a_killed_worker_is_started_again_and_a_retry_continues(stack: Stack, table: list[str]):
    run = submit(stack, train__checkpoint_every=5, train__learning_rate=0.002)
    in_training(stack, run)
    kill = "import psutil; psutil.Process(1).children()[0].kill()"  # then the container's init ends
    stack.worker("python", "-c", kill, check=False)
    until(lambda: stack.state("worker")["RestartCount"] == 1, "a restart")
    until(lambda: state_of(stack, run) == "CRASHED", "the run Crashed", 1)
    saved = checkpoints(stack)[-1]
    stack.worker("prefect", "flow-run", "retry", run)
    continue_after(stack, run, saved)
    table.append(f"| worker killed in training | restarted, continued after update {saved} |")
