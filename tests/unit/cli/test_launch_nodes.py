"""`dopsd launch`: what it refuses, and two nodes of this machine."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import forks
import psutil
import pytest
from conftest import write_params
from waiting import until
from warm_python import warm_bin
from workspace import Workspace, take_cache

from dopsd.cli.main import main
from dopsd.core.fingerprint import sha256
from dopsd.models.adapter_files import ADAPTER


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--nodes 2 train", "give --backend, or both --node and --meet"),
        ("--nodes 2 --node 0 train", "give --backend, or both --node and --meet"),
        ("--nodes 2 --node 2 --meet a:1 train", "expected --node below --nodes 2"),
        ("--nodes 2 --node 0 --meet a train", "--meet HOST:PORT"),
        ("--nodes 2 --node 0 --meet a:b train", "--meet HOST:PORT"),
        ("--nodes 2 --node 0 --meet me@a:1 train", "--meet HOST:PORT"),
        ("--nodes 2 --node 0 --meet a:1 repro", "repro runs on one machine"),
        ("--nodes 2 --backend ssh --hosts a train", "--hosts: expected 2 names"),
        ("--nodes 2 --backend local --hosts a,b train", "--hosts: expected 2 names"),
        ("--nodes 2 --backend local select", "select: expected one of train, evaluate-base"),
        ("repro", "give --nodes, or --at-once for `repro`"),
        ("--at-once 2 train", "dopsd launch --at-once 2 repro"),
        ("--at-once 2 --nodes 2 repro", "dopsd launch --at-once 2 repro"),
        ("--at-once 3 repro", "need 3 GPUs, and this machine shows 2"),
    ],
)
def test_options_that_contradict_each_other_are_one_line(
    project, refusal, monkeypatch, words, reason
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    said = refusal("launch", *words.split())
    assert reason in said and said.count("\n") == 1


def test_a_launch_may_prepare_data_from_the_hub(project, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert main(["launch", "--at-once", "1", "train"]) == 2
    assert "HF_HUB_OFFLINE" not in os.environ


@pytest.mark.full
def test_runs_side_by_side_make_what_runs_after_each_other_make(tmp_path, monkeypatch):
    made = Workspace(tmp_path / "project", is_warm=True)
    made.write(matrix__seeds=[0, 1], train__updates=1)
    monkeypatch.chdir(made.folder)
    said = made.run("dopsd", "launch", "--at-once", "2", "repro")
    assert said.count("begins on the CPU") == said.count("is trained and tested") == 2
    again = said.rpartition("is trained and tested")[2]  # nothing is made again
    assert "train: " not in again and "evaluations of" not in again
    assert made.dvc("status", "--json").strip() == "{}"
    said = made.run("dopsd", "launch", "--at-once", "2", "repro")
    assert "begins" not in said and "Running stage" not in said
    first = weights()

    made.write(matrix__seeds=[0], train__updates=1, train__learning_rate=1e-3)
    said = made.run("dopsd", "launch", "--at-once", "2", "repro")
    assert said.count("begins") == 1 and "replaces sudoku/d_opsd/0" in said
    assert "train.learning_rate" in made.run("dopsd", "summary", "--previous")
    one = Workspace(tmp_path / "one", is_warm=True)
    one.write(matrix__seeds=[0], train__updates=1)
    monkeypatch.chdir(one.folder)
    one.run("dopsd", "repro", "train")
    assert first["step-000001"] == weights()["step-000001"]


@pytest.mark.full
def test_a_killed_launcher_takes_its_runs_along_and_settings_must_stay(
    reproduced, tmp_path, monkeypatch
):
    made = Workspace(tmp_path / "project")
    take_cache(reproduced, made.folder)
    made.write(matrix__seeds=[0, 1], train__updates=2000, train__checkpoint_every=500)
    monkeypatch.chdir(made.folder)
    logs = [Path(f"work/launch/sudoku-d_opsd-{seed}.log") for seed in (0, 1)]
    words = [sys.executable, "-m", "dopsd", "launch", "--at-once", "2", "repro"]

    def begun(text: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(words, env=made.env, stderr=subprocess.PIPE, text=True)
        until(lambda: all(log.is_file() and text in log.read_text() for log in logs))
        return process

    killed = begun("updates, ")
    children = psutil.Process(killed.pid).children()
    assert len(children) == 2
    killed.kill()
    until(lambda: not any(child.is_running() for child in children))
    assert all("saved at update" in log.read_text() for log in logs)

    changed = begun("continuing after update")
    with Path("params.yaml").open("a") as file:
        file.write("# edited\n")
    said = changed.communicate()[1]
    assert changed.returncode == 2 and "params.yaml changed while its runs were made" in said

    stopped = begun("continuing after update")
    until(lambda: len(psutil.Process(stopped.pid).children()) == 2)
    stopped.terminate()
    assert "all runs have saved; the same command continues" in stopped.communicate()[1]
    assert stopped.returncode == 143


def test_a_node_that_ends_at_its_start_ends_the_command_at_once(project, capsys):
    """In place of ssh: a program that finds the folder there, and cannot start dopsd."""
    write_params(launch__timeout=300)
    Path("ssh").write_text('#!/bin/sh\ncase "$4" in test*) ;; *) exit 3 ;; esac\n')
    Path("ssh").chmod(0o755)
    where = ["--backend", "ssh", "--hosts", "me@127.0.0.1,you@b", "--ssh", "./ssh"]
    assert main(["launch", "--nodes", "2", *where, "train"]) == 3
    said = capsys.readouterr().err
    assert "launch: you@b: ended with exit code 3 before the nodes met" in said


def test_a_port_where_the_nodes_cannot_meet_is_named(project, monkeypatch, capfd):
    write_params(launch__timeout=60)
    with socket.create_server(("", 0)) as server:
        monkeypatch.setenv("DOPSD_PORT", port := str(server.getsockname()[1]))
        assert main(["launch", "--nodes", "2", "--backend", "local", "train"]) == 75
    used = f"launch: 127.0.0.1:{port} is in use by another program; name a free port"
    assert used in capfd.readouterr().err


def weights() -> dict[str, str]:
    folder = Path("runs/sudoku/d_opsd/0/train")
    return {path.parent.name: sha256(path) for path in folder.glob(f"*/{ADAPTER}")}


@pytest.mark.full
def test_two_nodes_of_one_machine_make_what_two_processes_of_one_node_make(project):
    write_params(train__updates=2, train__prompts_per_collect=3)
    python = warm_bin() / "python"
    for stage in ("train", "evaluate"):
        command = ["launch", "--nodes", "2", "--backend", "local", stage]
        assert subprocess.run([python, "-m", "dopsd", *command]).returncode == 0
    assert Path("runs/sudoku/d_opsd/0/evaluate.json").is_file()
    shares = {path.name for path in Path("work/eval").glob("*/answers.*.jsonl")}
    assert shares == {"answers.0.jsonl", "answers.1.jsonl"}
    of_two_nodes = weights()
    for folder in ("runs", "work"):
        shutil.rmtree(folder)
    assert forks.statuses(forks.start_ranks(2, forks.command, "train")) == [0, 0], forks.output()
    assert "step-000002" in of_two_nodes and weights() == of_two_nodes
