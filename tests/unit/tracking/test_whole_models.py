"""A run that trained all weights, in every command that takes a checkpoint."""

import json
import shutil
from pathlib import Path

import pandas
import pytest
import torch
from conftest import STAGES, built_once, in_copy, write_params
from transformers import AutoModelForMaskedLM, AutoTokenizer

from dopsd.api.policy import load_policy
from dopsd.api.sampling import sample
from dopsd.api.settings import run_settings
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.models.checkpoint_files import INDEX
from dopsd.serving.loader import _load_pyfunc
from dopsd.tracking.client import tracking_uri
from dopsd.tracking.log_uploader import identity

pytestmark = pytest.mark.full

BEST, PUZZLE = Path("runs/sudoku/d_opsd/0/best"), "0410020420430020"
IDS = torch.arange(5, 21)[None]
ALL = {"train__weights": "all", "train__learning_rate": 0.01}


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:

    def build(folder: Path) -> None:
        with in_copy(prepared, folder):
            write_params(**ALL)
            for stage in STAGES:
                assert main([stage]) == 0, stage

    return built_once(tmp_path_factory, "all-weights", build) / "project"


@pytest.fixture
def whole(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(trained, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@torch.inference_mode()
def logits(folder: Path | str, adapter: Path | None = None) -> torch.Tensor:
    return load_policy(folder, adapter, device="cpu").core(input_ids=IDS).logits


def test_an_export_is_a_model_of_plain_transformers_with_the_same_logits(whole, capsys, refusal):
    words = ["export", "--adapter", str(BEST), "--out", "out"]
    assert "leave out --merged" in refusal(*words, "--merged")
    assert main(words) == 0
    assert "rounding error is 0.000% of the training's change" in capsys.readouterr().err
    plain = AutoModelForMaskedLM.from_pretrained("out").eval()
    with torch.inference_mode():
        assert torch.equal(plain(input_ids=IDS).logits, logits("base/sudoku", BEST))
    assert not torch.equal(logits("base/sudoku", BEST), logits("base/sudoku"))
    assert torch.equal(logits("out"), logits("base/sudoku", BEST))
    AutoTokenizer.from_pretrained("out")
    assert main(["export", "--adapter", str(BEST), "--out", "half", "--dtype", "bfloat16"]) == 0
    said = capsys.readouterr().err
    assert "rounding error is" in said and "0.000%" not in said


def test_commands_on_one_checkpoint_take_it(whole, capsys, refusal):
    for words in (["sample"], ["evaluate", "--json"]):
        assert main([*words, "--adapter", str(BEST)]) == 0
    said = capsys.readouterr().out
    report = json.loads(said[said.index("{\n") :])
    chosen = json.loads((BEST / "select.json").read_text())
    assert report["accuracy"] == chosen["accuracy"]
    assert "holds all weights" in refusal("evaluate", "--merged", "--adapter", str(BEST))
    assert main(["summary"]) == 0


def test_a_push_sends_one_model_and_the_report_names_all_weights(whole, capsys, refusal):
    assert "leave out --merged" in refusal("push", "me/it", "--merged", "--dry-run")
    assert main(["push", "me/it", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "Training changes all of them." in Path("reports/sudoku-d_opsd-0.html").read_text()
    names = {"config.json", "model.safetensors", "tokenizer.json", "README.md", "report.html"}
    assert all(name in said for name in names) and "adapter_config.json" not in said


def test_a_published_champion_is_served_and_its_card_names_all_weights(whole, empty_database):
    shutil.copyfile(empty_database, "mlflow.db")
    write_params(**ALL, tracking__enabled=True)
    assert main(["publish"]) == 0
    import mlflow

    mlflow.set_tracking_uri(tracking_uri(None))
    best = "models:/dopsd-sudoku@champion"
    champion = mlflow.artifacts.download_artifacts(best, dst_path="champion")
    card = (Path(champion) / "README.md").read_text()
    assert "All weights, trained from" in card and "LoRA: none: all weights trained" in card
    assert "--merged" not in card
    params = load_params()
    logged = identity(params.run("sudoku", "d_opsd", 0), params.tracking).params
    assert logged["train.weights"] == "all" and "lora.r" not in logged
    answer = _load_pyfunc(champion).predict(pandas.DataFrame({"problem": [PUZZLE]}))
    policy = load_policy("base/sudoku", BEST, device="cpu")
    (rollout,) = sample(policy, [PUZZLE], run_settings("params.yaml"), 0.0, seed=0)
    assert answer == [{"text": policy.text.decode(rollout.completion_ids)}]
    index = Path(champion) / INDEX
    index.write_text(index.read_text() + " ")
    with pytest.raises(DopsdError, match="does not match the digest"):
        _load_pyfunc(champion)
