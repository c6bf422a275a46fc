"""params.yaml: every fault is one line with the key's full path before anything loads."""

import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, small_params, write_params

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import main
from dopsd.config.loading import checked, load_params, parse_yaml, read_yaml
from dopsd.config.params import Params
from dopsd.config.params_file import flat, missing
from dopsd.config.profiles import embedded
from dopsd.core.errors import DopsdError

METHODS = ", ".join(ALGORITHMS.names[:4])


def test_the_shipped_params_state_what_the_matrix_runs():
    """Its stages find every setting in the file; the other methods run by name all the same."""
    params, raw = load_params(ROOT / "params.yaml"), read_yaml(ROOT / "params.yaml")
    assert raw["data"].keys() == {"sudoku"} and raw["method"].keys() == {"d_opsd"}
    assert len(flat(raw)) <= 183 and missing(params) == []
    assert params.model_dump() == checked(embedded(), "p").model_dump()


def test_what_is_done_to_parsed_settings_stays_with_the_one_who_does_it():
    for _ in range(2):
        raw = parse_yaml("a: {b: [1]}", "p")
        assert raw == {"a": {"b": [1]}}
        raw["a"]["b"].append(2)


def test_the_embedded_profile_states_every_setting():
    raw = embedded()
    params = checked(raw, "p")
    names = ("data", "pretrain", "sampling", "train", "model", "select", "tracking", "matrix")
    for section in (*names, "launch"):
        known = params.model_dump()[section].keys() - {"reuse", "also"}  # named in comments
        assert raw[section].keys() == known, section
    for name, task in params.model_dump()["data"].items():
        optional = {"model", "pretrain"}  # overrides, which only some tasks have
        assert raw["data"][name].keys() - optional == task.keys() - optional
    for name, method in raw["method"].items():  # an algorithm that is not named has its defaults
        assert method.keys() == params.model_dump()["method"][name].keys(), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train__learning_rat": 1.0}, "train.learning_rat: unknown key; did you mean learning_r"),
        (
            {"matrix__methods": ["d3llm"], "train__reuse": 2},
            "method.d3llm: counts collects as updates; set train.reuse to 1",
        ),
        ({"train__lora": {"x": 1}}, "train.lora.x: unknown key; there is r, alpha, dropout, "),
        ({"method__d_opsd__reveal_ratio": 1.5}, "reveal_ratio: Input should be less than or"),
        ({"method__d_opsd__attempts": 0}, "method.d_opsd.attempts: Input should be greater"),
        ({"sampling__gen_length": 44}, "gen_length 44 must be a multiple of block_length 8"),
        ({"sampling__steps": 21}, "sampling: steps 21 must be a multiple of the 5 blocks"),
        ({"sampling__steps": 80}, "at most gen_length 40"),
        ({"train__updates": "many"}, "updates: Input should be a valid integer, found 'many'"),
        ({"train__learning_rate": float("nan")}, "train.learning_rate: Input should be a finite"),
        ({"method__d_opsd__divergence": "kl"}, "divergence: Input should be 'reverse_kl', 'for"),
        (
            {"method__d_opsd__drop_remainder": True, "method__d_opsd__state_sample": 3},
            "set drop_remainder to false",
        ),
        ({"pretrain__n_heads": 3}, "d_model 32 must be a multiple of 2 x n_heads 3"),
        ({"data__sudoku__test_grids": 144}, "data.sudoku.test_grids"),
        ({"data__sudoku__blanks": 13}, "blanks"),
        ({"matrix__seeds": []}, "matrix.seeds"),
        ({"matrix__seeds": [1, 0, 1]}, "matrix.seeds: 1 is there twice; remove one"),
        ({"matrix__tasks": ["sudoku"] * 2}, "matrix.tasks: sudoku is there twice"),
        ({"matrix__methods": ["rft"] * 2}, "matrix.methods: rft is there twice"),
        ({"ablate__seeds": [0, 0]}, "ablate.seeds: 0 is there twice"),
        ({"pretrain__tasks": ["sudoku"] * 2}, "pretrain.tasks: sudoku is there twice"),
        ({"ablate__run": ["default"] * 2}, "ablate.run: default is there twice"),
        ({"checkpoints__remote": "s3:/bucket/x"}, "did you mean s3://bucket/x?"),
        ({"checkpoints__remote": "s3:bucket"}, "did you mean s3://bucket?"),
        ({"matrix__methods": ["ppo"]}, f"methods: ppo: unknown; there is {METHODS}"),
        ({"model__attention": "flash_attention_2"}, "flash_attention_2 computes in bfloat16"),
        ({"launch__processes": 3}, "launch.processes must be at most train.prompts_per_collect"),
        ({"evaluate__protocols": {}}, "evaluate.protocols"),
        (
            {"matrix__tasks": ["countdown"], "matrix__methods": ["sft"], "data__countdown": {}},
            "sft needs reference solutions and countdown has none",
        ),
        ({"verify_teacher__reveal_ratios": [0.1, 0.101]}, "reveal_ratios must differ"),
        (
            {"method__d_opsd__reveal_scope": "all_masked", "method__d_opsd__reveal_ratio": 1.0},
            "leaves nothing to learn",
        ),
        ({"select__protocol": "other"}, "'other' is not one of evaluate.protocols (greedy)"),
        ({"sampling__block_length": 40}, "no state to train on"),
        ({"method__d_opsd__updates_per_trajectory": 21}, "must be at most sampling.steps 20"),
        (
            {"matrix__methods": ["espo"], "sampling__stop_after_eos": True},
            "method.espo: tail window scores tokens that sampling.stop_after_eos does not sample;",
        ),
    ],
)
def test_a_fault_is_one_line_with_its_key(here, refusal, changes, said):
    write_params(**changes)
    err = refusal("train")
    assert said in err and "params.yaml" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("printf '<<<<<<< HEAD\na: 1\n=======\n>>>>>>> x\n' > params.yaml", "marks of a conflict"),
        ("mkfifo params.yaml", "params.yaml: is no regular file"),
        ("true", "no such file; run from the project's root"),
        ("echo 'train: [' > params.yaml", "not valid YAML"),
        ("ln -s nowhere runs", "Not a directory: runs"),
        ("touch reports", "Not a directory: reports"),
        ("mkdir runs; touch runs/sudoku", "Not a directory: runs/sudoku"),
    ],
)
def test_what_stands_in_the_way_is_named_before_any_work(here, refusal, make, said):
    write_params()
    if "params.yaml" in said or make == "true" or ">" in make:
        Path("params.yaml").unlink()
    subprocess.run(make, shell=True, check=True)
    assert said in refusal("train")


def test_a_name_with_a_dot_can_be_set(here):
    write_params()
    greedy = load_params().evaluate.protocols["greedy"].model_dump_json()
    assert main(["params", "--set", f"evaluate.protocols={{t0.7: {greedy}}}"]) == 0
    assert main(["params", "--set", "evaluate.protocols.t0.7.steps=10"]) == 0
    assert load_params().evaluate.protocols["t0.7"].steps == 10


def test_a_method_that_does_not_run_may_contradict_the_sampling(here):
    """Defaults of methods that nobody asked for do not stop a run of another one."""
    write_params(sampling__stop_after_eos=True, method__espo__tail="window")
    assert load_params().sampling.stop_after_eos


def test_several_faults_are_reported_at_once(here):
    write_params(train__updates=0, select__split="all")
    with pytest.raises(DopsdError) as caught:
        load_params()
    assert len(str(caught.value).splitlines()) == 2


def test_check_reports_no_errors_and_unknown_names_are_refused(here, capsys, refusal):
    write_params()
    assert main(["check"]) == 0
    assert "no errors" in capsys.readouterr().out
    assert f"--method ppo: unknown; there is {METHODS}" in refusal("train", "--method", "ppo")
    assert "--task chess: unknown" in refusal("prepare", "--task", "chess")


def test_check_names_files_that_are_not_there(here, refusal):
    prompts = "data.countdown.prompt_file=data/external/mine.txt"
    assert main(["params", "--profile", "llada-8b-countdown", "--set", prompts]) == 0
    prompt, rows, base = refusal("check").splitlines()
    assert "prompt_file: data/external/mine.txt: no such file" in prompt
    assert "test.path: data/external/countdown.jsonl: no such file" in rows
    assert "model.path: models/LLaDA-8B-Instruct/config.json: no such file" in base
    write_params(model__path="~/base", pretrain__tasks=["sudoku"])  # which makes no base there
    assert "model.path: ~/base/config.json: no such file; write the" in refusal("check")


def test_params_cannot_be_changed_after_reading():
    params = Params.model_validate(small_params())
    with pytest.raises(ValueError, match="frozen"):
        params.train.updates = 3
