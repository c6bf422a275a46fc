"""Checkpoints copied to another place: another machine continues from them to the same result."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from conftest import built_once, in_copy, write_params
from toy_runs import adapter_digests, die_at, train

from dopsd.training.remote_checkpoints import RemoteCopies, RemoteFolder

SETTINGS = {"train__updates": 6, "train__checkpoint_every": 2}


@pytest.fixture
def remote(project: Path, tmp_path: Path) -> Path:
    write_params(**SETTINGS, checkpoints__remote=str(tmp_path / "remote"))
    return tmp_path / "remote"


def lose_this_disk() -> None:
    for folder in ("work", "runs"):
        shutil.rmtree(folder, ignore_errors=True)


def copies(remote: Path) -> dict[str, set[str]]:
    """Names of the files of each copy, by checkpoint."""
    folders = sorted(remote.glob("train-*/step-*"))
    return {path.name[:11]: {file.name for file in path.iterdir()} for path in folders}


def killed(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        die_at(patch, update)
        train()


@pytest.fixture(scope="module")
def whole(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of an uninterrupted run."""

    def build(folder: Path) -> None:
        with in_copy(prepared, folder):
            write_params(**SETTINGS)
            assert train() == 0

    with contextlib.chdir(built_once(tmp_path_factory, "whole-remote", build) / "project"):
        return adapter_digests()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("", "up to update 4 from"),
        ("digests.json", "continuing after update 2"),
        ("trainer.safetensors", "continuing after update 2"),
        ("../run.json", "run.json is missing or damaged; its copies are not used"),
    ],
)
@pytest.mark.full
def test_another_machine_continues_from_whole_copies_to_the_same_bytes(
    whole, remote, monkeypatch, capfd, damage, said
):
    killed(monkeypatch, 5)
    lose_this_disk()
    (newest,) = remote.glob("train-*/step-000004.*")
    if damage == "digests.json":  # which is copied last
        (newest / damage).unlink()
    elif damage:
        (newest / damage).write_bytes(b'{"code": ')
    assert train() == 0
    err = capfd.readouterr().err
    assert said in err and ("continuing after update 4" in err) == (not damage)
    assert adapter_digests() == whole
    json.loads((newest.parent / "run.json").read_text())


def test_a_damaged_checkpoint_on_disk_is_replaced_by_its_copy(whole, remote, monkeypatch, capfd):
    killed(monkeypatch, 5)
    (newest,) = Path("work").glob("train-*/step-000004")
    (newest / "trainer.safetensors").write_bytes(b"half")
    assert train() == 0
    assert "continuing after update 4" in capfd.readouterr().err
    assert adapter_digests() == whole


def test_only_the_newest_copies_hold_what_resuming_needs(remote: Path):
    write_params(**SETTINGS | {"train__updates": 8}, checkpoints__remote=str(remote))
    assert train() == 0
    held = {step: "trainer.safetensors" in names for step, names in copies(remote).items()}
    assert held == {f"step-00000{update}": update > 4 for update in (2, 4, 6, 8)}
    assert all({"adapter_model.safetensors", "digests.json"} <= n for n in copies(remote).values())


def test_a_place_that_cannot_be_written_does_not_stop_training(remote, monkeypatch, capfd):
    put, failing = RemoteFolder.put, [OSError("quota exceeded")] * 2

    def fails_twice(self: RemoteFolder, step: Path) -> None:
        if failing:
            raise failing.pop()
        put(self, step)

    monkeypatch.setattr(RemoteFolder, "put", fails_twice)
    assert train() == 0
    said = capfd.readouterr().err
    assert said.count("OSError: quota exceeded") == 1  # not for each checkpoint
    assert copies(remote).keys() == {"step-000002", "step-000004", "step-000006"}


def test_a_place_that_is_out_of_order_is_asked_seldom_and_gets_all_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps = [tmp_path / f"step-{update:06d}" for update in (2, 4, 6)]
    for step in steps:
        step.mkdir()
    tries: list[str] = []
    is_down, asked = True, threading.Semaphore(0)

    def put(self: RemoteFolder, step: Path) -> None:
        tries.append(step.name[-1])
        asked.release()
        if is_down:
            raise OSError("no route to host")

    monkeypatch.setattr(RemoteFolder, "put", put)
    with RemoteCopies(str(tmp_path / "remote"), tmp_path / "train-x") as queue:
        for step in steps:
            queue.add(step)
            asked.acquire(timeout=60)
        time.sleep(0.3)  # nothing new: nothing to try
        assert len(tries) <= 2 * len(steps)
        is_down = False
        tries.clear()
    assert tries == ["6", "4", "2"] and not queue.waiting


def test_a_place_that_cannot_be_read_stops_the_run(project, tmp_path, capfd):
    pytest.importorskip("s3fs")
    (tmp_path / "file").write_text("")
    write_params(**SETTINGS, checkpoints__remote="s3://nowhere/x?y")
    assert train() == 75
    assert "checkpoints.remote: s3://nowhere/x?y cannot be read" in capfd.readouterr().err
    assert not list(Path("work").glob("train-*/step-*"))


def test_a_copy_of_other_code_is_left_alone(remote, monkeypatch, capfd):
    killed(monkeypatch, 3)
    (record,) = remote.glob("train-*/run.json")
    record.write_text(record.read_text().replace('"code": "', '"code": "f'))
    shutil.rmtree(next(iter(Path("work").glob("train-*/step-000002"))))
    assert train() == 0
    assert "of other code" in capfd.readouterr().err


def test_a_checkpoint_that_was_removed_meanwhile_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(RemoteFolder, "put", lambda self, step: (step / "digests.json").read_text())
    queue = RemoteCopies(str(tmp_path / "remote"), tmp_path / "train-x")
    queue.add(tmp_path / "step-000002")
    with queue:
        pass
    assert not queue.waiting and not queue.warned


def test_an_unknown_protocol_is_refused_by_name(project: Path, capfd: pytest.CaptureFixture):
    write_params(**SETTINGS, checkpoints__remote="s4://bucket/x")
    assert train() == 2
    assert "checkpoints.remote: 's4://bucket/x': expected a folder, or an" in capfd.readouterr().err
