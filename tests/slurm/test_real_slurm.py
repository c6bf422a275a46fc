"""`make integration-slurm`: jobs of the batch scripts are hit in training, and go on."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster import Cluster, missing
from conftest import ROOT
from waiting import until
from workspace import Workspace

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=f"needs Slurm: {missing()}"),
]
# no periodic checkpoint lies between them: what is saved was saved for the signal
UPDATES, HIT_AFTER = 80, 6
CELL = "sudoku-d_opsd-0"
ONE_NODE = ("infra/slurm/train.sbatch", f"train@{CELL}")
TWO_NODES = ("infra/slurm/train-nodes.sbatch", "sudoku", "d_opsd", "0")
SCRIPTS = {1: ONE_NODE, 2: TWO_NODES}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def prepared_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and a base, and settings in which training takes some tens of seconds."""
    workspace = Workspace(tmp_path_factory.mktemp("template") / "project")
    sizes = {"train__updates": UPDATES, "train__checkpoint_every": 10 * UPDATES}
    workspace.write(**sizes, matrix__seeds=[0, 1, 2])
    workspace.repro("prepare", "pretrain")
    workspace.commit()
    return workspace.folder


@pytest.fixture
def folder(prepared_workspace: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared_workspace, tmp_path / "project", symlinks=True)
    return tmp_path / "project"


@pytest.fixture(scope="session")
def table() -> Iterator[list[str]]:
    """Rows of what was seen, for benchmarks/RESULTS.md."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.check_output(describe, cwd=ROOT, text=True).strip()
    rows = ["| scenario | nodes | hit at update | saved | outcome | seconds |", f"|{'---|' * 6}"]
    yield rows
    out = ROOT / "reports" / "slurm" / "results.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f"Commit `{commit}`.\n\n" + "\n".join(rows) + "\n")


@pytest.fixture
def report(table: list[str]) -> Callable[[str], None]:
    """Add a row, with the seconds since the test began."""
    started = time.monotonic()
    return lambda row: table.append(f"| {row} | {time.monotonic() - started:.0f} |")


def log_of(folder: Path, job: str) -> str:
    found = list((folder / "infra" / "slurm" / "logs").glob(f"*-{job}.log"))
    return found[0].read_text() if found else ""


def updates(folder: Path) -> int:
    """The last update of the run's log."""
    logs = "".join(path.read_text() for path in folder.glob("work/train-*/log.jsonl"))
    rows = logs.splitlines(keepends=True)
    return json.loads(rows[-1])["update"] if rows and rows[-1].endswith("\n") else 0


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("work/train-*/step-??????"))


def in_training(cluster: Cluster, folder: Path, job: str) -> int:
    """Wait until updates advance; the last one."""

    def is_advancing() -> bool:
        assert cluster.about(job)["JobState"] in ("PENDING", "RUNNING"), log_of(folder, job)
        return updates(folder) >= HIT_AFTER

    until(is_advancing, "training")
    assert checkpoints(folder) == []
    return updates(folder)


def is_begun(folder: Path, job: str, times: int) -> bool:
    """Whether DVC has begun the training that often, and the last one is in its first collect."""
    line = "> python -m dopsd train --task sudoku --method d_opsd --seed 0"
    begun = log_of(folder, job).count(line)
    return begun == times and bool(list(folder.glob("work/train-*/lock")))


def change(folder: Path, old: str, new: str) -> None:
    """A setting, wherever params.yaml has it."""
    path = folder / "params.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def hit(cluster: Cluster, job: str, how: str, nodes: int) -> None:
    if how == "USR1":
        cluster.ask("scancel", "--signal=USR1", "--batch", job)
    elif how == "scancel":
        cluster.ask("scancel", job)
    elif how == "requeue":
        cluster.ask("scontrol", "requeue", job)
    else:
        where = f"--nodelist={cluster.about(job)['NodeList']}"
        # with /dev/null, Slurm takes that from everybody but root
        out = f"--output={cluster.folder}/log/high.log"
        what = ("--partition=high", f"--nodes={nodes}", "--exclusive", "--wrap=sleep 1")
        cluster.ask("sbatch", *what, where, out)


def assert_complete(cluster: Cluster, folder: Path, job: str) -> None:
    end = cluster.wait(job, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
    assert end == "COMPLETED", log_of(folder, job)
    assert updates(folder) == UPDATES and checkpoints(folder)[-1] == UPDATES
    is_up_to_date(cluster, folder, f"train@{CELL}")


def is_up_to_date(cluster: Cluster, folder: Path, *stages: str) -> None:
    env = {"PYTHONPATH": str(folder)}
    cluster.ask("python", "-m", "dvc", "status", "--quiet", *stages, cwd=folder, env=env)


HITS = [(how, nodes) for nodes in (1, 2) for how in ("USR1", "scancel", "requeue", "preemption")]


@pytest.mark.parametrize(("how", "nodes"), HITS)
def test_a_job_that_is_hit_in_training_saves_and_continues_there(
    cluster, folder, report, how, nodes
):
    job = cluster.submit(folder, *SCRIPTS[nodes])
    update = in_training(cluster, folder, job)
    hit(cluster, job, how, nodes)
    if how == "scancel":
        cluster.wait(job, "CANCELLED")
        until(lambda: job not in cluster.ask("squeue", "-h", "-o", "%i").split(), "the job's end")
        saved = checkpoints(folder)
        again = cluster.submit(folder, *SCRIPTS[nodes])
    else:
        cluster.wait(job, "PENDING")
        saved = checkpoints(folder)
        cluster.release(job)
        again = job
    assert len(saved) == 1 and update <= saved[0] < UPDATES, log_of(folder, job)
    assert_complete(cluster, folder, again)
    assert f"continuing after update {saved[0]}" in log_of(folder, again)
    report(f"{how} | {nodes} | {update} | {saved[0]} | continued, COMPLETED")


def test_a_job_saves_before_its_time_is_up_and_goes_back_into_the_queue(cluster, folder, report):
    change(folder, f"updates: {UPDATES}\n", "updates: 100000\n")
    change(folder, f"checkpoint_every: {10 * UPDATES}\n", "checkpoint_every: 100000\n")
    job = cluster.submit(folder, *ONE_NODE)
    update = in_training(cluster, folder, job)
    # minutes; --signal warns 300 s before
    cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=5")
    cluster.wait(job, "PENDING")
    saved = checkpoints(folder)
    assert len(saved) == 1 and update <= saved[0], log_of(folder, job)
    cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    cluster.release(job)
    until(lambda: f"continuing after update {saved[0]}" in log_of(folder, job), "training goes on")
    cluster.ask("scancel", job)
    cluster.wait(job, "CANCELLED")
    report(f"time limit (--signal) | 1 | {update} | {saved[0]} | continued")


def test_every_stage_runs_in_one_job_and_the_rest_after_a_job_of_two_nodes(cluster, folder, report):
    nodes = cluster.submit(folder, *TWO_NODES)
    after = f"--dependency=afterok:{nodes}"
    rest = cluster.submit(folder, after, "infra/slurm/train.sbatch", f"report@{CELL}")
    end = cluster.wait(rest, "COMPLETED", "FAILED", "CANCELLED")
    assert end == "COMPLETED", log_of(folder, nodes) + log_of(folder, rest)
    ran = set(re.findall(r"Running stage '(\w+)", log_of(folder, rest)))
    assert ran == {"evaluate", "select", "test", "report"}
    assert (folder / "reports" / "sudoku" / "d_opsd" / "0").is_dir()
    report("train-nodes.sbatch, then train.sbatch | 2, 1 | | | COMPLETED")


def test_dvc_runs_all_stages_of_one_job_on_two_nodes_and_knows_of_them(cluster, folder, report):
    job = cluster.submit(folder, "--nodes=2", "infra/slurm/nodes.sbatch", f"test@{CELL}")
    assert cluster.wait(job, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED", log_of(folder, job)
    shares = {path.name for path in folder.glob("work/eval/*/answers.*.jsonl")}
    assert shares == {"answers.0.jsonl", "answers.1.jsonl"}
    is_up_to_date(cluster, folder, f"test@{CELL}")
    report("nodes.sbatch: train, evaluate, select, test | 2 | | | COMPLETED")


def test_a_second_job_in_one_folder_waits_for_the_first(cluster, folder, report):
    first = cluster.submit(folder, *ONE_NODE)
    in_training(cluster, folder, first)
    second = cluster.submit(folder, *ONE_NODE)
    until(lambda: f"Slurm job {first} on " in log_of(folder, second), "the second waits")
    assert_complete(cluster, folder, first)
    assert_complete(cluster, folder, second)
    assert "Running stage" not in log_of(folder, second)
    report("two jobs in one folder | 1 | | | second waits, both COMPLETED")


def test_a_job_too_short_for_one_update_comes_back_once_and_then_says_so(cluster, folder, report):
    change(folder, "prompts_per_collect: 2\n", "prompts_per_collect: 60\n")
    change(folder, "attempts: 3\n", "attempts: 4000\n")
    change(folder, "keep_threshold: 0.0\n", "keep_threshold: 1.0\n")
    job = cluster.submit(folder, *ONE_NODE)
    for restart in (0, 1):
        until(partial(is_begun, folder, job, restart + 1), "training begins")
        cluster.ask("scancel", "--signal=USR1", "--batch", job)
        if restart == 0:
            cluster.release(job)
    assert cluster.wait(job, "FAILED", "PENDING", "COMPLETED") == "FAILED"
    assert "two runs in a row ended without a new checkpoint" in log_of(folder, job)
    report("no update within the time limit | 1 | 0 | | requeued once, then FAILED")


def test_each_element_of_an_array_has_a_workspace_and_one_collector_brings_all_back(
    cluster, folder, report
):
    status = ["git", "status", "--porcelain"]
    before = subprocess.check_output(status, cwd=folder, text=True)
    script = ("infra/slurm/train-array.sbatch", "sudoku", "d_opsd")
    job = cluster.submit(folder, "--array=0-2", *script)
    elements = [f"{job}_{seed}" for seed in (0, 1, 2)]
    until(lambda: updates(folder / "work" / "array" / CELL) >= HIT_AFTER, "an element trains")
    # a requeued element goes on with what it began with
    with (folder / "README.md").open("a") as text:
        text.write("A line for the next run.\n")
    cluster.ask("scontrol", "requeue", elements[0])
    cluster.wait(elements[0], "PENDING")
    cluster.release(elements[0])
    for element in elements:
        assert cluster.wait(element, "COMPLETED", "FAILED") == "COMPLETED", log_of(folder, element)
    assert "continuing with the code and settings of the start" in log_of(folder, elements[0])
    assert not (folder / "runs").exists()
    assert len(list(folder.glob("work/array/*/work/finished"))) == 3
    cluster.ask("python", "infra/slurm/collect.py", cwd=folder, env={"PYTHONPATH": str(folder)})
    for stage in ("train", "evaluate", "select", "test", "report"):
        is_up_to_date(cluster, folder, *(f"{stage}@sudoku-d_opsd-{seed}" for seed in (0, 1, 2)))
    files = [folder / f"runs/sudoku/d_opsd/{seed}/train.json" for seed in (0, 1, 2)]
    counts = [json.loads(file.read_text()) for file in files]
    assert [count["updates"] for count in counts] == [UPDATES] * 3
    assert len({count["fingerprint"] for count in counts}) == 3
    assert not list(folder.glob("work/array/*"))
    after = subprocess.check_output(status, cwd=folder, text=True)
    assert set(after.splitlines()) - set(before.splitlines()) <= {" M dvc.lock", " M README.md"}
    report("array over 3 seeds, one requeued, collected | 3 x 1 | | | COMPLETED")
