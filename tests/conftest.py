"""Fixtures: a policy of random tokens, project folders to run stages in, empty databases."""

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import FakePolicy
from filelock import FileLock
from hub_server import TOKEN, Hub, hub_server
from hypothesis import HealthCheck, settings
from toy_project import ROOT as ROOT
from toy_project import TOY as TOY
from toy_project import small_params as small_params
from toy_project import small_yaml

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of commands: threads of several wait for each other
os.environ["PYTHONPATH"] = str(ROOT)  # of commands elsewhere: an installed dopsd lacks flows/
os.environ.setdefault("MKL_CBWR", "AUTO")  # the same bits wherever in memory a matrix begins
os.environ.setdefault("DVC_NO_ANALYTICS", "1")  # of folders without .dvc/config, as make does
torch.set_num_threads(1)
# other work on the machine makes no property false
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a suite that a shell started with `&`, and its commands, would ignore it


pytest_plugins = ["card"]  # fixtures of tests/cuda
# of Debian, by a word in the reason of a skipped test
PACKAGES = {"bubblewrap": "bubblewrap", "PostgreSQL": "postgresql", "C compiler": "gcc"}
PACKAGES |= {"Chromium": "chromium chromium-driver", "g++": "g++"}
STAGES = ("evaluate_base", "train", "evaluate", "select", "test", "report")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say once what this machine lacks, and how to get it."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for word, package in PACKAGES.items():
        if count := sum(word in reason for reason in reasons):
            line = f"{count} tests need {word}: apt-get install {package}"
            terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker of xdist begin with a share of the longest tests, which it gets first."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.path.parent.name in ("e2e", "integration")]
    short = [item for item in items if item.path.parent.name not in ("e2e", "integration")]
    share = -(-len(short) // workers)
    parts = [long[k::workers] + short[k * share : (k + 1) * share] for k in range(workers)]
    items[:] = [item for part in parts for item in part]


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of the searches for garbage."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Take back signal handlers and the environment, which commands leave where they end."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    environment = dict(os.environ)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(autouse=True)
def nothing_of_a_test_reaches_the_next() -> Iterator[None]:
    with as_before():
        yield


@pytest.fixture
def fake_policy() -> FakePolicy:
    return FakePolicy()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """The folder that `build` fills, once for all workers of xdist."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"once-{name}"
    done = folder / "built"
    with FileLock(f"{folder}.lock"):
        if not done.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy project: settings, data and base."""
    folder = tmp_path_factory.mktemp("prepared") / "project"
    shutil.copytree(TOY, folder)
    (folder / "params.yaml").write_text(small_yaml())
    return folder


@pytest.fixture(scope="session")
def two_updates(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates of each algorithm, a collapse flagged; of infill by both ways to learn."""
    from dopsd.algorithms.registry import ALGORITHMS
    from dopsd.cli.main import main
    from dopsd.training.collapse import CollapseDetector

    def update(folder: Path) -> None:
        with in_copy(prepared, folder), pytest.MonkeyPatch.context() as patch:
            patch.setattr(CollapseDetector, "is_collapsed", True)
            short = {"train__updates": 2, "train__collapse_window": 1}
            short["method__sft__held_out_every"] = 1
            write_params(**short, method__infill__least_shift=1.0)  # learns from rewards
            assert main(["train", "--method", "infill", "--seed", "1"]) == 0
            write_params(**short)
            for name in ALGORITHMS.names:
                assert main(["train", "--method", name]) == 0, name

    return built_once(tmp_path_factory, "updates", update) / "project"


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must end as a mistake; what it says of it."""
    from dopsd.cli.main import main

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main([*words]) == 2
        return capsys.readouterr().err

    return run


@contextlib.contextmanager
def in_copy(prepared: Path, folder: Path) -> Iterator[None]:
    """Work in a copy of the toy project, which is folder/project."""
    shutil.copytree(prepared, folder / "project")
    with as_before(), contextlib.chdir(folder / "project"):
        yield


@pytest.fixture
def project(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the prepared folder, as the working directory."""
    return work_in_copy(prepared, tmp_path, monkeypatch)


def work_in_copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "project", dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "project"


def after_stages(prepared: Path, factory: pytest.TempPathFactory, name: str, *stages: str) -> Path:
    from dopsd.cli.main import main

    def run(folder: Path) -> None:
        with in_copy(prepared, folder):
            for stage in stages:
                assert main([stage]) == 0, stage

    return built_once(factory, name, run) / "project"


@pytest.fixture(scope="session")
def finished_once(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return after_stages(prepared, tmp_path_factory, "finished", *STAGES)


@pytest.fixture
def finished(finished_once: Path, project: Path) -> Path:
    """The project after all stages."""
    shutil.copytree(finished_once, project, dirs_exist_ok=True)
    return project


@pytest.fixture(scope="session")
def trained_once(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return after_stages(prepared, tmp_path_factory, "trained", "train")


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout after `dvc repro` of the small settings; its cache spares others the stages."""
    from workspace import Workspace, overrides

    def make(folder: Path) -> None:
        made = Workspace(folder / "project", is_warm=True)
        words = [f"--set={key}={json.dumps(value)}" for key, value in overrides().items()]
        made.run(sys.executable, "-m", "dopsd", "params", "--profile", "embedded", *words)
        made.repro()

    return built_once(tmp_path_factory, "reproduced", make) / "project"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree; its sources are in `source` beside its folder."""
    from workspace import build, copy_sources

    def make(folder: Path) -> None:
        copy_sources(folder / "source")
        build(folder / "source")

    (found,) = (built_once(tmp_path_factory, "wheel", make) / "dist").glob("*.whl")
    return found


@pytest.fixture
def trained(trained_once: Path, project: Path) -> Path:
    """The project after training alone."""
    shutil.copytree(trained_once, project, dirs_exist_ok=True)
    return project


def write_params(**changes: object) -> None:
    Path("params.yaml").write_text(small_yaml(**changes))


def stop_in(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """SIGINT in an update, which is dropped."""
    from dopsd.training.trainer import Trainer

    step, left = Trainer.accumulate, [signal.SIGINT]

    def interrupted(self: Any) -> object:
        if self.update + 1 == update and left:
            os.kill(os.getpid(), left.pop())
        return step(self)

    monkeypatch.setattr(Trainer, "accumulate", interrupted)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow makes its tables in seconds, with a write to the disk for each change."""
    from dopsd.tracking.client import connect

    def make(folder: Path) -> None:
        connect(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()

    return built_once(tmp_path_factory, "mlflow", make) / "mlflow.db"


@pytest.fixture(scope="session")
def prefect_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefect makes its tables in 15 seconds."""

    def make(folder: Path) -> None:
        database = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
        here = {"PREFECT_HOME": str(folder), "PREFECT_SERVER_DATABASE_CONNECTION_URL": database}
        words = (sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y")
        subprocess.run(words, env=os.environ | here, check=True, capture_output=True)

    return built_once(tmp_path_factory, "prefect", make) / "prefect.db"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, for the client in this process: it has read the environment already."""
    from huggingface_hub import constants

    with hub_server() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + template)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
