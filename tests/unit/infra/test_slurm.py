"""infra/slurm without Slurm: stand-ins write down what was asked, in which order."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT
from forks import BOUND
from waiting import until

CALLS = "calls"
PYTHON = """#!/bin/bash
case "$*" in
    *"stage list"*) printf '%s\\n' prepare@t prepare@other train@t-m-0; exit ;;
    *"dvc --wait-for-lock status"*) exit 1 ;;
esac
echo "${*:2}" >> calls
[[ "$*" != *"${SLOW:-nothing}"* ]] || exec work
[[ "$*" != *"${FAILS:-nothing}"* ]] || exit 3
"""
STAND_INS = {
    "python": PYTHON,
    "work": """#!/bin/bash
trap 'sleep 0.2; echo "TERM: saved" >> calls; exit 143' TERM
echo "working $$" >> calls
while :; do sleep 0.05; done
""",
    "srun": """#!/bin/bash
trap 'echo "srun kills its tasks" >> calls; exit 1' TERM INT
while [[ $1 != torchrun || $2 != --* ]]; do shift; done
echo "srun $*" >> calls
[[ -z ${SLOW:-} ]] || work &
wait
""",
    "scontrol": """#!/bin/bash
if [[ $1 == show ]]; then echo first; else echo "scontrol $*" >> calls; fi
""",
    "scancel": """#!/bin/bash
echo "scancel $*" >> calls
kill -TERM "$(sed -n 's/^working //p' calls)"
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "infra" / "slurm", tmp_path / "infra" / "slurm")
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f"PATH={programs}:$PATH\n")
    for name, text in STAND_INS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path


def submit(project: Path, script: str, *words: str, **env: str) -> subprocess.Popen[bytes]:
    """The job, begun with SIGINT ignored as a background command of a shell is."""
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(project),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    environment = os.environ | slurm | {"DOPSD_VENV": str(project / "venv")} | env
    command = ["bash", "-c", "trap '' INT; exec bash \"$@\"", "bash"]
    command += [project / "infra" / "slurm" / script, *words]
    return subprocess.Popen(command, cwd="/", env=environment)


def calls(project: Path) -> list[str]:
    path = project / CALLS
    return path.read_text().splitlines() if path.exists() else []


def send_while_working(
    job: subprocess.Popen[bytes], project: Path, *signals: signal.Signals
) -> int:
    until(lambda: any(line.startswith("working") for line in calls(project)), every=0.02)
    for number in signals:
        job.send_signal(number)
        time.sleep(0.05)
    return job.wait(BOUND)


def test_a_job_whose_time_is_up_saves_once_and_then_goes_back_into_the_queue(project: Path):
    job = submit(project, "train.sbatch", SLOW="dopsd repro")
    assert send_while_working(job, project, signal.SIGUSR1, signal.SIGTERM) == 0
    assert calls(project)[2:] == ["TERM: saved", "scontrol requeue 7"]


def test_a_cancelled_job_saves_and_does_not_come_back(project: Path):
    job = submit(project, "train.sbatch", SLOW="dopsd repro")
    assert send_while_working(job, project, signal.SIGTERM) == 143
    assert calls(project)[2:] == ["TERM: saved"]


def test_a_job_that_gets_nowhere_is_requeued_once_and_one_that_does_is_requeued_again(
    project: Path,
):
    step = project / "work" / "train-0" / "step-000003"
    for is_new, status in ((False, 0), (True, 0), (False, 1)):
        if is_new:
            step.mkdir(parents=True)
        (project / CALLS).unlink(missing_ok=True)
        job = submit(project, "train.sbatch", SLOW="dopsd repro")
        assert send_while_working(job, project, signal.SIGUSR1) == status
        assert ("scontrol requeue 7" in calls(project)) == (status == 0)


def test_a_finished_job_publishes_and_a_failed_one_passes_its_status_on(project: Path):
    assert submit(project, "train.sbatch", "train@a").wait(BOUND) == 0
    assert calls(project) == ["dopsd repro train@a", "dopsd publish"]
    (project / CALLS).unlink()
    assert submit(project, "train.sbatch", FAILS="repro").wait(BOUND) == 3
    assert calls(project) == ["dopsd repro"]


def test_training_on_several_nodes_is_signalled_through_its_steps_and_not_through_srun(
    project: Path,
):
    job = submit(project, "train-nodes.sbatch", "t", "m", "0", SLOW="srun")
    assert send_while_working(job, project, signal.SIGUSR1) == 0
    assert calls(project)[3:] == ["scancel --signal=TERM 7", "TERM: saved", "scontrol requeue 7"]


def test_dvc_learns_of_training_on_several_nodes_when_it_has_finished(project: Path):
    assert submit(project, "train-nodes.sbatch", "t", "m", "0").wait(BOUND) == 0
    prepared, trained, committed = calls(project)
    assert prepared == "dopsd repro prepare@t"
    assert trained.startswith("srun torchrun --nnodes=2 ")
    assert "--rdzv-endpoint=first:20007 " in trained
    assert trained.endswith("-m dopsd train --task t --method m --seed 0")
    assert committed == "dopsd commit --force train@t-m-0"


def test_a_cell_that_params_yaml_does_not_have_is_refused_before_anything_runs(project: Path):
    job = submit(project, "train-nodes.sbatch", "t", "typo", "0")
    assert job.wait(BOUND) == 2 and calls(project) == []
