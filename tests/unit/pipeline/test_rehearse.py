"""`dopsd rehearse`: the real run's cost, then every stage of a profile on rows of a file."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from autoregressive_toys import save_source
from conftest import ROOT, write_params
from waiting import until

from dopsd.cli.main import main
from dopsd.config import profiles
from dopsd.config.loading import checked
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.pipeline.estimate import rehearse
from dopsd.pipeline.estimate.toy import build_toy
from dopsd.training.run_settings import PHASES

FOLDER = Path("work/rehearse/llada-8b-gsm8k")


def words_of(family: str) -> list[str]:
    """The words of a rehearsal with problems in files, which are written."""
    words = ["rehearse", "--profile", f"{family}-gsm8k", "--set", "data.gsm8k.validation=5"]
    Path("data/external").mkdir(parents=True)
    for name, numbers in (("train", range(12)), ("test", range(100, 106))):
        made = [{"question": f"{n} + {n}?", "answer": f"#### {2 * n}"} for n in numbers]
        path = Path(f"data/external/{name}.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
        words += ["--set", f"data.gsm8k.{name}.path={path}"]
    return words


@pytest.mark.parametrize("family", profiles.families())
def test_the_toy_of_a_base_that_is_not_here_is_of_its_kind(family: str, tmp_path: Path):
    settings = checked(profiles.resolve(f"{family}-gsm8k"), "p")
    build_toy(Path(settings.model.path), tmp_path)
    config = ModelConfig(path=str(tmp_path), block_size=settings.model.block_size)
    policy = load_policy(config, settings.train.lora, 0)
    assert policy.trainable()  # its layers have the names that the profile adapts
    kinds = {"smollm2-135m": "a2d-llama", "opdlm-0.6b": "a2d-qwen3", "tide-0.6b": "a2d-qwen3"}
    assert policy.core.config.model_type.lower()[:4] == kinds.get(family, family)[:4]
    assert policy.block_size in (None, settings.sampling.block_length)
    sizes = {"sdar-1.7b": 4, "opdlm-0.6b": 4, "tide-0.6b": 32, "llada2-mini": 32}
    assert policy.block_size == sizes.get(family)


def test_a_base_of_unknown_size_is_rehearsed_without_an_estimate(monkeypatch, here, capsys):
    ran: list[str] = []
    monkeypatch.setattr(rehearse, "_run", lambda stage, *_: ran.append(stage))
    words = ["rehearse", "--profile", "llada-8b-gsm8k", "--set", "model.path=models/mine"]
    assert main(words) == 0
    said = "rehearse: no estimate: model.path: models/mine: is not here, and its size is not known"
    assert said in capsys.readouterr().err
    assert ran == [stage for stage in rehearse.STAGES if stage != "adapt"]


@pytest.mark.nightly
def test_the_making_of_a_base_is_estimated_and_rehearsed(project, capfd):
    save_source(Path("models/toy-ar"), "llama")
    chats = Path("data/external/chats.jsonl")
    chats.parent.mkdir(exist_ok=True)
    chats.write_text((json.dumps({"question": "1", "response": "1" * 39}) + "\n") * 3)
    write_params(
        adapt__learn={"traces": {"path": str(chats)}},
        adapt__tasks=["sudoku"],
        adapt__source="models/toy-ar",
        adapt__distill={"train": {"updates": 50}},
        model__path="models/mine",
        pretrain__tasks=[],
    )
    assert main(["rehearse"]) == 0
    out, err = capfd.readouterr()
    assert " adapting + " in out and "rehearse: adapt ran in" in err and "every stage ran" in err
    assert {path.name for path in Path("work").glob("**/runs/sudoku/*")} > set(PHASES)
    assert not Path("models/mine").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["sdar-1.7b", "a2d-0.6b", "llada2-mini"])
def test_a_base_of_another_kind_is_rehearsed(family: str, here: Path):
    assert main(words_of(family)) == 0


@pytest.mark.nightly
def test_every_stage_of_a_profile_runs_and_its_cost_is_notified(here, capfd):
    assert main([*words_of("llada-8b"), "--hardware", "4x80gb"]) == 0
    out, err = capfd.readouterr()
    assert "2 processes" in err and "every stage ran" in err and "Traceback" not in err
    assert "memory of each process: about" in out and "4 x h100-80gb: about" in out
    (text,) = (path.read_text() for path in (FOLDER / "work").glob("train-*/log.jsonl"))
    log = [json.loads(line) for line in text.splitlines()]
    assert [row["update"] for row in log] == [1, 2]
    assert log[0]["count/trajectories"] == 2 and log[0]["loss"] != 0.0
    path = FOLDER / "runs/gsm8k/d_opsd/0/test/paired.json"
    tested = json.loads(path.read_text())["protocols"]
    assert tested.keys() == {"256", "512"} and tested["256"]["base"]["n"] == 4
    assert list((FOLDER / "work/eval").glob("*/answers.1.jsonl"))  # of the second process


def test_the_cost_of_the_real_run_is_printed_before_any_stage(here, monkeypatch, capsys):
    printed = []
    stage = lambda *_: printed.append(capsys.readouterr().out)  # noqa: E731
    monkeypatch.setattr(rehearse, "_run", stage)
    assert main(["rehearse", "--profile", "llada-8b-gsm8k", "--hardware", "4x80gb"]) == 0
    assert "4 x h100-80gb: about" in printed[0] and not "".join(printed[1:])
    assert capsys.readouterr().out == ""


@pytest.mark.full
def test_a_mistake_ends_the_rehearsal_where_the_real_run_would_end(here, capfd):
    words = words_of("llada-8b")
    Path("data/external/test.jsonl").write_text('{"question": "What?", "answer": "none"}\n')
    assert main(words) == 2
    err = capfd.readouterr().err
    assert "test.jsonl:1: expected an answer that ends in `#### number`" in err
    assert "rehearse: prepare failed, as in the real run" in err and "Traceback" not in err


def test_several_processes_end_with_the_status_and_line_of_the_one_that_failed(tmp_path):
    text = (ROOT / "params.yaml").read_text().replace("processes: 1", "processes: 2")
    (tmp_path / "params.yaml").write_text(text)
    command = [sys.executable, "-m", "dopsd", "train"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 2 and "Traceback" not in found.stderr
    assert "data/sudoku/train.jsonl: no such file" in found.stderr


def begin(folder: Path, *stages: str) -> subprocess.Popen[str]:
    """A rehearsal of some stages."""
    code = "from dopsd.cli import main; from dopsd.pipeline.estimate import rehearse as r;"
    code += f"r.STAGES={stages};raise SystemExit(main.main(['rehearse', '--profile', 'embedded']))"
    words = [sys.executable, "-c", code]
    return subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True)


@pytest.mark.full
def test_two_rehearsals_of_a_profile_run_at_once_in_folders_that_are_used_again(tmp_path):
    folders = tmp_path / "work/rehearse"
    first = begin(tmp_path, "prepare")
    until((folders / "embedded/toy").is_dir)
    first.send_signal(signal.SIGSTOP)
    second = begin(tmp_path, "prepare")
    assert "every stage ran" in second.communicate()[1]
    first.send_signal(signal.SIGCONT)
    assert "every stage ran" in first.communicate()[1]
    assert {path.name for path in folders.iterdir() if path.is_dir()} == {"embedded", "embedded-2"}
    with contextlib.chdir(tmp_path), rehearse.unused_folder("embedded") as (folder, _):
        assert folder.name == "embedded" and not list(folder.iterdir())


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_no_stage_outlives_its_rehearsal(tmp_path, number, code):
    rehearsal = begin(tmp_path, "prepare", "evaluate_base")
    stages: list[psutil.Process] = []

    def has_torch(stage: psutil.Process) -> bool:
        try:
            return any("torch" in mapped.path for mapped in stage.memory_maps())
        except psutil.NoSuchProcess:  # it has just ended
            return False

    def a_stage_runs() -> bool:
        stages[:] = psutil.Process(rehearsal.pid).children()
        return any(map(has_torch, stages))

    until(a_stage_runs)
    rehearsal.send_signal(number)
    _, errors = rehearsal.communicate()  # ends when the stage, too, has closed its end of the pipe
    assert rehearsal.returncode == code and "Traceback" not in errors
    assert psutil.wait_procs(stages, timeout=300)[1] == []
    # it was stopped, not finished
    assert not (tmp_path / "work/rehearse/embedded/runs/sudoku/base.json").exists()
