"""`dopsd ablate`: variants of a method, their settings and their table; DVC runs each once."""

import json
import re
from pathlib import Path

import pytest
from cells import finished
from conftest import small_params

from dopsd.algorithms.common.config import kind_of
from dopsd.cli.main import main
from dopsd.config.loading import checked
from dopsd.config.params import Params
from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.pipeline.results import ablate
from dopsd.training.run_identity import identify

VARIANTS = {
    "default": {},
    "live": {"teacher": "live"},
    "fixed": {"teacher": "base"},
    "short": {"train": {"updates": 2}, "attempts": 1},
}


def params(**changes: object) -> Params:
    section = {"task": "sudoku", "method": "d_opsd", "seeds": [0, 1], "variants": VARIANTS}
    section |= {"tables": {"teacher": ["fixed", "live"], "length": ["short"]}}
    return checked(small_params(ablate=section | changes), "params.yaml")


def test_a_variant_changes_its_keys_and_nothing_else():
    own, varied = params().of("d_opsd"), params().of("d_opsd-short")
    assert varied.method.d_opsd.attempts == 1 and varied.train.updates == 2
    before = {name: getattr(own.method.d_opsd, name) for name in ("attempts", "train")}
    assert varied.method.d_opsd.model_copy(update=before) == own.method.d_opsd
    assert varied.train.model_copy(update={"updates": own.train.updates}) == own.train
    assert varied.of("d_opsd-short") == varied  # stages may ask twice
    assert (kind_of("d_opsd-short"), kind_of("d_opsd")) == ("d_opsd", "d_opsd")


def test_any_method_may_have_variants():
    varied = params(
        method="rft", variants={"default": {}, "many": {"draws_per_rollout": 9}}, tables={}
    )
    assert varied.of("rft-many").method.rft.draws_per_rollout == 9


def test_variants_that_agree_share_their_work(project):
    folder = {
        name: identify(params().run("sudoku", name, 0)).folder
        for name in ("d_opsd", "d_opsd-default", "d_opsd-fixed")
    }
    assert len(set(folder.values())) == 1
    assert identify(params().run("sudoku", "d_opsd-live", 0)).folder not in folder.values()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variants": {"odd": {"techer": "live"}}}, ".odd: d_opsd has no setting techer; did you"),
        ({"variants": {"odd": {"train": {"updates": 0}}}}, ".odd.train.updates: Input should be"),
        ({"variants": {"odd": {"train": {"update": 2}}}}, ".odd: d_opsd has no setting train.upd"),
        ({"variants": {"odd": {"train": None}}}, ".odd.train: expected keys of section train"),
        ({"variants": {"a/b": {}}}, "variants: 'a/b': expected lowercase letters"),
        ({"run": ["base"]}, "run: expected names of ablate.variants, found base"),
        ({"variants": {"default": {"teacher": "live"}}}, "variants.default: expected {}"),
        ({"tables": {"a": ["base"]}}, "tables.a: expected names of ablate.variants, found base"),
        ({"method": "ppo"}, "method: ppo: unknown; there is"),
        ({"method": "espo"}, ".live: espo has no setting teacher; ablate.variants and"),
        ({"task": "chess"}, "params.yaml: ablate.task: chess: unknown"),
    ],
)
def test_a_wrong_section_is_one_line_that_begins_with_its_key(changes, said):
    if "variants" in changes:
        changes = {"variants": VARIANTS | changes["variants"]}
    with pytest.raises(DopsdError, match=re.escape(said)) as refused:
        params(**changes)
    assert str(refused.value).startswith("params.yaml: ablate")


def test_a_table_pairs_variants_with_the_default_by_problem_and_seed(here):
    finished("d_opsd-default", 0, {"a": 0.5, "b": 0.5})
    finished("d_opsd-default", 1, {"a": 0.5, "b": 0.0})
    finished("d_opsd-live", 0, {"a": 1.0, "b": 0.5})
    finished("d_opsd-live", 1, {"a": 1.0, "b": 0.5})
    lines = ablate.write(params(), "teacher").splitlines()
    # by seed and problem: 0.5 and 0, then 0.5 and 0.5; every draw without an (a, 0) pair has 0.5
    (live,) = (line for line in lines if line.startswith("| live | 75.0 [50.0, 100.0] | +37.5 [+"))
    assert ", +50.0] | +50.0 [" in live
    (first,) = (line for line in lines if line.startswith("| fixed (params.yaml) | 37.5 ["))
    assert "] |  | +12.5 [" in first and first.endswith("| 37.5 | 2 | 4 | from the cache |")
    found = json.loads((ablate.OUT / "teacher" / "ablation.json").read_text())
    assert found["live"]["over_first"][0] == 0.375


def test_a_variant_that_started_from_a_checkpoint_is_named(here):
    for name in ("default", "live"):
        for seed in (0, 1):
            finished(f"d_opsd-{name}", seed, {"a": 0.5, "b": 0.5})
    made = {"fingerprint": "train-1", "started_from": "away/best", "start": "0"}
    write_json(Path("runs/sudoku/d_opsd-live/1/train.json"), made)
    write_json(Path("runs/sudoku/d_opsd-live/1/evaluate.json"), {"start": 0.25})
    said = "sudoku: d_opsd-live did not start from the base in 1 of 2 runs, but from `away/best`."
    assert said in ablate.write(params(), "teacher")


def test_what_there_is_is_listed(project, capsys, refusal):
    Path("params.yaml").write_text(json.dumps(params().model_dump()))
    assert main(["ablate"]) == 0
    assert "teacher: fixed, live" in capsys.readouterr().out
    assert "reveal: unknown; section ablate of params.yaml has teacher" in refusal(
        "ablate", "reveal"
    )
    assert "--method d_opsd-odd: unknown" in refusal("train", "--method", "d_opsd-odd")
