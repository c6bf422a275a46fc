"""Settings that make another paper's method have its name; errors say which they are."""

from __future__ import annotations

import re

import pytest
from conftest import write_params

from dopsd.algorithms.registry import ALGORITHMS, how, label, variant_of, variants_of
from dopsd.cli.main import main

CJ_GRPO = {"shrink": 1, "kl_to": "base", "kl_reduction": "mean"}
RLDF = CJ_GRPO | {"states": 4, "confident": 0.6, "reduction": "token"}
DOPSD = {"target": "all_future", "divergence": "forward_kl", "teacher": "base"}
FINISHED = {"target": "finished", "divergence": "reverse_kl", "teacher": "base"}
FORK = {"positions": "fallback", "threshold": 0.8}


@pytest.mark.parametrize(
    ("algorithm", "settings", "variant"),
    [
        ("espo", {}, ""),
        ("espo", {"objective": "squared", "clip_range": 4e-4}, "GDSD"),
        ("espo", {"objective": "token"}, "coupled-GRPO"),
        ("trace_rl", {}, ""),
        ("trace_rl", {"shrink": 1}, ""),  # TraceRL itself, with every step a state
        ("trace_rl", CJ_GRPO, "CJ-GRPO"),
        ("trace_rl", RLDF, "RLDF"),
        ("just_grpo", {"positions": "entropy_top"}, ""),
        ("just_grpo", FORK, "fork"),
        ("temporal", DOPSD, ""),  # with TSD's weight
        ("temporal", DOPSD | {"weight": "none"}, "dOPSD"),
        ("temporal", FINISHED, "dOPSD-finished"),  # wrong rollouts weigh nothing, as by default
        ("temporal", FINISHED | {"weight": "none"}, ""),
        ("rft", {}, ""),  # no variants.yaml
    ],
)
def test_settings_name_the_method_that_they_are(algorithm, settings, variant):
    config = ALGORITHMS.config_class(algorithm).model_validate(settings)
    assert variant_of(algorithm, config) == variant
    assert label(algorithm, variant) == (f"{algorithm} ({variant})" if variant else algorithm)
    assert re.match(rf"{variant or '[A-Za-z-]+'}", how(algorithm, variant))


def test_a_variant_does_not_have_the_sentence_of_the_algorithm():
    assert how("espo", "").startswith("ESPO: policy gradient on whole completions")
    assert how("espo", "GDSD").startswith("GDSD: the change of")


GDSD = "gdsd: is method espo with objective squared: docs/algorithms/espo.md"
PAGE = "docs/algorithms/just_grpo.md"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check"], f"matrix: methods: {GDSD}"),
        (["train", "--method", "GDSD"], "--method GDSD: is method espo with objective squared"),
        (["train", "--method", "coupled-GRPO"], "is method espo with objective token: docs/"),
        (
            ["train", "--method", "fork"],
            f"is method just_grpo with positions fallback, threshold 0.8: {PAGE}",
        ),
        (["train", "--method", "rldf"], "rldf: is method trace_rl with states 4, confident 0.6"),
        (["train", "--method", "cj_grpo"], "is method trace_rl with shrink 1, states 0"),
        (["train", "--method", "ppo"], "--method ppo: unknown; there is"),
    ],
)
def test_a_method_that_settings_make_is_named(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    write_params(**({"matrix__methods": ["gdsd"]} if words == ["check"] else {}))
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_settings_of_a_variant_are_valid_and_make_it():
    for algorithm in ALGORITHMS.names:
        for name, variant in variants_of(algorithm).items():
            settings = variant.settings | variant.needed
            config = ALGORITHMS.config_class(algorithm).model_validate(settings)
            assert variant_of(algorithm, config) == name and name not in ALGORITHMS.names
