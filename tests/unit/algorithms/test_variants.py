"""Settings that make an algorithm another paper's method give it that method's name."""

from __future__ import annotations

import re

import pytest

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.algorithms.variants import how, label, variant_of

CJ_GRPO = {"shrink": 1, "kl_to": "base", "kl_reduction": "mean"}
RLDF = CJ_GRPO | {"states": 4, "confident": 0.6, "reduction": "token"}
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
        ("rft", {}, ""),  # no variants.py
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
