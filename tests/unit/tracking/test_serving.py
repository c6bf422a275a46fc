"""The champion behind MLflow's own model server, and runs that trained all weights."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pandas
import pytest
import torch
from conftest import STAGES, as_before, built_once, in_copy, work_in_copy, write_params
from ports import free_port, until_healthy
from transformers import AutoModelForMaskedLM, AutoTokenizer

from dopsd.api.policy import load_policy
from dopsd.api.sampling import sample, trace
from dopsd.api.settings import run_settings
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.models.adapter_files import ADAPTER
from dopsd.models.checkpoint_files import INDEX
from dopsd.serving.loader import BASE, _load_pyfunc
from dopsd.tracking.client import connect, tracking_uri
from dopsd.tracking.log_uploader import mlflow_identity

pytestmark = pytest.mark.full

CHAMPION, PUZZLE = "models:/dopsd-sudoku@champion", "0410020420430020"
FILES = {"MLmodel", "README.md", ADAPTER, "adapter_config.json", "digests.json", "params.yaml"}
FILES |= {"serving.json", "input_example.json", "serving_input_example.json"}
FILES |= {"registered_model_meta"}  # MLflow writes it beside the copy


def published(folder: Path, *others: Path) -> None:
    """Copy a finished run, and publish its champion."""
    for other in others:
        target = folder / other.name if other.is_file() else folder
        (shutil.copyfile if other.is_file() else shutil.copytree)(other, target)
    with as_before(), chdir(folder):
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        publish()


def publish(**settings: object) -> str:
    """Publish the run of this folder; return the champion as a server has it."""
    import mlflow

    write_params(**settings, tracking__enabled=True)
    assert main(["publish"]) == 0
    mlflow.set_tracking_uri(tracking_uri(None))
    return mlflow.artifacts.download_artifacts(CHAMPION, dst_path="champion")


@pytest.fixture(scope="module")
def published_once(finished_once: Path, empty_database: Path, tmp_path_factory) -> Path:

    def build(folder: Path) -> None:
        published(folder / "project", finished_once, empty_database)

    return built_once(tmp_path_factory, "published", build) / "project"


@pytest.fixture
def champion(published_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The artifacts of the champion, in a copy of the project."""
    return work_in_copy(published_once, tmp_path, monkeypatch) / "champion"


@pytest.fixture
def in_store(finished_once: Path, empty_database: Path, tmp_path: Path, monkeypatch) -> Path:
    """The champion's adapter in a store of this test's own."""
    published(tmp_path / "project", finished_once, empty_database)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (stored,) = Path.cwd().glob("mlartifacts/**/MLmodel")
    return stored.with_name(ADAPTER)


def expected(temperature: float = 0.0, seed: int = 0) -> tuple[str, list[str]]:
    policy = load_policy("base/sudoku", "runs/sudoku/d_opsd/0/best", device="cpu")
    (rollout,) = sample(policy, [PUZZLE], run_settings("params.yaml"), temperature, seed=seed)
    text = policy.text.decode(rollout.completion_ids)
    return text, [step.text for step in trace(policy, rollout)]


def test_the_artifacts_hold_no_pickle_and_no_code(champion):
    files = {path.name: path.read_bytes() for path in champion.rglob("*") if path.is_file()}
    assert set(files) <= FILES and FILES - set(files) <= {"registered_model_meta"}
    for name, content in files.items():
        # the marks of pickle protocols 2 to 5, of zip (torch.save) and of HDF5 and gzip files
        assert content[:1] != b"\x80" and content[:2] not in (b"PK", b"\x1f\x8b"), name
        assert name == ADAPTER or content.decode().isprintable() or "\n" in content.decode()
    settings = run_settings(champion / "params.yaml")
    assert settings.sampling == run_settings("params.yaml").sampling


def test_a_loaded_champion_answers_as_the_sampler_does(champion):
    model, text = _load_pyfunc(str(champion)), expected(0.9, 3)[0]
    table = pandas.DataFrame({"problem": [PUZZLE, PUZZLE]})
    assert model.predict(table, {"temperature": 0.9, "seed": 3}) == [{"text": text}] * 2
    (answer,) = model.predict(table[:1], {"trace": True})
    assert answer == {"text": expected()[0], "trace": expected()[1]}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: append(folder / ADAPTER), "does not match the digest"),
        (lambda folder: append(folder / "adapter_config.json"), "does not match the digest"),
        (lambda folder: append(folder / "params.yaml"), "params.yaml: does not match the digest"),
        (lambda _: append(Path("base/sudoku/model.safetensors")), f"or set {BASE}"),
        (lambda _: Path("base/sudoku/added_tokens.json").write_text("{}"), "has no such file"),
        (lambda _: shutil.rmtree("base/sudoku"), "no such file"),
    ],
)
def test_what_is_not_the_runs_is_refused_before_it_is_loaded(champion, spoil, words):
    spoil(champion)
    with pytest.raises(DopsdError, match=words):
        _load_pyfunc(str(champion))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def test_the_base_may_be_elsewhere_and_the_same(champion, monkeypatch):
    shutil.move("base/sudoku", "elsewhere")
    monkeypatch.setenv(BASE, "elsewhere")
    assert _load_pyfunc(str(champion)).policy.max_length


def test_a_version_that_an_older_release_published_becomes_servable(in_store):
    client = connect(tracking_uri(None))
    client.set_model_version_tag("dopsd-sudoku", "1", "dopsd.flavour", "other")
    stored = in_store.with_name("MLmodel")
    stored.unlink()
    assert main(["publish"]) == 0 and stored.is_file()


@contextmanager
def served() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`mlflow models serve` in a process of its own, with the output in serve.log."""
    port = free_port()
    words = [sys.executable, "-m", "mlflow", "models", "serve", "-m", CHAMPION]
    words += ["--env-manager", "local", "-p", str(port)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"MLFLOW_TRACKING_URI": tracking_uri(None), "PATH": path}
    with Path("serve.log").open("w") as out:
        options = {"stdout": out, "stderr": out, "text": True, "start_new_session": True}
        process = subprocess.Popen(words, env=env, **options)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def ask(address: str, request: object) -> dict:
    body = json.dumps(request).encode()
    call = Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
    with urlopen(call, timeout=300) as answer:
        return json.load(answer)


def test_mlflow_serves_the_champion_and_refuses_a_tampered_one(in_store):
    greedy, warm = expected(), expected(0.9, 3)
    with served() as (address, process):
        until_healthy(f"{address}/ping", process, Path("serve.log"))
        table = {"columns": ["problem"], "data": [[PUZZLE]]}
        params = {"temperature": 0.9, "seed": 3}
        answer = ask(address, {"dataframe_split": table, "params": params})
        assert answer == {"predictions": [{"text": warm[0]}]}
        records = [{"prompt": PUZZLE}]
        answer = ask(address, {"dataframe_records": records, "params": {"trace": True}})
        assert answer == {"predictions": [{"text": greedy[0], "trace": greedy[1]}]}
        assert ask(address, {"prompt": PUZZLE, **params}) == [{"text": warm[0]}]
        with pytest.raises(HTTPError) as refused:
            ask(address, {"dataframe_records": [{"problem": "no puzzle"}]})
        assert refused.value.code == 400 and b"0 for blanks" in refused.value.read()
    append(in_store)
    with served() as (_, process):
        assert process.wait(600) != 0
    lines = [line for line in Path("serve.log").read_text().splitlines() if line[:6] == "dopsd:"]
    assert len(lines) == 1 and "does not match the digest" in lines[0]


BEST = Path("runs/sudoku/d_opsd/0/best")
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
    work_in_copy(trained, tmp_path, monkeypatch)


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
    champion = publish(**ALL)
    card = (Path(champion) / "README.md").read_text()
    assert "All weights, trained from" in card and "LoRA: none: all weights trained" in card
    assert "--merged" not in card
    params = load_params()
    logged = mlflow_identity(params.run("sudoku", "d_opsd", 0), params.tracking).params
    assert logged["train.weights"] == "all" and "lora.r" not in logged
    answer = _load_pyfunc(champion).predict(pandas.DataFrame({"problem": [PUZZLE]}))
    policy = load_policy("base/sudoku", BEST, device="cpu")
    (rollout,) = sample(policy, [PUZZLE], run_settings("params.yaml"), 0.0, seed=0)
    assert answer == [{"text": policy.text.decode(rollout.completion_ids)}]
    index = Path(champion) / INDEX
    index.write_text(index.read_text() + " ")
    with pytest.raises(DopsdError, match="does not match the digest"):
        _load_pyfunc(champion)
