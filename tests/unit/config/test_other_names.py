"""Names of methods that settings of another one make: the error says which."""

from __future__ import annotations

import pytest
from conftest import write_params

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import main
from dopsd.config.other_names import other_names

GDSD = "gdsd: is method espo with objective squared: docs/algorithms/espo.md"
FORK = "fork: is method just_grpo with positions fallback, threshold 0.8: docs/algorithms/just_gr"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check"], f"matrix: methods: {GDSD}"),
        (["train", "--method", "GDSD"], "--method GDSD: is method espo with objective squared"),
        (["train", "--method", "coupled-GRPO"], "is method espo with objective token: docs/"),
        (["train", "--method", "fork"], f"--method {FORK}"),
        (["train", "--method", "rldf"], "rldf: is method trace_rl with states 4, confident 0.6"),
        (["train", "--method", "cj_grpo"], "is method trace_rl with shrink 1, kl_to base"),
        (["train", "--method", "ppo"], "--method ppo: unknown; there is"),
    ],
)
def test_a_method_that_settings_make_is_named(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    write_params(**({"matrix__methods": ["gdsd"]} if words == ["check"] else {}))
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_settings_of_another_name_are_valid_and_no_algorithm_has_it():
    for name, (method, settings) in other_names().items():
        ALGORITHMS.config_class(method).model_validate(settings)
        assert name not in ALGORITHMS.names, name
