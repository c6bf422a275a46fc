"""Checkpoints copied to another place: another machine continues from them to the same result."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from conftest import write_params
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
    return {
        path.name[:11]: {file.name for file in path.iterdir()}
        for path in sorted(remote.glob("train-*/step-*"))
    }


def killed_and_moved(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        die_at(patch, update)
        train()
    lose_this_disk()


@pytest.fixture
def whole(remote: Path) -> dict[str, str]:
    """Digests of an uninterrupted run, of which nothing is left."""
    assert train() == 0
    digests = adapter_digests()
    lose_this_disk()
    shutil.rmtree(remote)
    return digests


def test_another_machine_continues_to_the_same_bytes(
    remote: Path,
    whole: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
):
    killed_and_moved(monkeypatch, 5)
    assert train() == 0
    said = capfd.readouterr().err
    assert f"fetched 2 checkpoints of this run up to update 4 from {remote}" in said
    assert "continuing after update 4" in said
    assert adapter_digests() == whole


@pytest.mark.parametrize("fault", ["cut off", "damaged"])
def test_a_copy_that_is_not_whole_is_passed_over(
    remote: Path,
    whole: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
    fault: str,
):
    killed_and_moved(monkeypatch, 5)
    (newest,) = remote.glob("train-*/step-000004.*")
    if fault == "cut off":
        (newest / "digests.json").unlink()
    else:
        (newest / "trainer.safetensors").write_bytes(b"half")
    assert train() == 0
    assert "continuing after update 2" in capfd.readouterr().err
    assert adapter_digests() == whole


def test_only_the_newest_copies_hold_what_resuming_needs(remote: Path):
    write_params(**SETTINGS | {"train__updates": 8}, checkpoints__remote=str(remote))
    assert train() == 0
    held = {step: "trainer.safetensors" in names for step, names in copies(remote).items()}
    assert held == {
        "step-000002": False,
        "step-000004": False,
        "step-000006": True,
        "step-000008": True,
    }
    assert all({"adapter_model.safetensors", "digests.json"} <= n for n in copies(remote).values())


def test_a_place_that_cannot_be_written_does_not_stop_training(
    remote: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
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
    steps = steps_in(tmp_path, 2, 4, 6)
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


def test_a_damaged_checkpoint_on_disk_is_replaced_by_its_copy(
    remote: Path,
    whole: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
):
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        die_at(patch, 5)
        train()
    (newest,) = Path("work").glob("train-*/step-000004")
    (newest / "trainer.safetensors").write_bytes(b"half")
    assert train() == 0
    assert "continuing after update 4" in capfd.readouterr().err
    assert adapter_digests() == whole


def test_copies_whose_record_is_damaged_are_named_and_not_used(
    remote: Path,
    whole: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
):
    killed_and_moved(monkeypatch, 5)
    (record,) = remote.glob("train-*/run.json")
    text = record.read_text()
    record.write_text(text[: len(text) // 2])
    assert train() == 0
    assert "run.json is missing or damaged; its copies are not used" in capfd.readouterr().err
    assert adapter_digests() == whole and record.read_text().endswith("}\n")


def test_a_place_that_cannot_be_read_stops_the_run(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    pytest.importorskip("s3fs")
    (tmp_path / "file").write_text("")
    write_params(**SETTINGS, checkpoints__remote="s3://nowhere/x?y")
    assert train() == 75
    assert "checkpoints.remote: s3://nowhere/x?y cannot be read" in capfd.readouterr().err
    assert not list(Path("work").glob("train-*/step-*"))


def test_a_copy_of_other_code_is_left_alone(
    remote: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        die_at(patch, 3)
        train()
    (record,) = remote.glob("train-*/run.json")
    record.write_text(record.read_text().replace('"code": "', '"code": "f'))
    shutil.rmtree(next(iter(Path("work").glob("train-*/step-000002"))))
    assert train() == 0
    assert "of other code" in capfd.readouterr().err


def steps_in(folder: Path, *updates: int) -> list[Path]:
    """Make folders of checkpoints, without content."""
    steps = [folder / f"step-{update:06d}" for update in updates]
    for step in steps:
        step.mkdir()
    return steps


def test_the_newest_checkpoint_is_copied_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    monkeypatch.setattr(RemoteFolder, "put", lambda self, step: order.append(step.name))
    queue = RemoteCopies(str(tmp_path / "remote"), tmp_path / "train-x")
    for step in steps_in(tmp_path, 2, 4, 6):
        queue.add(step)
    with queue:
        pass
    assert order == ["step-000006", "step-000004", "step-000002"]


def test_a_checkpoint_that_was_removed_meanwhile_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
