"""Evaluations go on by problem after a kill, and do not depend on the number of ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import glossary_checks
import pytest
from conftest import write_params
from toy_runs import evaluator

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.errors import DopsdError
from dopsd.core.progress import Progress
from dopsd.evaluation import generate
from dopsd.pipeline.checkpoints import evaluate as evaluate_checkpoint
from dopsd.tasks.registry import TASKS
from dopsd.tracking.client import connect, tracking_uri


def asked_problems(monkeypatch) -> list[str]:
    """The problems that reach the sampler from here on."""
    asked: list[str] = []
    real = generate.generate_until_correct

    def counting(policy, prompts, *others):
        asked.extend(problem.id for problem, _ in prompts)
        return real(policy, prompts, *others)

    monkeypatch.setattr(generate, "generate_until_correct", counting)
    return asked


def test_a_killed_evaluation_asks_only_what_is_missing_and_ends_alike(project, monkeypatch):
    work, protocol = evaluator(attempts=2)
    ((whole,),) = work.reports("evaluate", [None], protocol)
    path = next(work.answering(None, protocol).folder.glob("answers.*"))
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 12
    path.write_text("".join(lines[:7]) + lines[7][:40])  # killed in the middle of the eighth line
    work.cached(None, protocol).unlink()
    asked = asked_problems(monkeypatch)
    again, protocol = evaluator(attempts=2)
    ((found,),) = again.reports("evaluate", [None], protocol)
    assert found == whole
    torn = [json.loads(line)["value"]["attempts"] for line in lines[7:]]
    assert sorted(asked) == sorted(attempts[0]["problem_id"] for attempts in torn)


def test_a_line_that_cannot_be_read_is_asked_again(project, monkeypatch):
    work, protocol = evaluator()
    ((whole,),) = work.reports("evaluate", [None], protocol)
    work.cached(None, protocol).unlink()
    path = next(work.answering(None, protocol).folder.glob("answers.*"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    real, torn = generate.append_lines, []

    def interleaved(where, tries):
        real(where, tries)
        if not torn:  # another writer's line in the middle of ours
            torn.append(path.write_text(path.read_text()[:-30] + "\n"))

    monkeypatch.setattr(generate, "append_lines", interleaved)
    assert evaluator()[0].reports("evaluate", [None], protocol) == [[whole]]


def test_an_adapter_with_dropout_answers_alike_every_time(project):
    lora = {"r": 4, "alpha": 4, "dropout": 0.5, "targets": ["q_proj", "up_proj"]}
    write_params(train__lora=lora, train__learning_rate=0.05)
    assert main(["train"]) == 0
    adapter = Path("runs/sudoku/d_opsd/0/train/step-000004")
    found = []
    for _ in range(2):
        work, protocol = evaluator()
        found.append(work.reports("evaluate", [adapter], protocol))
        assert not any(module.training for module in work.policy.core.modules())
        work.cached(adapter, protocol).unlink()
        answers = work.answers(adapter, protocol).values()
        found[-1].append(sorted(answer.text for tries in answers for answer in tries))
        for path in work.answering(adapter, protocol).folder.glob("*"):
            path.unlink()
    assert found[0] == found[1]


@pytest.mark.full
def test_both_entry_points_share_one_evaluation_of_an_adapter(project, monkeypatch, capsys):
    for stage in ("train", "evaluate", "select", "test"):
        assert main([stage]) == 0
    asked = asked_problems(monkeypatch)
    adapter = "runs/sudoku/d_opsd/0/best"
    assert main(["evaluate", "--adapter", adapter, "--split", "test", "--json"]) == 0
    tested = json.loads(Path("runs/sudoku/d_opsd/0/test.json").read_text())["greedy"]
    assert json.loads(capsys.readouterr().out)["accuracy"] == tested["best"] and asked == []
    others = ["--method", "d_opsd"], ["--seed", "0"], []
    for run, scored in zip(others, (adapter, adapter, "base base/sudoku"), strict=True):
        assert main(["evaluate", *run, "--split", "test"]) == 0
        assert f"{scored} on sudoku test, 12 problems" in capsys.readouterr().out
    assert main(["evaluate", "--method", "wd1", "--split", "test"]) == 2
    assert "runs/sudoku/wd1/0/best: no such folder" in capsys.readouterr().err


def test_the_published_protocol_is_how_the_numbers_were_made(project, capsys):
    short, long = (
        evaluate_checkpoint.published_protocol(256),
        evaluate_checkpoint.published_protocol(512),
    )
    assert (short.batch_size, long.batch_size, short.steps, long.steps) == (8, 4, 128, 256)
    assert not short.mask_padding and short.autocast == "float16" and short.prefill == "<reasoning>"
    assert short.text_after_eos
    assert main(["evaluate", "--protocol", "published", "--gen-length", "32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["protocol"]
    assert (found["autocast"], found["block_length"], found["steps"]) == ("float16", 32, 16)


def test_a_protocol_keeps_its_own_merging(project):
    params = load_params()
    merged = params.evaluate.protocols["greedy"].model_copy(update={"merged": True})
    section = params.evaluate.model_copy(update={"protocols": {"greedy": merged}})
    params = params.model_copy(update={"evaluate": section})
    assert evaluate_checkpoint.protocol_of(params, evaluate_checkpoint.Request("sudoku")).merged


def test_ranks_share_the_batches_and_the_answers_are_those_of_one(project, monkeypatch):
    work, protocol = evaluator()
    ((alone,),) = work.reports("evaluate", [None], protocol)
    for name in work.answering(None, protocol).folder.glob("*"):
        name.unlink()
    asked = asked_problems(monkeypatch)
    counts = []
    for rank in (1, 0):  # one after the other: the second rank does not wait for the first
        part = work.answering(None, protocol)
        part.rank, part.ranks = rank, 2
        monkeypatch.setattr(generate, "wait_for_others", lambda *_: None)
        with Progress("evaluate", 12, "problem") as progress:
            part.complete(work.policy, progress)
        counts.append(len(asked))
    assert counts == [5, 12]  # batches of 5, 5, 2: the second rank has one of them
    assert sorted(asked) == sorted(problem.id for problem in work.problems)
    work.cached(None, protocol).unlink()
    assert work.reports("evaluate", [None], protocol) == [[alone]]


def test_an_evaluation_whose_other_ranks_are_lost_ends_and_keeps_its_answers(project, monkeypatch):
    write_params(launch__timeout=1)
    work, protocol = evaluator()
    part = work.answering(None, protocol)
    part.rank, part.ranks = 0, 2
    work.with_adapter(None)
    with (
        Progress("evaluate", 12, "problem") as progress,
        pytest.raises(DopsdError, match="no other process has written anything for 1 s, and 5"),
    ):
        part.complete(work.policy, progress)
    assert len(part.found()) == 7


def test_unmasked_padding_keeps_the_batches_of_the_file(project, monkeypatch):
    work, protocol = evaluator()
    published = protocol.model_copy(update={"mask_padding": False})
    asked = asked_problems(monkeypatch)
    work.reports("evaluate", [None], published)
    assert asked == [problem.id for problem in work.problems]
    path = next(work.answering(None, published).folder.glob("answers.*"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:7]))
    work.cached(None, published).unlink()
    asked.clear()
    work.reports("evaluate", [None], published)
    # a batch with a gap is asked whole
    assert asked == [problem.id for problem in work.problems[5:]]


@pytest.mark.full
def test_any_checkpoint_is_measured_and_its_generations_can_be_scored(
    project, empty_database, capsys
):
    shutil.copyfile(empty_database, "mlflow.db")
    write_params(tracking__enabled=True)
    assert main(["evaluate", "--split", "validation", "--attempts", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["attempts"] == 2 and found["pass_at_k"] >= found["accuracy"] and found["n"] == 12
    (folder,) = Path("reports/evaluate").iterdir()
    assert main(["score", "--task", "sudoku", str(folder / "generations.jsonl"), "--json"]) == 0
    rescored = json.loads(capsys.readouterr().out)["files"][0]
    rows = [json.loads(line) for line in (folder / "generations.jsonl").read_text().splitlines()]
    assert rescored["n"] == len(rows) == 24 and {row["attempt"] for row in rows} == {0, 1}
    assert rescored["accuracy"] == pytest.approx(sum(row["score"] for row in rows) / 24)
    client = connect(tracking_uri(None))
    (run,) = client.search_runs([client.get_experiment_by_name("dopsd").experiment_id])
    assert run.data.metrics["accuracy"] == found["accuracy"]
    assert run.data.tags["kind"] == "evaluation"
    known = {**glossary_checks.table("Evaluation"), **TASKS.metrics("sudoku")}
    assert glossary_checks.undescribed(known, run.data.metrics) == []
    # cached, and not logged twice
    assert main(["evaluate", "--split", "validation", "--attempts", "2"]) == 0
    assert "pass@2" in capsys.readouterr().out
    assert len(client.search_runs([run.info.experiment_id])) == 1


def test_another_length_keeps_the_tokens_a_step_and_an_adapter_its_own_shape(project, capsys):
    assert main(["train"]) == 0
    write_params(train__lora={"r": 2, "alpha": 2, "dropout": 0.0, "targets": ["q_proj"]})
    adapter = "runs/sudoku/d_opsd/0/train/step-000004"
    assert main(["evaluate", "--adapter", adapter, "--gen-length", "24", "--merged", "--json"]) == 0
    protocol = json.loads(capsys.readouterr().out)["protocol"]
    assert (protocol["gen_length"], protocol["steps"], protocol["merged"]) == (24, 12, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gen-length", "30"], "--gen-length 30: expected a multiple of block_length 8"),
        (["--protocol", "fast"], "--protocol fast: unknown; there is published, greedy"),
        (["--merged"], "name one with --adapter"),
        (["--prompt-file", "p.txt"], "model.prompt_style compact reads no prompt file"),
        (["--model", "nowhere"], "no config.json in nowhere"),
        (["--adapter", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_request_is_one_line(project, capsys, words, said):
    assert main(["evaluate", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and len(err.strip().splitlines()) == 1
