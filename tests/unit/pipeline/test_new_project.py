"""`dopsd init`: a whole project in a new folder, or one line and nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from dopsd.cli.main import main
from dopsd.pipeline import new_project

pytestmark = pytest.mark.usefixtures("here")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def test_a_new_project_has_the_shipped_files_and_its_base_counts_as_made(capsys):
    assert main(["init", "mine"]) == 0
    assert "cd mine" in capsys.readouterr().out and [p.name for p in Path().iterdir()] == ["mine"]
    for name in ("dvc.yaml", "dvc.lock", "params.yaml", "prefect.toml"):
        assert Path("mine", name).read_bytes() == (ROOT / name).read_bytes()
    deployments = yaml.safe_load(Path("mine/prefect.yaml").read_text())["deployments"]
    by_default = {d["name"]: d.get("parameters") for d in deployments}
    assert by_default["train"] == {"profile": "params.yaml as it stands"}  # a profile overwrites it
    assert Path("mine/flows/train.py").is_file() and Path("mine/.git").is_dir()
    assert {p.name for p in Path("mine").rglob("*") if p.name == "__pycache__"} == set()
    words = [sys.executable, "-m", "dvc", "status", "--json"]
    found = subprocess.run(words, cwd="mine", capture_output=True, check=True).stdout
    pretrain = yaml.safe_load(found)["pretrain@sudoku"]
    assert pretrain == [{"changed deps": {"data/sudoku/train.jsonl": "deleted"}}]


@pytest.mark.parametrize("folder", [".", "below/this"])
@pytest.mark.full
def test_a_project_in_a_repository_belongs_to_it_takes_a_profile_and_stages_nothing(
    monkeypatch, capsys, folder
):
    git("init", "-q")
    Path("below/this").mkdir(parents=True)
    monkeypatch.chdir(folder)
    Path("other").touch()
    git("add", "other")
    Path("mine").mkdir()
    assert main(["init", "mine", "--profile", "tide-0.6b-gsm8k", "--hardware", "1x16gb"]) == 0
    download = "hf download TIDE-dllm/distill-LLaDA2-TIDE_Cross --local-dir models/"
    assert f"\n  {download}" in capsys.readouterr().out
    with monkeypatch.context() as inside:
        inside.chdir("mine")
        assert main(["check"]) == 2
    assert f"no such file; download the base: `{download}" in capsys.readouterr().err
    assert not Path("mine/.git").exists() and Path("mine/.dvc/config").is_file()
    settings = yaml.safe_load(Path("mine/params.yaml").read_text())
    assert settings["matrix"]["tasks"] == ["gsm8k"] and settings["sampling"]["batch_size"] == 64
    (staged,) = git("diff", "--cached", "--name-only").split()
    assert staged.endswith("other")
    git("add", "mine")
    assert "mine/.dvc/config" in git("diff", "--cached", "--name-only")


@pytest.mark.full
def test_a_clone_has_the_bytes_whatever_git_does_with_line_ends(monkeypatch, refusal):
    assert main(["init", "mine"]) == 0
    monkeypatch.chdir("mine")
    git("add", "-A")
    git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x")
    names = [*filter(os.path.isfile, git("ls-files").splitlines())]
    for autocrlf in ("true", "input", "false"):
        git("-c", f"core.autocrlf={autocrlf}", "clone", "-q", ".", f"../{autocrlf}")
        for name in names:
            assert Path("..", autocrlf, name).read_bytes() == Path(name).read_bytes(), name
    config = Path("base/sudoku/config.json")
    config.write_bytes(config.read_bytes().replace(b"\n", b"\r\n"))  # of an older project
    assert f"{config}: git gave it other line ends (core.autocrlf)" in refusal("check")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["full"], "init: full: exists and is not an empty folder; name a new one"),
        (["full/file"], "init: full/file: exists and is not an empty folder; name a new one"),
        ([""], "init: expected the name of a folder, found ''"),
        (["x" * 300], "File name too long: " + "x" * 300),
        (["."], "init: .: exists and is not an empty folder; name a new one"),
        (["dangling"], "init: dangling: is a link; name a new one"),
        (["none/mine"], "init: none: no such folder; make it first"),
        (["mine", "--profile", "nope"], "--profile nope: unknown; there is embedded"),
        (["mine", "--preset", "small"], "--preset and --hardware need a profile"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(words, message, refusal):
    Path("full").mkdir()
    Path("full/file").touch()
    Path("dangling").symlink_to("nowhere")
    said = refusal("init", *words)
    assert message in said and len(said.splitlines()) == 1
    assert sorted(p.name for p in Path().rglob("*")) == ["dangling", "file", "full"]


@pytest.mark.full
def test_folders_have_the_mode_of_the_umask_and_odd_names_work(capsys):
    name = "-" + "d" * 249
    before = os.umask(0o027)
    try:
        assert main(["init", "--", name]) == 0
    finally:
        os.umask(before)
    folders = [Path(name), *(path for path in Path(name).rglob("*") if path.is_dir())]
    assert {oct(f.stat().st_mode & 0o777) for f in folders if ".git" not in f.parts} == {"0o750"}
    assert f"  cd ./{name}\n" in capsys.readouterr().out


def test_without_git_nothing_is_written(monkeypatch, refusal):
    monkeypatch.setenv("PATH", "")
    assert refusal("init", "mine") == "dopsd: init: git is not installed; install git (D708)\n"
    assert [*Path().iterdir()] == []


@pytest.mark.full
def test_a_failure_in_the_middle_leaves_nothing(monkeypatch, capsys):
    def fail() -> None:
        raise OSError(28, "No space left on device", "recipes.yaml")

    monkeypatch.setattr(new_project, "write_recipes", fail)
    Path("mine").mkdir()
    assert main(["init", "mine"]) == 75
    assert [p.name for p in Path().rglob("*")] == ["mine"]
