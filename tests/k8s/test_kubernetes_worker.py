"""`make integration-k8s`: infra/k8s, as kustomize makes it, on a pretended cluster that runs pods.

Prefect's server and Kubernetes worker, MLflow and the runs are real.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from fake_cluster import Cluster, missing, until
from jobs import Job
from pod_container import USER
from workspace import Workspace, overrides

K8S = ROOT / "infra" / "k8s"
PACKAGE = "prefect_kubernetes"
REASON = missing() or ("" if importlib.util.find_spec(PACKAGE) else f"{PACKAGE}: not installed")
pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(bool(REASON), reason=f"no pretended cluster: {REASON}"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files of a git checkout"),
]
SECRET = """PREFECT_DATABASE_URL=sqlite+aiosqlite:////home/dopsd/prefect.db
MLFLOW_DATABASE_URL=sqlite:////home/dopsd/mlflow.db
MLFLOW_ARTIFACTS=/home/dopsd/artifacts
DOPSD_REPOSITORY=git://127.0.0.1/origin
DOPSD_REVISION={branch}
"""
LONG = {"train.updates": 2000, "train.checkpoint_every": 1000, "tracking.enabled": False}
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """What the README says: secret.env, `kubectl apply -k`, and pods that are ready."""
    folder = tmp_path_factory.mktemp("kubernetes")
    origin = Workspace(folder / "origin")
    branch = origin.run("git", "branch", "--show-current").strip()
    files = shutil.copytree(K8S, folder / "k8s")
    (files / "base/secret.env").write_text(SECRET.format(branch=branch))
    found = Cluster(folder / "cluster", files / "overlays/cpu")
    found.start()
    try:
        served = ("--export-all", "--listen=127.0.0.1", f"--base-path={folder}")
        found.begin("git", "daemon", *served)
        for name in ("prefect", "mlflow", "worker"):
            found.deploy(name)
        yield found
    finally:
        found.stop()


def submit(cluster: Cluster, seed: int, changes: dict[str, object], *words: str) -> str:
    """Start dopsd/train as the README does; return the flow run's id."""
    asked = {"overrides": overrides(pretrain__updates=20) | changes, "seeds": [seed]}
    given = [w for k, v in asked.items() for w in ("--param", f"{k}={json.dumps(v)}")]
    output = cluster.exec("worker", "prefect", "deployment", "run", "dopsd/train", *given, *words)
    return re.search(r"UUID: (\S+)", output)[1]


def state(cluster: Cluster, run: str) -> dict[str, str]:
    return cluster.fetch(f"http://prefect:4200/api/flow_runs/{run}")["state"]


def ended(cluster: Cluster, run: str) -> str:
    """Wait for the end of a flow run, and return the type of its state."""
    until(f"{run} ends", lambda: state(cluster, run)["type"] in ENDED)
    return state(cluster, run)["type"]


def nth_job(cluster: Cluster, run: str, number: int) -> Job:
    """Wait for the Job of a flow run's first, second, ... attempt, and for its pod."""

    def is_there() -> bool:
        found = state(cluster, run)
        assert found["type"] not in ENDED, found
        return len(cluster.jobs_of(run)) >= number

    until(f"job {number} of {run}", is_there)
    return cluster.jobs_of(run)[number - 1]


def in_training(cluster: Cluster, run: str, number: int = 1) -> Job:
    """Wait until the pod of an attempt trains."""
    job = nth_job(cluster, run, number)

    def is_training() -> bool:
        assert state(cluster, run)["type"] not in ENDED, job.pods[-1].text()[-5000:]
        updates = re.findall(r" train: (\d+)/\d+ updates", job.pods[-1].text())
        return bool(updates) and int(updates[-1]) >= 2

    until("training", is_training)
    return job


def workspace(cluster: Cluster) -> Path:
    return cluster.node.volume("workspace") / "workspace"


def checkpoints(cluster: Cluster) -> set[Path]:
    return set(workspace(cluster).glob("work/train-*/step-??????"))


def saved_since(cluster: Cluster, before: set[Path]) -> int:
    """The update of the only checkpoint that is new."""
    (new,) = checkpoints(cluster) - before
    assert (new / "state.json").is_file()
    return int(new.name[5:])


def cancel(cluster: Cluster, run: str) -> None:
    cluster.exec("worker", "prefect", "flow-run", "cancel", run)
    assert ended(cluster, run) == "CANCELLED"


def pod_ends(job: Job) -> str:
    until("the pod ends", lambda: job.pods[-1].phase in ("Succeeded", "Failed"))
    return job.pods[-1].phase


def cancel_and_wait(cluster: Cluster, run: str, job: Job) -> None:
    cancel(cluster, run)
    pod_ends(job)


def test_a_run_becomes_a_job_that_ends_with_results_on_the_volume_and_in_mlflow(cluster):
    run = submit(cluster, 0, {}, "--job-variable", "finished_job_ttl=5")
    job = nth_job(cluster, run, 1)
    assert ended(cluster, run) == "COMPLETED", job.pods[-1].text()[-5000:]
    assert pod_ends(job) == "Succeeded" and len(job.pods) == 1
    adapter = workspace(cluster) / "runs/sudoku/d_opsd/0/best/adapter_model.safetensors"
    assert adapter.stat().st_uid == int(USER)
    found = cluster.fetch(
        "http://mlflow:5000/api/2.0/mlflow/runs/search", {"experiment_ids": ["1"]}
    )
    assert [each["info"]["status"] for each in found["runs"]] == ["FINISHED"]
    until("the job's time is up", lambda: not cluster.jobs_of(run))
    assert state(cluster, run)["type"] == "COMPLETED"
    assert cluster.api.refused == []  # the worker's Role is enough


def test_a_cancelled_run_saves_and_the_next_run_continues_there(cluster):
    before = checkpoints(cluster)
    run = submit(cluster, 1, LONG)
    job = in_training(cluster, run)
    cancel(cluster, run)
    assert pod_ends(job) and len(cluster.jobs_of(run)) == 1
    saved = saved_since(cluster, before)
    again = submit(cluster, 1, LONG)
    second = in_training(cluster, again)
    assert f"continuing after update {saved}" in second.pods[-1].text()
    cancel_and_wait(cluster, again, second)


def test_a_drained_run_saves_and_prefect_starts_it_again(cluster):
    before = checkpoints(cluster)
    run = submit(cluster, 2, LONG)
    first = in_training(cluster, run)
    cluster.drain(first.pods[-1])
    pod_ends(first)
    saved = saved_since(cluster, before)
    second = in_training(cluster, run, 2)
    assert f"continuing after update {saved}" in second.pods[-1].text()
    cancel_and_wait(cluster, run, second)


def test_a_run_whose_pod_is_killed_is_crashed_and_its_retry_continues_at_a_checkpoint(cluster):
    before = checkpoints(cluster)
    run = submit(cluster, 3, LONG | {"train.checkpoint_every": 2})
    job = in_training(cluster, run)
    until("a checkpoint", lambda: checkpoints(cluster) - before)
    job.pods[-1].kill()
    assert ended(cluster, run) == "CRASHED"
    assert pod_ends(job) == "Failed" and len(cluster.jobs_of(run)) == 1
    saved = max(int(path.name[5:]) for path in checkpoints(cluster) - before)
    cluster.exec("worker", "prefect", "flow-run", "retry", run)
    second = in_training(cluster, run, 2)
    assert f"continuing after update {saved}" in second.pods[-1].text()
    cancel_and_wait(cluster, run, second)


@contextlib.contextmanager
def earlier_run_saves(cluster: Cluster) -> Iterator[None]:
    """The lock of commands that still save, held from outside."""
    for folder in (workspace(cluster), workspace(cluster) / "work"):
        cluster.node.shared(folder)
    lock = workspace(cluster) / "work/guard.lock"
    lock.touch()
    lock.chmod(0o666)
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        yield


def waiting(cluster: Cluster, run: str) -> Job:
    job = nth_job(cluster, run, 1)

    def is_waiting() -> bool:
        assert state(cluster, run)["type"] not in ENDED, job.pods[-1].text()
        return "an earlier run that still save" in job.pods[-1].text()

    until("the pod waits", is_waiting)
    return job


def test_a_run_that_is_cancelled_while_it_waits_ends_before_training(cluster):
    with earlier_run_saves(cluster):
        run = submit(cluster, 4, LONG)
        job = waiting(cluster, run)
        cluster.exec("worker", "prefect", "flow-run", "cancel", run)
        assert state(cluster, run)["type"] == "CANCELLING"
    assert ended(cluster, run) == "CANCELLED", job.pods[-1].text()
    assert pod_ends(job)
    assert " train: " not in job.pods[-1].text()


def test_the_job_of_a_waiting_run_can_be_deleted_and_a_restarted_worker_reports_it(cluster):
    with earlier_run_saves(cluster):
        run = submit(cluster, 5, LONG)
        job = waiting(cluster, run)
        watches = cluster.api.watches["jobs"]
        cluster.restart("worker")
        until("the worker watches jobs", lambda: cluster.api.watches["jobs"] > watches)
        assert state(cluster, run)["name"] == "InfrastructurePending" and job.pods[-1].container
        cluster.call(job.delete(is_foreground=False))
        assert job.pods[-1].is_gone.is_set()  # long before the end of its grace
        assert ended(cluster, run) == "CRASHED"


def test_a_run_whose_pod_dies_before_its_flow_is_crashed(cluster):
    with earlier_run_saves(cluster):
        run = submit(cluster, 6, LONG)
        waiting(cluster, run).pods[-1].kill()
        assert ended(cluster, run) == "CRASHED"
