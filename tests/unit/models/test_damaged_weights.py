"""Damaged adapters and checkpoints are refused before anything is loaded or used."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from garbage import refused
from safetensors.torch import load, save_file
from weights import adapter, policy

from dopsd.models.adapter_files import ADAPTER, lora_of, read_adapter
from dopsd.models.lora import load_adapter
from dopsd.training import checkpoint


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("adapters"))
    try:
        return adapter()
    finally:
        os.chdir(before)


@pytest.fixture
def folder(here: Path, sound: dict[str, bytes]) -> Path:
    """An adapter that fits `policy()`."""
    Path("a").mkdir()
    for name, content in sound.items():
        (Path("a") / name).write_bytes(content)
    return Path("a")


@pytest.mark.parametrize("name", [ADAPTER, "adapter_config.json"])
@pytest.mark.parametrize("kind", ["device", "pipe", "loop", "folder"])
def test_an_adapter_file_that_is_no_file_is_refused_at_once(folder: Path, name: str, kind: str):
    path = folder / name
    path.unlink()
    makers = {"device": lambda: path.symlink_to("/dev/zero"), "pipe": lambda: os.mkfifo(path)}
    makers |= {"loop": lambda: path.symlink_to(path.absolute()), "folder": path.mkdir}
    makers[kind]()
    refused(lambda: lora_of(folder), f"a: no {name}")


def test_an_adapter_is_refused_before_memory_is_taken_for_it(folder: Path):
    config = folder / "adapter_config.json"
    for rank in (3, 10**12):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"r": rank}))
        refused(lambda rank=rank: lora_of(folder), f"adapter_config.json has r {rank}, but ")
    config.write_text("[" * 5000)
    refused(lambda: lora_of(folder), "adapter_config.json: not valid JSON")


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, None], ids=["nan", "inf", "whole numbers"])
def test_an_adapter_without_finite_numbers_is_refused(folder: Path, odd: float | None):
    tensors = load((folder / ADAPTER).read_bytes())
    name = sorted(tensors)[0]
    if odd is None:
        # as one changed letter of the header has it
        tensors[name] = tensors[name].view(torch.int32)
    else:
        tensors[name][0, 0] = odd
    save_file(tensors, folder / ADAPTER)
    used = lambda: load_adapter(policy().adapted, read_adapter(folder), folder)  # noqa: E731
    refused(used, "not finite", name)


WHOLE = dict.fromkeys([ADAPTER, "adapter_config.json", "state.json"], "")


@pytest.mark.parametrize(
    ("digests", "said"),
    [
        ("[]", "digests.json is missing or damaged"),
        ("[" * 5000, "digests.json is missing or damaged"),
        ("{}", "digests.json is missing or damaged"),
        (json.dumps({"state.json": ""}), "digests.json does not name adapter_model.safetensors"),
        (json.dumps(WHOLE | {"/etc/passwd": ""}), "names '/etc/passwd'"),
        (json.dumps(WHOLE | {"a\0": ""}), "names 'a"),
    ],
)
def test_a_checkpoint_with_odd_digests_is_not_used(here, capsys, digests: str, said: str):
    for name in ("step-000002", "step-abcdef"):
        Path(name).mkdir()
        (Path(name) / "digests.json").write_text(digests)
    assert checkpoint.checkpoints(Path()) == [] and checkpoint.newest_resumable(Path(), 1) is None
    assert said in capsys.readouterr().err
