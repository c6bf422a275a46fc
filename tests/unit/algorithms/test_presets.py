"""The commands on the pages of the methods set the published values, whatever project they meet."""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, as_before

from dopsd.algorithms.common.config import AlgorithmConfig
from dopsd.cli.main import main
from dopsd.config.loading import load_params

NO_VALUE_OF_ITS_OWN = {"updates", "prompts_per_collect"}  # of train: how long, and a machine's size
PARAMS = Path("params.yaml")


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """The section of a method after each command of its page, in a new project of a profile."""

    @functools.cache
    def made(profile: str) -> str:
        assert main(["params", "--profile", profile]) == 0
        return PARAMS.read_text()

    @functools.cache
    def run(method: str, profile: str) -> list[AlgorithmConfig]:
        text, found = (ROOT / f"docs/algorithms/{method}.md").read_text(), []
        with as_before(), contextlib.chdir(folder):
            for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
                PARAMS.write_text(made(profile))
                assert main(shlex.split(block.replace("\\\n", ""))[1:]) == 0
                found.append(vars(load_params().method)[method])
        return found

    folder = tmp_path_factory.mktemp("presets")
    return run


@pytest.mark.parametrize(("method", "number"), [("espo", 2), ("trace_rl", 2), ("just_grpo", 1)])
def test_no_value_is_left_to_the_project(after, method: str, number: int):
    def values(config: AlgorithmConfig) -> dict:
        train = config.train.model_dump(exclude=NO_VALUE_OF_ITS_OWN)
        return config.model_dump() | {"train": train}

    small, large = (map(values, after(method, name)) for name in ("embedded", "llada-8b-countdown"))
    assert (found := list(small)) == list(large) and len(found) == number


def test_the_presets_of_espo(after):
    gdsd, coupled = after("espo", "embedded")
    assert (gdsd.objective, coupled.objective) == ("squared", "token")
    assert (gdsd.clip_range, gdsd.psi, gdsd.token_weight) == (4e-4, 10.0, "one")
    assert coupled.full_mask and coupled.masks == "share" and coupled.clip_range == 0.5
    assert (gdsd.group_size, gdsd.temperature, gdsd.train.prompts_per_collect) == (16, 1.0, 20)
    assert (coupled.group_size, coupled.temperature, coupled.kl_weight) == (10, 1.0, 0.01)


def test_the_presets_of_trace_rl(after):
    cj_grpo, rldf = after("trace_rl", "embedded")
    assert (cj_grpo.updates_of_collect, cj_grpo.clip_range, cj_grpo.kl_to) == (12, 0.5, "base")
    assert (cj_grpo.train.betas, cj_grpo.train.weight_decay) == ([0.9, 0.99], 0.1)
    assert (rldf.updates_of_collect, rldf.states, rldf.train.weight_decay) == (1, 4, 0.0)
    assert (cj_grpo.reward, rldf.reward) == ("task", "correct")
    assert (cj_grpo.train.grad_clip, rldf.train.grad_clip) == (0.2, 1.0)


def test_the_preset_of_just_grpo(after):
    (fallback,) = after("just_grpo", "embedded")
    assert (fallback.threshold, fallback.temperature, fallback.group_size) == (0.8, 0.8, 16)
    assert fallback.after_end and fallback.reward == "correct"
    assert (fallback.train.learning_rate, fallback.train.grad_clip) == (5e-6, 1.0)
