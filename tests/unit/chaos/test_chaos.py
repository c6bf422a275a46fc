"""The fault campaign itself: what it plants it must find, and what it hooks into must be there."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from importlib import import_module

import pytest
import yaml
from chaos import judge
from chaos.damage import damage
from chaos.disk import Disk, library
from chaos.folders import CELL, digests, locked
from chaos.hook import sitecustomize as hook
from chaos.outcomes import LOST, SILENT, Facts, outcome
from chaos.plan import DISK, KINDS, draw

pytestmark = pytest.mark.full

ADAPTER = CELL / "best" / "adapter_model.safetensors"


def plan_of(kind: str):
    plans = (draw(0, number) for number in range(sum(KINDS.values())))
    return next(plan for plan in plans if plan.kind == kind)


@pytest.fixture
def finished(tmp_path):
    """A workspace with one result, and what the campaign knows of the undisturbed run."""
    (tmp_path / ADAPTER).parent.mkdir(parents=True)
    (tmp_path / ADAPTER).write_bytes(bytes(range(200)))
    stages = {"report@sudoku-d_opsd-0": {"cmd": "x", "outs": [{"path": "reports", "md5": "aa"}]}}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": stages}))
    return tmp_path, {"files": digests(tmp_path), "lock": locked(tmp_path)}


@pytest.mark.parametrize(("kind", "word"), [("kill", LOST), ("adapter", SILENT)])
def test_one_planted_bit_is_a_loss_and_after_damage_that_was_not_refused_silent_corruption(
    finished, kind, word
):
    folder, reference = finished
    assert judge.differences(folder, reference, "repro") == []
    damage(folder / ADAPTER, "flip", 0.5)
    found = judge.differences(folder, reference, "repro")
    assert found == [f"{ADAPTER} has different bytes"]
    assert outcome(plan_of(kind), Facts(differences=found)) == word


def test_a_trial_is_drawn_from_seed_and_number_and_a_block_has_every_kind():
    size = sum(KINDS.values())
    assert draw(7, 3) == draw(7, 3) != draw(8, 3)
    assert Counter(draw(1, number).kind for number in range(size, 2 * size)) == KINDS
    assert {draw(1, number).kind for number in range(len(KINDS))} == {*KINDS}


WRITE = """
import pathlib, shutil
def text():
    pathlib.Path("runs/text").write_text("x" * 100)
def copy():
    shutil.copyfile("source", "runs/copy")
for call in (text, copy):
    try:
        call()
    except OSError as error:
        print(call.__name__, error.errno)
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
@pytest.mark.parametrize(
    ("kind", "said", "left"),
    [
        ("enospc", [f"text {errno.ENOSPC}", f"copy {errno.ENOSPC}"], 32),
        ("eio", [f"text {errno.EIO}"], 100),
    ],  # closing the file tries again,
)
def test_a_full_disk_takes_part_of_a_write_and_no_more_and_a_broken_one_fails_once(
    tmp_path, kind, said, left
):
    (tmp_path / "runs").mkdir()
    (tmp_path / "source").write_bytes(bytes(100))
    disk = Disk(tmp_path, tmp_path, library(tmp_path))
    disk.fail(DISK.index("runs/"), 2, kind)  # the first is the creation of the file

    def ran() -> list[str]:
        words, env = [sys.executable, "-S", "-c", WRITE], os.environ | disk.env
        return subprocess.check_output(words, cwd=tmp_path, env=env, text=True).splitlines()

    assert ran() == said and disk.hit == "runs/text"
    assert (tmp_path / "runs/text").stat().st_size == left
    disk.free()
    assert ran() == []


def test_what_the_hook_looks_at_is_there():
    for module, names in hook.PHASES.items():
        for name, inner in names.items():
            found = vars(import_module(module))[name]
            assert not isinstance(inner, dict) or inner.keys() <= vars(found).keys(), name
    assert json.loads(json.dumps(hook.asked())) == {}
