"""`dopsd run`, `attach` and `cancel`: what the command line refuses before Prefect is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_params
from ports import free_port

from dopsd.cli.main import build_parser, main
from dopsd.cli.runs import _request
from dopsd.config.profiles import AS_IT_STANDS


def test_options_become_a_request():
    words = "run --seeds 0,1 --methods d_opsd,rft --tasks sudoku --updates 5 --set train.lora.r=4"
    request = _request(build_parser().parse_args(words.split()))
    assert request.profile == AS_IT_STANDS and request.seeds == [0, 1]
    assert request.changes == [
        "train.lora.r=4",
        'matrix.tasks=["sudoku"]',
        'matrix.methods=["d_opsd", "rft"]',
        "matrix.seeds=[0, 1]",
        "train.updates=5",
    ]
    profiled = build_parser().parse_args(["run", "--profile", "embedded"])
    assert _request(profiled).profile == "embedded"


@pytest.mark.parametrize(
    "words", ["--seeds 0,b", "--seeds 0,", "--tasks a/b", "--updates 0", "--detach --local"]
)
def test_a_wrong_option_is_refused_with_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["run", *words.split()])
    assert end.value.code == 2 and "argument --" in capsys.readouterr().err


@pytest.fixture
def without_server(project, monkeypatch) -> Path:
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    return project


def test_a_wrong_setting_is_refused_before_any_server_is_asked(without_server, capsys):
    write_params()
    before = Path("params.yaml").read_bytes()
    for where in ([], ["--local"]):
        assert main(["run", "--set", "train.updats=5", *where]) == 2
        line = "dopsd: --set: train.updats: unknown key; did you mean updates?"
        assert line in capsys.readouterr().err
    assert Path("params.yaml").read_bytes() == before


@pytest.mark.parametrize("command", ["run", "attach", "cancel"])
def test_a_folder_without_the_flows_is_named(without_server, command, capsys):
    write_params()
    assert main([command]) == 2
    assert "flows/runs.py: no such file" in capsys.readouterr().err
