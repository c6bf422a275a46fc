"""An architecture describes itself in its folder, and one from outside works as it is."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toys import rewrite, save_toy

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import DopsdError
from dopsd.models.common.decoder import DecoderForMaskedLM
from dopsd.models.config import ModelConfig
from dopsd.models.llada import LladaConfig
from dopsd.models.llm_policy import load_policy
from dopsd.models.registry import ARCHITECTURES, Traits, config_class, registering_module, traits
from dopsd.training.trainer import refuse_unseen

SHIFTED = """
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM
from dopsd.models.llada import LladaConfig, LladaForMaskedLM


class ShiftedConfig(LladaConfig):
    model_type = "shifted-llada"
    output_shift = 1


class ShiftedForMaskedLM(LladaForMaskedLM):
    config_class = ShiftedConfig


AutoConfig.register("shifted-llada", ShiftedConfig)
AutoModelForMaskedLM.register(ShiftedConfig, ShiftedForMaskedLM)
"""


@pytest.fixture
def shifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy whose position i - 1 predicts token i, from a package of its own."""
    package = tmp_path / "code" / "shifted_llada"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "architecture.py").write_text(SHIFTED)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    known = ARCHITECTURES.packages | {"shifted_llada": "shifted_llada"}
    monkeypatch.setattr(ARCHITECTURES, "packages", known)
    save_toy(tmp_path / "base")
    rewrite(tmp_path / "base" / "config.json", model_type="shifted-llada")
    yield tmp_path / "base"
    for name in [name for name in sys.modules if name.startswith("shifted_llada")]:
        del sys.modules[name]


def test_cached_positions_of_a_shifted_model_are_those_of_the_whole_forward(shifted: Path):
    policy = load_policy(ModelConfig(path=str(shifted)), None, 0)
    ids, kv_cache = torch.tensor([[5, 6, 7, 8, 9]]), policy.new_kv_cache()
    with torch.no_grad():
        whole = policy.hidden(ids, None, kv_cache)
        window = policy.hidden(ids[:, 2:4], None, kv_cache, slice(2, 4))
    assert torch.allclose(window, whole[:, 2:4], atol=1e-6)


def test_a_plug_in_whose_files_say_nothing_is_listed_by_its_class(shifted: Path):
    assert traits("shifted_llada") == Traits(output_shift=1, has_fused_kernels=True)


@pytest.mark.parametrize("member", ["linear_shapes", "trunk"])
def test_an_incomplete_architecture_is_refused_with_the_missing_member(
    shifted: Path, monkeypatch: pytest.MonkeyPatch, member: str
):
    load_policy(ModelConfig(path=str(shifted)), None, 0)
    kind = LladaConfig if member == "linear_shapes" else DecoderForMaskedLM
    monkeypatch.delattr(kind, member)
    message = f"architecture shifted-llada: Shifted[A-Za-z]+ has no {member}; add the members of "
    with pytest.raises(DopsdError, match=message):
        load_policy(ModelConfig(path=str(shifted)), None, 0)


@pytest.mark.parametrize("model_type", ["bert", "no-such"])
def test_an_unknown_architecture_is_refused_with_those_that_exist(shifted: Path, model_type: str):
    rewrite(shifted / "config.json", model_type=model_type)
    known = ", ".join(ARCHITECTURES.names)
    assert known.endswith(", shifted_llada")
    message = f"model_type '{model_type}' is not supported; there is {known}; `dopsd models`"
    with pytest.raises(DopsdError, match=message):
        load_policy(ModelConfig(path=str(shifted)), None, 0)


@pytest.mark.parametrize(
    ("name", "settings", "remedy"),
    [
        ("d_opsd", {}, "reveal_scope: future_blocks teaches nothing.*; set it to all_masked"),
        ("infill", {}, "teacher_attention teaches nothing.*; set it to all"),
        *(("d_opsd", {"reveal_scope": "all_masked"}, ""), ("d_opsd", {"reveal_ratio": 0.0}, "")),
        *((name, {"teacher_attention": "all"}, "") for name in ("d_opsd", "infill")),
        ("trace_rl", {}, ""),
    ],
)
def test_what_no_token_of_a_block_causal_base_sees_is_refused(name, settings, remedy):
    config = ALGORITHMS.config_class(name)(**settings)
    assert (config.unseen_by_blocks is None) == (not remedy)
    if remedy:
        with pytest.raises(DopsdError, match=rf"^method\.{name}\.{remedy}"):
            refuse_unseen(SimpleNamespace(kind=name, algorithm=config))


STRANGER = """
import importlib, os, sys
import torch, transformers.modeling_utils

for name, module in zip(sys.argv[1::2], sys.argv[2::2]):
    if not os.fork():
        importlib.import_module(module)
        transformers.AutoConfig.for_model(name)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


@pytest.mark.full
def test_a_stranger_registers_an_architecture_by_one_import():
    """As cards on the hub tell; each in a process that has imported nothing else of dopsd."""
    names = ("sdar", "llada_moe", "llada")
    words = [word for name in names for word in (name, registering_module(config_class(name)()))]
    subprocess.run([sys.executable, "-c", STRANGER, *words], check=True)
