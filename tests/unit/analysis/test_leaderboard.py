"""The leaderboard: its numbers are those of the results and of MLflow, and it claims no more."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, needs_chromium
from conftest import ROOT, write_params
from glossary_checks import check, table
from tournaments import BASES, SUDOKU, pair, results

from dopsd.analysis.html_report.leaderboard_board import Board
from dopsd.analysis.html_report.leaderboard_charts import entry_colours, mean_points
from dopsd.analysis.html_report.leaderboard_headlines import headlines
from dopsd.analysis.html_report.leaderboard_words import limits
from dopsd.cli.main import main
from dopsd.core.files import write_json
from dopsd.core.percent import ends, percent
from dopsd.pipeline.leaderboard_schema import Results
from dopsd.tracking.client import connect, tracking_uri

FILE, PAGE = Path("reports/tournament/results.json"), Path("reports/leaderboard.html")


@pytest.fixture
def tournament(project: Path, empty_database: Path) -> Path:
    """A project with the results of a tournament, and with an sqlite file for MLflow."""
    shutil.copyfile(empty_database, "mlflow.db")
    write_params(tracking__enabled=True)
    write_json(FILE, results())
    return project


def board(**changes: Any) -> Board:
    """The hand-made results as they are read, with other rows."""
    return Board(Results.model_validate(results() | changes).model_dump())


def text_of(markup: str) -> str:
    return html.unescape(" ".join(re.sub("<[^>]*>", " ", markup).split()))


def table_rows(page: str, name: str) -> dict[str, list[str]]:
    """The cells of a table of standings as markup, by entry."""
    part = page.split(f'id="{name}"')[1].split("</table>")[0]
    rows = re.findall(r'<tr data-entry="(\w+)">(.*?)</tr>', part, re.DOTALL)
    return {entry: re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for entry, row in rows}


def run_part(page: str, name: str) -> str:
    """The markup of a run, by its anchor."""
    return page.split(f'<details id="{name}">')[1].split("</details>")[0]


def test_page_file_and_mlflow_have_the_same_numbers(tournament):
    assert main(["leaderboard", "--publish"]) == 0
    page, client = PAGE.read_text(), connect(tracking_uri(None))
    rows = table_rows(page, "sudoku-tokens")
    assert list(rows) == [
        "sft",
        "infill",
        "d_opsd",
    ]  # sft samples nothing
    for entry, mean in (("infill", "68.0"), ("d_opsd", "58.0"), ("sft", "75.0")):
        _, _, seeds, accuracy, over, *_ = rows[entry]
        by_seed = re.findall(r'<a href="#([\w-]+)" title="seed \d">([\d.]+)</a>', accuracy)
        assert text_of(accuracy).split()[0] == mean
        assert int(text_of(seeds)) == len(by_seed) == len(SUDOKU[entry])
        gain = float(mean) / 100 - BASES["sudoku"]
        interval = ends([gain - 0.04, gain + 0.04], "+")
        assert text_of(over) == f"{percent(gain, '+')} {interval}"
        for (anchor, value), in_file in zip(by_seed, SUDOKU[entry], strict=True):
            assert value == percent(in_file)
            run_id = re.search(r'href="[^"]*/runs/(\w+)"', run_part(page, anchor))[1]
            run = client.get_run(run_id)
            assert percent(run.data.metrics["tournament/tokens/test_accuracy"]) == value
            assert anchor == "run-{task}-{entry}-{seed}".format(**run.data.tags)
    assert text_of(rows["d_opsd"][5]) == "1,000 by 1 of 5 seeds"
    assert text_of(rows["infill"][5]) == "≤ 400 by 1 of 5 seeds"  # by its first checkpoint
    assert text_of(rows["infill"][7]) == "10 best of 2"
    assert text_of(rows["infill"][0]) == "2. Answer infilling"
    assert text_of(rows["sft"][0]) == "1. SFT samples no tokens"
    assert [text_of(cell) for cell in rows["sft"][5:]] == [
        "spends none",
        "20 by 1 of 2 seeds",
        "10 best of 2",
        "0 20 / 30 s",
    ]
    in_seconds = table_rows(page, "sudoku-seconds")
    assert text_of(next(iter(in_seconds.values()))[0]) == "1. SFT"
    assert text_of(table_rows(page, "countdown-tokens")["d_opsd"][4]) == "+7.0 no interval yet"
    shown = run_part(page, "run-sudoku-infill-0")
    assert "<code>method.infill.unheard_of</code></td><td>8</td><td>absent</td>" in shown
    curve = re.findall(r"<td[^>]*>([^<]*)</td>", shown.split('class="curve"')[1])
    assert curve[7:12] == ["10", "68.0", "40", "400", "20"]
    run_id = re.search(r'href="[^"]*/runs/(\w+)"', shown)[1]
    for metric, values in (
        ("eval/accuracy", [0.5, 0.68, 0.67]),
        ("count/tokens", [0, 400, 800]),
        ("time/cpu_seconds", [0, 20, 40]),
    ):
        history = client.get_metric_history(run_id, metric)
        points = [(point.step, point.value) for point in sorted(history, key=lambda p: p.step)]
        assert points == list(zip((0, 10, 20), values, strict=True))


def test_the_committed_results_make_a_page(project):
    assert main(["leaderboard", "--results", str(ROOT / "benchmarks/tournament/results.json")]) == 0
    page = PAGE.read_text()
    assert list(table_rows(page, "sudoku-tokens"))[:3] == ["sft", "infill", "own"]
    assert "Test scored on 2026-11-25" in page


def test_publishing_twice_changes_nothing_and_the_page_is_an_artifact(tournament, capsys):
    def state() -> dict[str, int]:
        client = connect(tracking_uri(None))
        experiment = client.get_experiment_by_name("dopsd-tournament").experiment_id
        return {
            f"{run.info.run_id} {name}": len(client.get_metric_history(run.info.run_id, name))
            for run in client.search_runs([experiment])
            for name in run.data.metrics or ["no metrics"]
        }

    assert main(["leaderboard", "--publish"]) == 0
    first = state()
    logged = {name.split(" ", 1)[1] for name in first} - {"no metrics"}
    check(table("Tournament runs in MLflow"), logged)
    assert len({name.split()[0] for name in first}) == len(results()["runs"]) + 1
    assert main(["leaderboard", "--publish"]) == 0
    assert state() == first
    address = capsys.readouterr().err.split()[-1]
    files = [f.path for f in connect(tracking_uri(None)).list_artifacts(address.split("/")[-1])]
    assert files == ["leaderboard.html"]
    page = PAGE.read_text()
    assert main(["leaderboard"]) == 0  # remembers the links
    assert PAGE.read_text().count("/#/experiments/") == page.count("/#/experiments/") > 0
    changed = results()
    for run in changed["runs"]:
        run["fingerprint"] = "train-of-later"
    write_json(FILE, changed)
    assert main(["leaderboard"]) == 0
    assert "/#/experiments/" not in PAGE.read_text()


def test_a_metric_that_was_measured_again_is_added(tournament):
    assert main(["leaderboard", "--publish"]) == 0
    again = results()
    for run in again["runs"]:
        run["curve"][1]["accuracy"] = 0.625
    write_json(FILE, again)
    assert main(["leaderboard", "--publish"]) == 0
    client = connect(tracking_uri(None))
    experiment = client.get_experiment_by_name("dopsd-tournament").experiment_id
    runs = client.search_runs([experiment], "tags.source = 'tournament'")
    history = client.get_metric_history(runs[0].info.run_id, "eval/accuracy")
    assert [p.value for p in history if p.step == 10][-1] == 0.625 and len(history) == 4


def test_only_pairs_that_may_be_claimed_are_claimed():
    sudoku, countdown, chains = headlines(board())
    assert sudoku.grounds == "2 to 5 seeds for each entry, on test"
    assert sudoku.sentences == [
        "At equal sampled tokens: SFT is better than d-OPSD (which knows reward, not solution) by"
        " +10.0 points [+6.0, +14.0], over 5 seeds. Answer infilling is better than d-OPSD (which"
        " knows reward, not gold answer) by +10.0 points [+6.0, +14.0], over 5 seeds.",
        "At equal CPU seconds: no claim.",
    ]
    lost = pair("tokens", "sudoku", "infill", "d_opsd", difference=-0.1)
    both = board(pairs=[pair("tokens", "sudoku", "d_opsd", "infill"), lost])
    first, second = headlines(both)[0].sentences[0].split(", over 5 seeds.")[:2]
    assert "Answer infilling is better than d-OPSD" in first  # in the order of the standings
    assert "d-OPSD (which" not in second and "d-OPSD is better than Answer infilling" in second
    assert countdown.grounds.endswith("on validation only: the test has not run")
    assert countdown.sentences == [
        "No claim: two entries share at most 2 seeds, and a claim needs 5."
    ]
    assert chains.sentences == ["No claim: no entry has a result yet."]
    assert "compared on test only" in headlines(board(pairs=[]))[1].sentences[0]


def test_entries_that_were_not_shown_to_be_worse_are_named():
    few = {"seeds": 3, "is_claim": False}
    open_to = [
        pair("tokens", "sudoku", "infill", "sft", difference=-0.04, interval=[-0.06, -0.02], **few),
        pair("tokens", "sudoku", "infill", "d_opsd", difference=0.1, interval=[0.05, 0.15], **few),
    ]
    assert headlines(board(pairs=open_to))[0].sentences[-1] == (
        "No claim, but ahead of Answer infilling or not told apart from it, at equal sampled"
        " tokens: SFT +4.0 points [+2.0, +6.0] (3 seeds)."
    )


def test_no_pair_without_a_claim_yields_a_sentence(tournament):
    unclaimed = results()
    for row in unclaimed["pairs"]:
        row["is_claim"] = False
    write_json(FILE, unclaimed)
    assert main(["leaderboard"]) == 0
    page = PAGE.read_text()
    claims = text_of(page.split('<div id="claims">')[1].split("</div>")[0])
    assert "better" not in claims and claims.count("No claim:") == 3
    assert "No claim: no interval of a difference over 5 seeds or more is clear of 0." in claims
    assert '<span class="badge up">' not in page.split('id="pairs"')[1].split("</section>")[0]


def test_before_the_test_nothing_is_called_better():
    untested = [row | {"test": None} for row in results()["standings"]]
    sudoku, *_ = headlines(board(standings=untested))
    assert sudoku.grounds.endswith("on validation only: the test has not run")
    assert "was better on validation, which is no result yet, than d-OPSD" in sudoku.sentences[0]
    assert "is better" not in " ".join(sudoku.sentences)


def test_pairs_of_the_own_entry_come_first():
    pairs = board().pairs("sudoku")
    assert [(p["budget"], p["second"]) for p in pairs] == [
        ("tokens", "infill"),
        ("seconds", "infill"),
        ("tokens", "sft"),
    ]


def test_limits_name_the_entries_that_they_concern():
    text = " ".join(limits(board()))
    assert "reward: d-OPSD; gold answer: Answer infilling; solution: SFT" in text
    assert "Training of SFT samples no tokens, so the first budget does not limit it." in text
    assert "from 0 to 2 within a budget" in text and "the trials of infill" in text
    assert "at the edge of the tried ones for SFT on sudoku:" in text
    assert "not run for every entry of countdown:" in text
    entries = results()["entries"]
    entries["infill"]["knows"]["countdown"] = "reward"
    text = " ".join(limits(board(entries=entries)))
    assert "reward: d-OPSD, Answer infilling on countdown; gold answer: Answer infilling on" in text


def test_mean_curves_end_with_the_shortest_seed_and_colours_differ():
    first, second = (
        [dict(p) for p in run["curve"]] for run in board().runs("sudoku", "d_opsd")[:2]
    )
    mean = mean_points([first, second[:2]])
    assert [(p["update"], round(p["accuracy"], 4), p["tokens"]) for p in mean] == [
        (0, 0.5, 0),
        (10, 0.585, 1000),  # of 0.58 and 0.59
    ]
    entries = results()["entries"]
    many = {f"{entry}_{i}": entries[entry] for entry in entries for i in range(9)}
    row = results()["standings"][0]
    placed = [row | {"entry": name} for name in many] + results()["standings"]
    colours = entry_colours(board(entries=entries | many, standings=placed))
    assert len(set(colours.values())) == len(colours) >= 8 and next(iter(colours)) == "infill"


DAMAGED = {
    "no such file": None,
    "not valid JSON": "{",
    "version 2, expected 1": json.dumps({"version": 2}),
    "rules: Field required": json.dumps({"version": 1}),
}


@pytest.mark.parametrize("said", DAMAGED)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(project, capsys, said: str):
    if DAMAGED[said]:
        FILE.parent.mkdir(parents=True)
        FILE.write_text(DAMAGED[said])
    assert main(["leaderboard"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dopsd: {FILE}: ") and said in error and error.count("\n") == 1
    assert not PAGE.exists()


def test_a_claim_without_grounds_and_an_unknown_entry_are_refused(project, capsys):
    for change, said in (
        ({"seeds": 4}, "is_claim with 4 seeds"),
        ({"interval": [-0.1, 0.0]}, "an interval without 0"),
        ({"second": "chess"}, "entry chess is not in `entries`"),
    ):
        wrong = results()
        wrong["pairs"][0] |= change
        write_json(FILE, wrong)
        assert main(["leaderboard"]) == 2
        assert said in capsys.readouterr().err


def test_another_file_is_not_replaced_and_publishing_needs_tracking(project, capsys):
    write_json(FILE, results())
    Path("notes.html").write_text("mine")
    assert main(["leaderboard", "--out", "notes.html"]) == 2
    assert "notes.html: already exists and is not a page of dopsd" in capsys.readouterr().err
    write_params(tracking__enabled=False)
    assert main(["leaderboard", "--publish"]) == 2
    error = capsys.readouterr().err
    assert "tracking.enabled is false in params.yaml" in error and error.count("\n") == 1


def test_texts_of_the_file_cannot_become_markup_and_nothing_is_loaded(project):
    evil = results()
    evil["entries"]["infill"]["title"] = "</script><b>bold"
    evil["warnings"] = ["<img src=x>"]
    write_json(FILE, evil)
    assert main(["leaderboard"]) == 0
    page = PAGE.read_text()
    assert "<b>bold" not in page and "<img" not in page
    styles = page.split("<style>")[1].split("</style>")[0]
    assert "url(" not in styles and "@import" not in styles
    assert not re.search(r'<(script|link|img|iframe)[^>]*(src|href)="(?!data:)', page)
    assert set(re.findall(r'<a href="(.)', page)) == {"#"}


@needs_chromium
@pytest.mark.full
def test_headers_sort_by_mouse_and_keyboard(tournament, tmp_path_factory):
    assert main(["leaderboard"]) == 0
    order = (
        "return [...document.querySelectorAll('#sudoku-tokens tr[data-entry]')]"
        ".map((row) => row.dataset.entry)"
    )
    header = "document.querySelector('#sudoku-tokens').tHead.rows[0].cells[{}]"
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        for width, is_dark in ((400, True), (1280, False)):
            browser.open(PAGE, width, is_dark)
            assert browser.run("return document.documentElement.scrollWidth") <= width
            assert browser.run(order) == ["sft", "infill", "d_opsd"]
            browser.run(f"{header.format(3)}.firstElementChild.click()")
            assert browser.run(order) == ["d_opsd", "infill", "sft"]
            assert browser.run(f"return {header.format(3)}.ariaSort") == "ascending"
            browser.run(f"{header.format(3)}.firstElementChild.click()")
            assert browser.run(order) == ["sft", "infill", "d_opsd"]  # descending again
            browser.run(f"{header.format(0)}.firstElementChild.click()")
            assert browser.run(order) == ["infill", "d_opsd", "sft"]  # Answer infilling, d-OPSD
            browser.run(f"{header.format(0)}.firstElementChild.click()")
            assert browser.run(order) == ["sft", "d_opsd", "infill"]
            browser.run(f"{header.format(5)}.firstElementChild.focus()")
            for kind in ("keyDown", "keyUp"):
                browser.command(
                    "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r"
                )
            assert browser.run(order) == ["infill", "d_opsd", "sft"]  # fewer tokens first
            assert browser.run(f"return {header.format(5)}.ariaSort") == "ascending"
            assert browser.run(f"return {header.format(3)}.ariaSort") is None
            browser.run("location.hash = '#run-sudoku-infill-4'")
            is_open = "return document.getElementById('run-sudoku-infill-4').open"
            assert browser.run(f"await new Promise(requestAnimationFrame); {is_open}") is True
            assert browser.messages() == []
