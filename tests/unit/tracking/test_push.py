"""`dopsd push` and the hub's real client against a hub on 127.0.0.1."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import write_params
from hub_server import TOKEN, hub_server
from huggingface_hub import constants, snapshot_download
from peft import PeftModel
from toys import rewrite
from transformers import AutoModelForMaskedLM, AutoTokenizer

from dopsd.api.policy import load_policy
from dopsd.cli.main import main
from dopsd.core.fingerprint import sha256
from dopsd.models.adapter_files import ADAPTER

REPO, BEST = "someone/sudoku", Path("runs/sudoku/d_opsd/0/best")
PAGE = Path("reports/sudoku-d_opsd-0.html")
FILES = {".gitattributes", "README.md", "report.html"}
FILES |= {ADAPTER, "adapter_config.json", "digests.json"}


def logits(folder: Path | str, adapter: Path | None = None) -> torch.Tensor:
    policy = load_policy(folder, adapter, device="cpu")
    with torch.inference_mode():
        return policy.core(input_ids=torch.arange(5, 21)[None]).logits


def test_an_adapter_arrives_whole_in_one_commit_and_gives_the_same_logits(finished, hub, tmp_path):
    assert main(["push", REPO, "--license", "mit", "--base-model", "someone/base"]) == 0
    assert hub.commits(REPO) == 1 and hub.repos[REPO].is_private
    files = hub.files(REPO)
    assert set(files) == FILES
    assert hashlib.sha256(files[ADAPTER]).hexdigest() == sha256(BEST / ADAPTER)
    loaded = snapshot_download(REPO, local_dir=tmp_path / "copy")
    assert torch.equal(logits("base/sudoku", Path(loaded)), logits("base/sudoku", BEST))
    plain = AutoModelForMaskedLM.from_pretrained("base/sudoku")
    adapted = PeftModel.from_pretrained(plain, loaded).eval()
    with torch.inference_mode():
        by_peft = adapted(input_ids=torch.arange(5, 21)[None]).logits
    torch.testing.assert_close(by_peft, logits("base/sudoku", BEST))
    (tmp_path / "copy" / ADAPTER).write_bytes(files[ADAPTER][:-1] + b"x")
    with pytest.raises(Exception, match="does not match its digest"):
        logits("base/sudoku", Path(loaded))


def test_the_card_has_the_results_of_the_run_as_the_hub_reads_them(finished, hub):
    assert main(["push", REPO, "--license", "mit", "--base-model", "someone/base"]) == 0
    card = hub.files(REPO)["README.md"].decode()
    head = yaml.safe_load(card.split("---\n")[1])
    best = json.loads(Path("runs/sudoku/d_opsd/0/test/paired.json").read_text())["protocols"]
    best = best["greedy"]["best"]
    named = {"base_model": "someone/base", "library_name": "peft", "license": "mit"}
    assert head.items() >= named.items()
    ((metric,),) = [result["metrics"] for result in head["model-index"][0]["results"]]
    assert metric["value"] == round(best["accuracy"], 4)
    low, high = best["interval"]
    assert f"{100 * best['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]" in card
    assert 'load_policy(snapshot_download("someone/base"), adapter=' in card
    for expected in ("learning_rate: 0.003", sha256(Path("base/sudoku/model.safetensors")), REPO):
        assert expected in card
    assert str(Path.cwd()) not in card and str(Path.home()) not in card


def test_the_report_is_of_these_results_and_may_stay_at_home(finished, hub, capsys):
    PAGE.write_text("an old page")
    assert main(["push", REPO]) == 0
    report = hub.files(REPO)["report.html"].decode()
    accuracy = json.loads(Path("runs/sudoku/d_opsd/0/test/paired.json").read_text())
    accuracy = accuracy["protocols"]["greedy"]["best"]["accuracy"]
    assert f"{100 * accuracy:.1f}% on average over 12 test problems" in report
    assert "ten test problems" in capsys.readouterr().err
    assert main(["push", "someone/other", "--no-report"]) == 0
    assert "report.html" not in hub.files("someone/other")
    assert "test problems" not in capsys.readouterr().err


def test_the_report_has_no_path_of_this_machine(finished, hub):
    write_params(model__path=str(Path("base/sudoku").absolute()), train__updates=2)
    for stage in ("evaluate_base", "train", "evaluate", "select", "test"):
        assert main([stage]) == 0
    assert main(["push", REPO]) == 0
    for name in ("report.html", "README.md"):
        text = hub.files(REPO)[name].decode()
        assert str(Path.cwd()) not in text and str(Path.home()) not in text, name
    assert str(Path.cwd()) in PAGE.read_text()


def test_the_merged_model_loads_by_plain_transformers(finished, hub, tmp_path):
    assert main(["push", REPO, "--merged"]) == 0
    assert hub.commits(REPO) == 1 and not list(Path("work").glob("push-*"))
    snapshot_download(REPO, local_dir=tmp_path / "copy")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "copy").eval()
    assert AutoTokenizer.from_pretrained(tmp_path / "copy").chat_template
    with torch.inference_mode():
        merged = model(input_ids=torch.arange(5, 21)[None]).logits
    torch.testing.assert_close(merged, logits("base/sudoku", BEST))
    card = hub.files(REPO)["README.md"].decode()
    assert "import dopsd.models.llada" in card and "peft" not in card.split("---\n")[1]
    assert "Base and LoRA adapter as one model" in card and "LoRA adapter for" not in card
    assert "fits only the base" not in card


def test_a_second_push_sends_nothing_and_one_that_broke_off_continues(finished, hub, capsys):
    hub.failing = {"POST .*/commit/": 500}
    assert main(["push", REPO]) == 75
    assert hub.uploads() == 1 and hub.commits(REPO) == 0
    hub.failing = {}
    assert main(["push", REPO]) == 0
    assert hub.uploads() == 1 and hub.commits(REPO) == 1
    assert main(["push", REPO]) == 0
    assert hub.uploads() == 1 and hub.commits(REPO) == 1
    assert "has all of it already" in capsys.readouterr().err


def test_a_dry_run_lists_the_files_and_reaches_no_server(finished, hub, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", REPO, "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert hub.requests == [] and f"{(BEST / ADAPTER).stat().st_size:,}  {ADAPTER}" in said
    assert "would upload 5 files" in said and "someone/sudoku (private), branch main" in said


@pytest.mark.parametrize(
    ("pattern", "status", "code", "words"),
    [
        ("repos/create", 401, 2, "does not know the token"),
        ("repos/create", 403, 2, "may not write there"),
        ("GET /api/models", 404, 2, "no such repository"),
        ("PUT /lfs", 413, 2, "too large"),
        ("/commit/", 413, 2, "too large"),
        ("/commit/", 412, 75, "another commit came between"),
        ("/commit/", 503, 75, "cannot answer now"),
    ],
)
def test_a_refusal_is_one_line_and_publishes_nothing(
    finished, hub, capsys, monkeypatch, pattern, status, code, words
):
    hub.failing = {pattern: status}
    assert main(["push", REPO]) == code
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(f"dopsd: push: {REPO}: {status}") and words in line
    assert REPO not in hub.repos or hub.commits(REPO) == 0
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert main(["push", REPO]) == 75
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err.splitlines()[-1]


def damage(name: str) -> None:
    path = BEST / name
    path.write_bytes(path.read_bytes()[:-2] + b"!}")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda: damage(ADAPTER), f"{ADAPTER}: does not match its digest"),
        (lambda: damage("adapter_config.json"), "adapter_config.json: does not match"),
        (lambda: (BEST / "digests.json").unlink(), "no digest of adapter_config.json"),
        (lambda: write_params(train__learning_rate=0.5), "made with other settings"),
        (lambda: os.environ.pop("HF_TOKEN"), "no token of the Hugging Face hub"),
    ],
)
def test_what_cannot_be_trusted_is_refused_before_anything_is_sent(
    finished, hub, refusal, spoil, words, monkeypatch, tmp_path
):
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    spoil()
    lines = refusal("push", REPO).strip().splitlines()
    assert words in lines[-1] and hub.requests == []


def test_names_that_the_hub_does_not_take_are_refused(finished, hub, capsys):
    for words in (["no-user"], ["a/b", "--revision", "../x"], ["a/b..c"], ["a/b.git"]):
        assert main(["push", *words, "--merged"]) == 2, words
    lines = capsys.readouterr().err.splitlines()
    assert hub.requests == [] and len(lines) == 4 and "merging" not in " ".join(lines)


def test_another_checkpoint_goes_to_a_branch_with_a_card_without_results(finished, hub):
    other = next(p for p in Path("runs/sudoku/d_opsd/0/train").iterdir() if not same(p))
    assert main(["push", REPO, "--adapter", str(other), "--revision", "early"]) == 0
    assert hub.commits(REPO) == 0 and hub.commits(REPO, "early") == 1
    card = hub.files(REPO, "early")["README.md"].decode()
    assert "no results" in card and "model-index" not in card


def same(folder: Path) -> bool:
    return sha256(folder / ADAPTER) == sha256(BEST / ADAPTER)


def test_a_private_push_never_goes_to_a_public_repository_nor_over_another_kind(
    finished, hub, refusal
):
    assert main(["push", REPO, "--public"]) == 0 and not hub.repos[REPO].is_private
    assert "is public; give --public" in refusal("push", REPO)
    assert "is public; give --public" in refusal("push", REPO, "--revision", "new")
    assert list(hub.repos[REPO].branches) == ["main"]
    assert "another kind of model" in refusal("push", REPO, "--public", "--merged")
    assert hub.commits(REPO) == 1


def test_replaced_shards_leave_in_the_same_commit(finished, hub):
    assert main(["push", REPO, "--merged"]) == 0
    hub.files(REPO)["model-00001-of-00002.safetensors"] = b"old"
    hub.files(REPO)["notes.txt"] = b"of a person"
    assert main(["push", REPO, "--merged"]) == 0
    assert "model-00001-of-00002.safetensors" not in hub.files(REPO)
    assert hub.commits(REPO) == 2 and "notes.txt" in hub.files(REPO)


def test_an_adapter_of_others_is_refused(finished, hub, refusal):
    shutil.copytree(BEST, "other")
    rewrite(Path("other/adapter_config.json"), use_dora=True)
    seal = {p.name: sha256(p) for p in Path("other").iterdir() if p.name in FILES}
    Path("other/digests.json").write_text(json.dumps(seal))
    assert "only plain LoRA" in refusal("push", REPO, "--adapter", "other") and hub.requests == []


@pytest.mark.full
def test_the_command_needs_only_its_environment(finished):
    with hub_server() as hub:
        env = os.environ | {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
        env |= {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(finished / "hf")}
        env.pop("HF_HUB_OFFLINE", None)
        words = [sys.executable, "-m", "dopsd", "push", REPO]
        ran = subprocess.run(words, env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert hub.commits(REPO) == 1 and set(hub.files(REPO)) == FILES
        assert TOKEN not in ran.stdout + ran.stderr
