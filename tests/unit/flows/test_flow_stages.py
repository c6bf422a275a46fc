"""The flows: settings, the order of stages, checkpoints beside training, and retries."""

import logging
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml
from conftest import ROOT, write_params
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object

from dopsd.config import profiles
from dopsd.core.errors import Code, DopsdError
from dopsd.core.paths import RunKey
from dopsd.distributed import nodes
from dopsd.pipeline.run import request as run_request
from dopsd.pipeline.run.local import run_here
from dopsd.pipeline.run.request import RunRequest
from flows import checkpoint_evals, running, stages
from flows import compare as comparing
from flows import train as training

LOG = logging.getLogger("test")


@pytest.fixture(autouse=True)
def no_server_is_waited_for(monkeypatch):
    monkeypatch.setattr(running.server, "wait", lambda log: None)


def test_a_request_is_refused_before_params_yaml_is_touched_and_changes_are_told(project):
    write_params(method__diffu_grpo__train__updates=9)
    before = Path("params.yaml").read_bytes()
    for wrong in (RunRequest(overrides={"train.learning_rat": 1}), RunRequest("llada-8b-gsm8k")):
        with pytest.raises(DopsdError, match=r"train\.learning_rat: |model\.path: models/LLaDA-8B"):
            run_request.write(wrong)
        assert Path("params.yaml").read_bytes() == before
    found = run_request.write(RunRequest(profiles.AS_IT_STANDS, max_updates=7))
    assert sorted(found) == ["method.diffu_grpo.train.updates: 9 -> 7", "train.updates: 4 -> 7"]


def test_a_start_that_is_refused_leaves_params_yaml_as_it_was(project, monkeypatch):
    write_params()
    before = Path("params.yaml").read_bytes()
    monkeypatch.setattr(stages, "get_run_logger", lambda: LOG)
    other_base = RunRequest(profiles.AS_IT_STANDS, overrides={"pretrain": {"updates": 7}})
    with pytest.raises(DopsdError, match="nothing was started: pretrain: "):
        stages.write_settings.fn(other_base)
    more = RunRequest(profiles.AS_IT_STANDS, max_updates=9)
    with monkeypatch.context() as full:
        full.setattr("dopsd.pipeline.dvc.disk_room.free_bytes", lambda: 0)
        with pytest.raises(DopsdError, match=r"nothing was started: disk: 0\.0 GB are free"):
            stages.write_settings.fn(more)
        with pytest.raises(DopsdError, match=r"disk: 0\.0 GB are free"):
            run_here(more, run_request.check(more))
    monkeypatch.setattr(nodes, "gpus", lambda: ["0"])
    with pytest.raises(DopsdError, match="training uses all 1 GPUs"):
        training.run_stages(more, evaluate_while_training=True)
    assert Path("params.yaml").read_bytes() == before
    stages.write_settings.fn(other_base, True)
    assert Path("params.yaml").read_bytes() != before


@pytest.fixture
def staged(project, monkeypatch):
    """Stages that are noted instead of run, and a training that has ended when it is told to."""
    calls, done = [], Future()

    def note(name: str):
        def stage(*words: object) -> object:
            calls.append(" ".join([name, *(str(word) for word in words[:1])]))
            return f"{name} done"

        stage.submit = lambda *words: (
            stage(*words) and SimpleNamespace(result=lambda: "state", wrapped_future=done)
        )
        return stage

    names = "prepare pretrain evaluate_base train evaluate_checkpoint select point test report"
    for name in (*names.split(), "publish"):
        monkeypatch.setattr(stages, name, note(name))
    monkeypatch.setattr(stages, "write_settings", lambda asked, _: run_request.write(asked))
    monkeypatch.setattr(stages, "is_up_to_date", lambda stage: False)
    monkeypatch.setattr(nodes, "gpus", list)
    monkeypatch.setattr(training, "get_run_logger", lambda: LOG)
    for update in (2, 4):
        Path(f"runs/sudoku/d_opsd/0/train/step-{update:06d}").mkdir(parents=True)
    return calls, done


CELL = "sudoku/d_opsd/0"
ALL = ["evaluate_base sudoku", f"train {CELL}", "evaluate_checkpoint 2", "evaluate_checkpoint 4"]
ALL += [f"select {CELL}", f"test {CELL}", f"report {CELL}"]


def test_stages_run_in_order_and_each_checkpoint_has_a_task(staged):
    write_params(train__checkpoint_every=2)
    assert training.run_stages(RunRequest(profiles.AS_IT_STANDS), None) == ["sudoku/d_opsd/0"]
    assert [call for call in staged[0] if not call.startswith("pre")] == ALL
    staged[0].clear()
    write_params(train__checkpoint_every=2, evaluate__curve=[2, 0.9, 4])
    training.run_stages(RunRequest(profiles.AS_IT_STANDS), None)
    points = [f"point greedy-{name}" for name in ("steps5", "steps10", "threshold0.9")]
    assert [call for call in staged[0] if not call.startswith("pre")][5:8] == points


def test_leave_to_make_the_base_again_and_what_to_do_with_other_code_reach_their_stages(
    staged, monkeypatch
):
    given, found = [], []
    monkeypatch.setattr(stages, "pretrain", lambda _name, env, _after: given.append(env))
    monkeypatch.setattr(stages, "train", lambda _cell, env, _after: found.append(dict(env)))
    write_params(train__checkpoint_every=2)
    # without a word on other code, the worker's own environment decides
    for can_retrain, answer in ((False, "continue"), (True, "stop")):
        training.run_stages(RunRequest(profiles.AS_IT_STANDS), None, can_retrain, answer)
    assert given == [{}, {"DOPSD_ALLOW_RETRAIN": "1"}]
    assert found == [{"DOPSD_OTHER_CODE": "continue"}, {}]


@pytest.mark.parametrize("is_there", [True, False])
def test_checkpoints_are_evaluated_beside_training_which_goes_on_without_a_server(
    staged, monkeypatch, is_there
):
    calls, done = staged
    write_params(train__checkpoint_every=2)
    monkeypatch.setattr(training, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(training, "scratch_since", lambda started: Path("scratch"))
    looked = threading.Event()
    monkeypatch.setattr(training.server, "is_reachable", lambda: looked.set() or is_there)
    # one half written, one saved at a stop
    for name in ("step-000002", "step-000004.tmp", "step-000003"):
        Path("scratch", name).mkdir(parents=True)
    seen = []

    def end() -> None:
        looks = 0  # two more after the first checkpoint was there, or after none
        while looks < 3:
            looked.wait(60)
            looked.clear()
            looks += 1 if "evaluate_checkpoint 2" in calls or not is_there else 0
        seen.extend(calls)
        done.set_result(None)

    threading.Thread(target=end).start()
    training.run_stages(RunRequest(profiles.AS_IT_STANDS), True)
    assert ("evaluate_checkpoint 2" in seen) == is_there and "evaluate_checkpoint 3" not in calls
    assert [call for call in calls if not call.startswith("pre")] == ALL


def test_each_profile_of_a_comparison_is_trained_and_all_are_compared(monkeypatch):
    asked, compared = [], []

    def train(profile: str, **shared: object) -> list[str]:
        asked.append(shared)
        return [f"{profile}/0"]

    monkeypatch.setattr(comparing, "train", train)
    monkeypatch.setattr(comparing, "compare_runs", compared.append)
    monkeypatch.setattr(comparing, "get_client", lambda **_: nullcontext())
    monkeypatch.setattr(comparing, "have_joined", lambda client: False)
    shared = {"seeds": [3], "max_updates": 2, "other_code": "anew"}
    cells = ["embedded/0", "llada-8b-gsm8k/0"]
    assert comparing.compare.fn(["embedded", "llada-8b-gsm8k"], **shared) == cells
    assert compared == [cells]
    assert asked[1].items() >= (shared | {"methods": ["d_opsd", "diffu_grpo"]}).items()


def test_a_fault_is_tried_again_and_a_mistake_is_not():
    def state(error: Exception):
        def result() -> None:
            raise error

        return SimpleNamespace(result=result)

    failed = lambda status: running.CommandFailed("train", status, [])  # noqa: E731
    tried = {75: True, -9: True, 1: True, 2: False}
    assert {status: stages.may_help(None, None, state(failed(status))) for status in tried} == tried
    assert stages.may_help(None, None, state(httpx.ConnectError("away")))
    assert not stages.may_help(None, None, state(DopsdError("no such key", code=Code.UNKNOWN_KEY)))


def test_two_evaluations_never_share_a_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    devices, used, at_once = checkpoint_evals.Devices(nodes.gpus()), [], []

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
    with checkpoint_evals.Devices(nodes.gpus()).one() as env:
        assert "CUDA_VISIBLE_DEVICES" not in env and env["WORLD_SIZE"] == "1"


class Awaited(threading.Event):
    """Tells by a file that somebody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        Path("awaited").touch()
        return super().wait(timeout)


def test_checkpoints_of_a_device_share_a_process_and_a_retry_asks_for_what_is_missing(
    monkeypatch, here
):
    code = "import pathlib, sys, time\n"
    code += "print('evaluate: done with checkpoint 25: 61.2%', flush=True)\n"
    code += "while not pathlib.Path('awaited').exists():\n    time.sleep(0.02)\n"
    code += "sys.exit(len(sys.argv) > 2)"
    asked: list = []

    def stage(_name, words, *rest):
        asked.append(words[words.index("--update") + 1 :])
        return running.run("evaluate", (sys.executable, "-c", code, *asked[-1]), *rest)

    monkeypatch.setattr(checkpoint_evals, "run", stage)
    key, devices = RunKey("sudoku", "d_opsd", 0), checkpoint_evals.Devices([])
    job = checkpoint_evals.CheckpointEvalJob(key, [25, 50], devices, LOG)
    job.done[50] = Awaited()
    assert job.wait(25) == "61.2%"
    with pytest.raises(running.CommandFailed):
        job.wait(50)
    code = "print('evaluate: done with checkpoint 50: 64.3%')"
    job.wait(50)
    job.process.join()
    assert asked == [("25", "50"), ("50",)]


def deployments() -> list[dict]:
    return yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.mark.parametrize("deployment", deployments(), ids=lambda d: d["name"])
def test_every_deployment_has_a_flow_whose_parameters_are_explained(deployment, monkeypatch):
    monkeypatch.chdir(ROOT)
    flow = import_object(deployment["entrypoint"])
    assert flow.name == f"dopsd-{deployment['name']}".removesuffix("-train")
    for name, field in parameter_schema(flow).properties.items():
        assert field.get("description"), name
    # its leases die with the server, and then the run is ended: the pool has it
    assert "concurrency_limit" not in deployment
    assert all(schedule["active"] is False for schedule in deployment.get("schedules", []))
