"""A flipped bit is noticed: what can be made again is, all else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_params
from toy_runs import OUT, adapter_digests, die_at, evaluator, train

from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.models.adapter_files import ADAPTER
from dopsd.training.run_identity import identify

FIRST = OUT / "step-000002" / ADAPTER


def other_digit(path: Path, before: bytes) -> None:
    """Change one digit after this text: still JSON, and another number."""
    raw = bytearray(path.read_bytes())
    place = raw.index(before) + len(before)
    while not chr(raw[place]).isdigit():
        place += 1
    raw[place] ^= 1
    path.write_bytes(raw)


def test_an_evaluation_that_was_changed_on_the_disk_is_made_again(project, capsys):
    work, protocol = evaluator()
    whole = work.reports("evaluate", [None], protocol)
    other_digit(work.cached(None, protocol), b'"accuracy": 0.')
    assert evaluator()[0].reports("evaluate", [None], protocol) == whole
    assert f"{work.cached(None, protocol)}: does not match its digest" in capsys.readouterr().err


def test_an_answer_that_was_changed_on_the_disk_is_asked_again(project):
    work, protocol = evaluator()
    whole = work.reports("evaluate", [None], protocol)
    work.cached(None, protocol).unlink()
    other_digit(next(work.answering(None, protocol).folder.glob("answers.*")), b'"score": ')
    assert evaluator()[0].reports("evaluate", [None], protocol) == whole


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_log_comes_back_with_the_checkpoint(project, monkeypatch, is_removed):
    write_params(train__updates=5)
    assert train() == 0
    table, digests = OUT.with_suffix(".csv").read_bytes(), adapter_digests()
    scratch = identify(load_params().run("sudoku", "d_opsd", 0)).folder
    scratch.rename(scratch.with_name("other"))
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        die_at(patch, 3)
        train()
    if is_removed:  # as a power cut may do
        (scratch / "log.jsonl").unlink()
    else:
        other_digit(scratch / "log.jsonl", b'"loss": ')
    assert train() == 0
    assert (OUT.with_suffix(".csv").read_bytes(), adapter_digests()) == (table, digests)


def test_a_result_with_a_flipped_bit_is_refused_with_its_repair(project, capsys):
    assert train() == 0
    raw = bytearray(FIRST.read_bytes())
    raw[-7] ^= 4
    FIRST.write_bytes(raw)
    capsys.readouterr()
    assert main(["evaluate"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"dopsd: {FIRST}: does not match its digest")
    again = "dopsd train --task sudoku --method d_opsd --seed 0"  # DVC keeps no such checkpoint
    assert f"run `{again}` to restore" in said and said.endswith("(D407)")
    assert main(again.split()[1:]) == main(["evaluate"]) == 0
