"""`dopsd adapt`: an autoregressive model becomes the base, once, and to the same bytes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import forks
import pytest
import torch
from autoregressive_toys import save_source
from conftest import write_params
from safetensors.torch import load_file
from toys import rewrite

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.fingerprint import sha256
from dopsd.core.tables import read_table
from dopsd.models.registry import read_config
from dopsd.pipeline.stages import adapt as stage
from dopsd.training.pretraining.adapt import require_converted
from dopsd.training.run_identity import identify
from dopsd.training.run_settings import ADAPTING, DISTILLING
from dopsd.training.trainer import Trainer

BASE = Path("models/adapted")
SOURCE = Path("models/toy-ar")
LOG = Path(f"runs/sudoku/{ADAPTING}/0/train.csv")


DISTILL = {
    "adapt__distill": {"train": {"updates": 3, "checkpoint_every": 1, "prompts_per_collect": 4}}
}


FEWER = {"updates": 2, "checkpoint_every": 1, "prompts_per_collect": 4}


def write(changes: dict[str, object] | None = None, **train: object) -> None:
    """Write settings that adapt the toy, with changes of keys and of `adapt.learn.train`."""
    few = {"updates": 4, "checkpoint_every": 2, "prompts_per_collect": 4}
    settings = {"adapt__tasks": ["sudoku"], "adapt__source": str(SOURCE), "pretrain__tasks": []}
    settings |= {"adapt__dtype": "float32", "model__path": str(BASE)}
    settings |= {"adapt__learn": {"held_out_every": 2, "train": few | train}}
    write_params(**settings | (changes or {}))


@pytest.fixture
def source(project: Path) -> Path:
    """A project whose base is to be made of a tiny Llama."""
    save_source(SOURCE, "llama", num_hidden_layers=2)
    write()
    return project


def digests(folder: Path = BASE) -> dict[str, str]:
    return {path.name: sha256(path) for path in sorted(folder.iterdir())}


def test_a_base_is_made_once_and_again_if_settings_change(source, capsys):
    assert main(["check"]) == 0
    assert "no errors; `dopsd adapt` makes models/adapted" in capsys.readouterr().out
    assert main(["adapt"]) == 0
    config, first = read_config(BASE), digests()
    form = (config.model_type, config.output_shift, config.mask_token)
    assert form == ("a2d-llama", 1, "<|mask|>")
    rows = read_table(LOG)
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert ["held_out_half" in row for row in rows] == [True, False, True, True]  # and the last
    old = load_file(require_converted(load_params().adapt) / "model.safetensors")
    new = load_file(BASE / "model.safetensors")
    assert old.keys() == new.keys() and all((old[n] != new[n]).any() for n in old)
    capsys.readouterr()
    assert main(["adapt"]) == main(["estimate"]) == 0
    out, err = capsys.readouterr()
    assert "adapt: models/adapted is up to date" in err and " adapting" not in out
    write(learning_rate=1e-3)
    assert main(["check"]) == 0
    said = capsys.readouterr().out
    assert "models/adapted is of other settings or data: `dopsd adapt` makes it anew" in said
    assert main(["adapt"]) == 0
    said = capsys.readouterr().err
    assert "adapt: models/adapted is of other settings or data: making it anew" in said
    assert "sft: their loss with 0.9 of the tokens masked: " in said
    assert digests()["model.safetensors"] != first["model.safetensors"]
    assert main(["evaluate_base"]) == 0


def tokens_read(folder: Path) -> float:
    """Tokens of the first update, from its rate."""
    row = json.loads((folder / "log.jsonl").read_text().splitlines()[0])
    return row["time/tokens_per_second"] * row["time/update_seconds"]


@pytest.mark.full
def test_two_ranks_learn_what_one_learns(source):
    write(updates=2)
    run = load_params().run("sudoku", ADAPTING, 0)
    require_converted(load_params().adapt)
    words = ["train", *run.key.words]
    assert main(words) == 0
    scratch = identify(run).folder
    alone = load_file(scratch / "step-000002/model.safetensors")
    shutil.move(scratch, "alone")
    write({"launch__processes": 2}, updates=2)
    assert forks.statuses(forks.start_ranks(2, forks.command, *words)) == [0, 0], forks.output()
    both = load_file(scratch / "step-000002/model.safetensors")
    tokens = [tokens_read(folder) for folder in (Path("alone"), scratch)]
    assert tokens == pytest.approx([4 * (19 + 40)] * 2, rel=0.02)  # prompts, and answers of 40
    start = load_file(Path(run.model.path) / "model.safetensors")
    assert max((alone[n] - start[n]).abs().max() for n in alone) > 1e-5
    assert max((alone[n] - both[n]).abs().max() for n in alone) <= 1e-6


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"adapt__source": None}, "source: name the autoregressive model"),
        ({"adapt__tasks": ["chains"]}, "chains must be the first of matrix.tasks"),
        ({"model__path": "../mine"}, "model.path: ../mine: name a folder of this project"),
        ({"launch__shard": True}, "launch.shard must be false: adapting trains all weights"),
        (
            DISTILL | {"model__attention": "flash_attention_2", "model__dtype": "bfloat16"},
            "causal teacher needs model.attention",
        ),
        ({"adapt__learn": {"train": {"weights": "lora"}}}, "adapting trains all weights"),
        ({"model__path": str(SOURCE)}, "model.path: name a new folder"),
        ({"model__path": "base/sudoku"}, "model.path: base/sudoku: folders in base/"),
        ({"model__block_size": 4}, r"blocks \(model.block_size\) need 0"),
        ({"pretrain__tasks": ["sudoku"]}, "sudoku is in pretrain.tasks too"),
        ({"data__sudoku__model": {"block_size": 4}}, r"blocks \(model.block_size\) need 0"),
        ({"adapt__source": "models/none"}, "adapt.source: models/none"),
        ({"adapt__learn": {"train": {"reuse": 2}}}, "adapt.learn.train.reuse: set 1"),
        (
            {"train__prompts_per_collect": 8, "launch__processes": 8},
            "at most train.prompts_per_collect of sft-adapt",
        ),
        (
            {"adapt__learn": {"train": {"prompts_per_collect": 999}}},
            r"adapt.learn.train.prompts_per_collect: 999 problems are more than the \d+ of sudoku",
        ),
    ],
)
def test_settings_that_make_no_base_are_refused(source, changes, expected, capfd):
    write(changes)
    code = main(["check"]) or main(["adapt"])
    assert code == 2 and re.search(expected, capfd.readouterr().err)


def test_adapt_names_a_missing_source_before_the_data_are_made(source, capfd):
    write({"adapt__source": "models/none"})
    shutil.rmtree("data/sudoku")
    assert main(["adapt"]) == 2
    said = capfd.readouterr().err
    assert "adapt.source: models/none" in said
    assert "(config.json: No such file or directory); correct the path" in said


@pytest.mark.parametrize(
    ("changes", "code", "expected"),
    [
        (
            {"adapt__learn": {"train": {"updates": 3, "warmup_updates": 3}}},
            *(0, "adapt.learn.train.learning_rate is never reached; lower adapt.learn.train.warm"),
        ),
        ({"adapt__learn": {"length": 5}}, 0, r"(\d+) of \1 solutions have more than 5 tokens"),
        (
            {"adapt__learn": {"train": {"prompts_per_collect": 999}}},
            *(0, "note: .*collect: 999 problems .* with the problems on disk it is refused"),
        ),
        ({"adapt__tasks": []}, 2, "`dopsd adapt` makes it of adapt.source once adapt.tasks"),
        ({"adapt__mask_token": "<mask>"}, 0, "<mask> becomes a new token; the tokenizer has in"),
        ({"adapt__mask_token": "covered"}, 2, "covered would stand for a word of texts"),
        ({"adapt__source": "models/none"}, 2, "get one: `hf download NAME --local-dir models/NA"),
    ],
)
def test_check_says_what_one_may_not_expect_of_adapting(source, capsys, changes, code, expected):
    write(changes)
    assert main(["check"]) == code
    streams = capsys.readouterr()
    assert re.search(expected, (streams.out + streams.err).replace("\n", " "))


def test_chats_longer_than_the_length_are_counted_and_leave_nothing_to_learn(source, capsys):
    chats = Path("data/external/chats.jsonl")
    chats.parent.mkdir(exist_ok=True)
    roles, text = ("system", "user", "assistant"), "1 2 3 4 1 2 3 4"
    turns = [{"role": role, "content": text} for role in roles]
    chats.write_text((json.dumps({"messages": turns}) + "\n") * 2)
    traces = f"adapt.learn.traces={{path: {chats}}}"
    assert main(["params", "--set", traces, "--set", "adapt.learn.length=5"]) == 0
    capsys.readouterr()
    assert main(["check"]) == 0
    said = capsys.readouterr().out
    assert "adapt.learn: 2 of 2 responses have more than 5 tokens" in said
    assert "left out, and nothing is left to learn" in said
    assert main(["adapt"]) == 2
    said = capsys.readouterr().err
    assert "change the rows or method.sft.length, for `dopsd adapt` adapt.learn.length" in said


def test_texts_that_cannot_be_learnt_are_refused_before_the_conversion(source, capsys):
    rows = Path("data/external/chats.jsonl")
    rows.parent.mkdir(exist_ok=True)
    rows.write_text('{"question": "q", "response": "r"}\n{"question": "q"}\n')
    empty = rows.with_name("empty.jsonl")
    empty.write_text("")
    lone = rows.with_name("lone.jsonl")  # one chat alone is no table in one object
    turns = [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "r"}]
    lone.write_text(json.dumps({"messages": turns}) + "\n")
    for learn, said in (
        ({"traces": {"path": str(rows)}}, "chats.jsonl:2: expected columns question and response"),
        ({"traces": {"path": "data/external/no.jsonl"}}, "adapt.learn.traces"),
        ({"traces": {"path": str(empty)}}, "empty.jsonl"),
        ({"traces": {"path": str(lone)}}, "lone.jsonl:1: an unpaired surrogate in column messages"),
        ({"length": 100_000}, "adapt.learn.length: 100000 tokens leave no room for a prompt"),
    ):
        write({"adapt__learn": learn})
        for command in ("check", "adapt"):
            assert main([command]) == 2
            assert said in capsys.readouterr().err.splitlines()[-1]
    assert not list(Path("work").glob("adapt-*"))


def test_check_needs_neither_problems_nor_what_adapting_left(source, capsys):
    write(DISTILL)
    assert main(["adapt"]) == main(["check"]) == 0
    said = capsys.readouterr().out
    assert "note: models/adapted is of these settings and of the problems on disk" in said
    for folder in ("work", "data"):  # as in a new checkout with this base
        Path(folder).rename(f"{folder}.away")
        assert main(["check"]) == 0
        said = capsys.readouterr().out
        assert "`dopsd adapt` makes it anew" not in said
        first = "adapt` has converted" if folder == "work" else "prepare` has run"
        assert f"whether models/adapted is of these settings is known when `dopsd {first}" in said


def test_a_source_is_inspected(source, capsys):
    assert main(["inspect", str(SOURCE)]) == 0
    said = capsys.readouterr().out
    assert "autoregressive llama, " in said and "`dopsd adapt` makes a base of it" in said
    assert "in reserve, for adapt.mask_token: <|mdm_mask|>" in said
    assert main(["inspect", "../models/none"]) == 2
    assert "no such folder or file; name a model's folder" in capsys.readouterr().err


def test_a_folder_that_adapting_did_not_make_is_kept(source, capsys):
    shutil.copytree(SOURCE, BASE)
    before = digests()
    assert main(["check"]) == main(["adapt"]) == 2
    assert "models/adapted: is there, and not made by `dopsd adapt`" in capsys.readouterr().err
    assert digests() == before


def test_the_names_of_its_runs_are_no_variants(project, capsys):
    for method, name in (("d_opsd", "distill"), ("sft", "adapt")):
        write_params(
            ablate__method=method, ablate__variants={"default": {}, name: {}}, ablate__tables={}
        )
        assert main(["check"]) == 2
        assert f"ablate.variants.{name}: is a run of `dopsd adapt`" in capsys.readouterr().err


@pytest.mark.full
def test_other_rollouts_do_not_make_the_base_anew(source, capsys):
    assert main(["adapt"]) == 0
    others = {"sampling__steps": 10, "sampling__order": "entropy", "matrix__methods": ["sft"]}
    write(others | {"train__stop_on_collapse": True})
    assert main(["adapt"]) == 0
    assert "is up to date" in capsys.readouterr().err.splitlines()[-1]
    write({"sampling__gen_length": 48, "sampling__steps": 12})
    assert main(["adapt"]) == 0
    assert "making it anew" in capsys.readouterr().err
    frozen = {"model__quantization": "nf4", "model__dtype": "bfloat16"}  # of adapters' base
    write(DISTILL | frozen | {"train__stop_on_collapse": True})
    for name in (ADAPTING, DISTILLING):
        run = load_params().run("sudoku", name, 0)
        assert run.model.quantization == "none" and not run.train.stop_on_collapse


@pytest.mark.full
def test_a_kill_after_the_base_is_there_leaves_nothing_to_remove(source, monkeypatch):
    assert main(["adapt"]) == 0
    write(learning_rate=1e-3)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(stage, "drop_state", lambda scratch: (_ for _ in ()).throw(SystemExit(9)))
        main(["adapt"])
    assert list(Path("work").glob("train-*/step-*/trainer*"))
    assert main(["adapt"]) == 0
    assert not list(Path("work").glob("train-*/step-*/trainer*"))
    assert [path.name for path in BASE.parent.glob(".*")] == []


@pytest.mark.full
def test_a_phase_that_ends_early_ends_in_a_base(source, monkeypatch):
    write(DISTILL)
    starved = property(lambda self: self.policy.teacher_attention == "causal" and self.update == 2)
    monkeypatch.setattr(Trainer, "_is_starved", starved)
    monkeypatch.setattr(Trainer, "_give_up", lambda self: None)
    assert main(["adapt"]) == 0
    run = load_params().run("sudoku", DISTILLING, 0)
    last = load_file(identify(run).folder / "step-000002/model.safetensors")
    base = load_file(BASE / "model.safetensors")
    assert all(torch.equal(base[name], last[name]) for name in base)
    base_file = sha256(BASE / "model.safetensors")
    shutil.rmtree(BASE)
    monkeypatch.setattr(Trainer, "step", None)
    assert main(["adapt"]) == 0  # from where it ended
    assert sha256(BASE / "model.safetensors") == base_file


@pytest.mark.full
def test_an_edited_base_is_kept_and_a_removed_one_is_written_again(source, capsys):
    assert main(["adapt"]) == 0
    whole = digests()
    rewrite(BASE / "config.json", mask_token_id=3)
    edited = digests()
    assert main(["check"]) == main(["adapt"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "models/adapted: config.json is not as `dopsd adapt` wrote it; " in said
    assert digests() == edited
    shutil.rmtree(BASE)
    assert main(["adapt"]) == 0
    (BASE / "notes.txt").write_text("mine")
    assert main(["adapt"]) == 2
    said = capsys.readouterr().err
    assert "notes.txt is not as `dopsd adapt` wrote it; to use it so, set" in said
    (BASE / "notes.txt").unlink()
    assert digests() == whole and json.loads((BASE / "adapt.json").read_text())["files"]


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{{ m['content'] }", "{{ x.y }}"]
)
def test_a_template_that_cannot_be_rendered_is_named(source, template, capsys):
    settings = SOURCE / "tokenizer_config.json"
    rewrite(settings, chat_template=template)
    (SOURCE / "chat_template.jinja").unlink(missing_ok=True)
    for words in (["inspect", str(SOURCE)], ["check"], ["adapt"]):
        assert main(words) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert "models/toy-ar: the tokenizer's chat template cannot be rendered (" in said


def test_a_tokenizer_of_another_model_is_refused(source, capsys):
    shutil.rmtree(SOURCE)
    save_source(SOURCE, "llama", num_hidden_layers=2, vocab_size=50)
    assert main(["check"]) == main(["adapt"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"the tokenizer has \d+ tokens, and the model 50 rows; copy", said)


def test_a_block_causal_base_is_made_with_output_shift_0(source):
    blocks = {"adapt__output_shift": 0, "model__block_size": 8}
    write(blocks | {"method__d_opsd__reveal_scope": "all_masked"})
    assert main(["adapt"]) == 0
    config = read_config(BASE)
    assert (config.output_shift, config.block_size) == (0, 8)
    assert main(["check"]) == 0  # now that the base is here
    assert torch.isfinite(torch.tensor(float(read_table(LOG)[-1]["loss"])))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.full
def test_the_source_goes_on_to_teach_on_answers_of_the_student(source, shift, monkeypatch, capsys):
    write(DISTILL | {"adapt__output_shift": shift})
    begin = Trainer.begin

    def dying(self: Trainer) -> None:
        if self.policy.teacher_attention == "causal" and self.update == 2:
            raise SystemExit(9)
        begin(self)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Trainer, "begin", dying)
        main(["adapt"])
    assert not BASE.exists()
    assert main(["adapt"]) == 0
    params = load_params()
    learnt, taught = (params.run("sudoku", name, 0) for name in params.adapt.phases)
    assert taught.key.method == DISTILLING and taught.model.path == learnt.model.path
    start = load_file(Path(str(taught.train.start_from)) / "model.safetensors")
    end = load_file(BASE / "model.safetensors")
    assert any((start[name] != end[name]).any() for name in start)
    whole = digests()
    for folder in (BASE, Path("work")):
        shutil.rmtree(folder)
    assert main(["adapt"]) == 0
    assert digests() == whole
    capsys.readouterr()
    write({**DISTILL, "adapt__output_shift": shift, "adapt__distill": {"train": FEWER}})
    assert main(["adapt"]) == 0
    said = capsys.readouterr().err
    assert "models/adapted is of other adapt.distill: making it anew" in said
    assert "phase 1 of 2, learn: trained before" in said
    assert "phase 2 of 2, distill: 2 updates of d_opsd" in said
    assert not list(identify(learnt).folder.glob("step-*/trainer.safetensors"))  # it has ended
    assert main(["clean"]) == 0 and len(list(Path("work").glob("train-*"))) == 2
    write({"adapt__output_shift": shift}, learning_rate=1e-4)
    assert main(["clean"]) == 0 and identify(learnt).folder.is_dir()  # of the base that is there
    write({"adapt__output_shift": shift, "adapt__distill": {"train": FEWER}})
    shutil.rmtree("work")
    capsys.readouterr()
    assert main(["adapt"]) == 0
    assert "is up to date" in capsys.readouterr().err
