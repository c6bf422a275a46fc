"""What a run was asked to do: checked before it is submitted, with nothing written."""

import re
from pathlib import Path

import pytest
from conftest import write_params

from dopsd.config.loading import load_params, read_yaml
from dopsd.config.profiles import AS_IT_STANDS
from dopsd.core.errors import DopsdError
from dopsd.pipeline.run.request import PARAMS, RunRequest, check, parsed, write


def asked(**overrides: object) -> RunRequest:
    return RunRequest(AS_IT_STANDS, overrides=overrides)


def test_changes_of_the_command_line_become_json_values_by_key():
    changes = ["train.updates=5", "matrix.seeds=[0, 1]", "train.updates=7", "tracking.uri=null"]
    assert parsed(changes) == {"train.updates": 7, "matrix.seeds": [0, 1], "tracking.uri": None}
    for change in ("train.updates", "=5", "train.updates=[5"):
        with pytest.raises(DopsdError, match="--set"):
            parsed([change])


WRONG = {
    "train.updats": (5, "train.updats: unknown key; did you mean updates?"),
    "train.updates": ("x", "train.updates: Input should be a valid integer, found 'x'"),
    "matrix.methods": (["d_ops"], "did you mean d_opsd?"),
    "data.sudoku.prompt_file": ("data/external/no.txt", "is not read with model.prompt_style comp"),
    "data.sudoku.model": ({"path": "base/no"}, "base/no/config.json: no such file in"),
    "train": ({"updtes": 2}, "train.updtes: unknown key; did you mean updates?"),
    "method": ({"d_opsd": {"train": {"lora": 4}}}, "method.d_opsd.train.lora"),
    "matrix": ([1], "matrix: "),
    "sampling": (None, "sampling: "),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_request_is_checked_as_params_yaml_is_and_nothing_is_written(project, key):
    before = Path("params.yaml").read_bytes()
    value, message = WRONG[key]
    with pytest.raises(DopsdError, match=re.escape(message)) as refused:
        check(asked(**{key: value}))
    assert refused.value.exit_code == 2
    assert Path("params.yaml").read_bytes() == before and not Path("work").exists()


@pytest.mark.parametrize(
    ("overrides", "single"),
    [
        ({"train": {"lora": {"r": 3}, "updates": 2}}, {"train.lora.r": 3, "train.updates": 2}),
        ({"method": {"d_opsd": {"train": {"updates": 3}}}}, {"method.d_opsd.train.updates": 3}),
        (
            {"evaluate": {"protocols": {"greedy": {"batch_size": 5}}}},
            {"evaluate.protocols.greedy.batch_size": 5},
        ),
        ({"sampling": {}}, {}),
        (
            {"ablate": {"variants": {"default": {}}, "tables": {"a": ["default"]}}},
            {"ablate.variants": {"default": {}}, "ablate.tables": {"a": ["default"]}},
        ),
        ({"matrix": {"tasks": ["sudoku"], "seeds": [3]}}, {"matrix.seeds": [3]}),
    ],
)
def test_a_section_among_the_overrides_keeps_what_it_does_not_name(project, overrides, single):
    variants = {"default": {}, "other": {"attempts": 2}}
    write_params(ablate__variants=variants, ablate__tables={"b": ["default"]}, ablate__run=[])
    found = check(asked(**overrides))
    assert found == check(asked(**single))
    before = read_yaml(PARAMS)["train"].keys()
    write(asked(**overrides))
    assert load_params() == found and read_yaml(PARAMS)["train"].keys() == before


def test_a_request_without_a_profile_starts_from_params_yaml(project):
    write_params(train__updates=9, method__diffu_grpo__train__updates=5)
    assert check(asked()).train.updates == 9
    params = check(RunRequest(AS_IT_STANDS, seeds=[3], max_updates=2))
    assert (params.train.updates, params.matrix.seeds) == (2, [3])
    assert params.method.diffu_grpo.train.updates == 2
    with pytest.raises(DopsdError, match="need a profile"):
        check(RunRequest(AS_IT_STANDS, hardware="4x80gb"))
    Path("params.yaml").unlink()
    with pytest.raises(DopsdError, match="run this in the project's folder"):
        check(asked())


@pytest.mark.parametrize(
    ("changes", "pretrained"),
    [
        ({"task": "countdown"}, []),  # its problems alone are prepared, and its base is there
        ({"overrides": {"matrix.tasks": ["chains", "sudoku"]}}, ["sudoku"]),
        ({"overrides": {"matrix.tasks": ["chains"], "pretrain.tasks": ["chains"]}}, ["chains"]),
    ],
)
def test_only_tasks_of_the_matrix_keep_a_base_that_is_made_here(project, changes, pretrained):
    assert check(RunRequest(**changes), can_retrain=True).pretrain.tasks == pretrained
