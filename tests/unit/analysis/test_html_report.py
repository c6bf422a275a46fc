"""Reports as HTML: their numbers are those of the results, and they load nothing."""

import contextlib
import copy
import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, needs_chromium
from conftest import as_before, write_params
from small_settings import SHORT_RUN
from workspace import Workspace

from dopsd.analysis.figures import grouped, trailing_means
from dopsd.analysis.html_report import comparison_text, page, run_page, words
from dopsd.analysis.html_report.facts import RunFacts
from dopsd.analysis.html_report.run_charts import figure_of
from dopsd.analysis.html_report.words import how_it_works
from dopsd.cli.main import main
from dopsd.config.loading import load_params
from dopsd.core.files import write_json
from dopsd.core.paths import RunKey
from dopsd.core.statistics import gap, percent, within
from dopsd.core.tables import read_table
from dopsd.pipeline.results import repeat
from dopsd.pipeline.results.run_report import _shared_solutions, gather, refresh
from dopsd.training.machine import MACHINE

KEY = RunKey("sudoku", "d_opsd", 0)
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The text of a page by element id, its tags, and the text of its scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self.open or "style" in self.open:
            self.scripts.append(data)
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def run(finished_once: Path) -> RunFacts:
    with as_before(), contextlib.chdir(finished_once):
        return gather(load_params(), KEY)


@pytest.fixture
def rendered(tmp_path: Path) -> Callable[[RunFacts], Page]:
    def render(facts: RunFacts) -> Page:
        page.write_page(tmp_path / "page.html", run_page.run_page(facts, "0"))
        return Page(tmp_path / "page.html")

    return render


def test_the_numbers_are_those_of_the_result_files(finished):
    shown = Page(KEY.page).text
    tested = json.loads((KEY.folder / "test/paired.json").read_text())
    result = tested["protocols"]["greedy"]
    for side in ("base", "best"):
        assert within(result[side]["accuracy"], result[side]["interval"]) in shown
    gained = gap(result["paired"]["difference"], result["paired"]["interval"])
    assert gained.replace(" ", " points ", 1) in shown
    assert f"Update {tested['selected']['update']} of 4" in shown
    base, best = (result[side]["per_problem"] for side in ("base", "best"))
    gaps = [best[name] - score for name, score in base.items()]
    outcomes = [sum(map(test, gaps)) for test in ((0.0).__lt__, (0.0).__eq__, (0.0).__gt__)]
    assert "higher on {}, equally on {} and lower on {}".format(*outcomes) in shown
    for number in ("40 tokens", "blocks of 8", "20 steps", "64 train", "12 validation", "12 test"):
        assert number in shown
    # what differs from the nearest profile
    assert "data.sudoku.test 12 256" in shown and "train.updates 4 100" in shown
    assert "27,424 parameters" in shown and "2,304 parameters" in shown  # counted by hand: toy
    grids = [percent(result[side]["figures"]["valid_grid"]) for side in ("base", "best")]
    assert "whole grids right {} {}".format(*grids) in shown
    answers = json.loads((KEY.folder / "test/answers.json").read_text())["answers"]
    assert len(answers) == 10
    for number, row in enumerate(answers, 1):
        sides = f"base {percent(row['base']['score'])}%, trained {percent(row['trained']['score'])}"
        assert f"Problem {number}: {sides}%" in shown and row["problem"] in shown
        assert row["base"]["score"] == result["base"]["per_problem"][f"sudoku-{row['problem']}"]
        cells = [cell for line in row["base"]["grid"] or [] for cell in line]
        if cells:  # the score is the share of blanks that are right
            blanks = [cell for cell in cells if not cell["is_given"]]
            share = sum(cell["is_right"] for cell in blanks) / len(blanks)
            assert share == row["base"]["score"]
    (part,) = json.loads(next(Path("work").glob(f"train-*/{MACHINE}")).read_text())["parts"]
    assert part["devices"][0] in shown and part["packages"]["torch"] in shown


def test_the_charts_hold_the_curve_in_every_cost(run, finished_once):
    chart = run_page.accuracy_chart(run)
    rows = read_table(finished_once / KEY.folder / "curve.csv")
    data = chart.figure.renderers[0].data_source.data
    assert list(data["accuracy"]) == [row["accuracy"] for row in rows]
    assert chart.costs == ["updates", "sampled_tokens", "seconds"]
    assert list(data["sampled_tokens"]) == [0, 240, 480] and data["seconds"][0] == 0
    titles = [chart.title for chart in run_page.training_charts(run)]
    assert titles[:2] == ["Training loss", "Gradient norm before clipping"] and len(titles) > 8
    assert [chart.title for chart in run_page.overlap_charts(run)] != []
    constants = dict(run_page.constant_metrics(run))
    assert constants["attempts used"] == "3" and "Attempts used" not in titles


def test_means_of_curves():
    points = [(update, 1.0) for update in range(1, 13)] + [(13, 13.0)]
    assert trailing_means(points) == [1.0] * 12 + [2.0]
    of_collects = [(1, 0.0), (5, 3.0), (9, 6.0), (13, 9.0)]  # 13 and the 11 updates before it
    assert trailing_means(of_collects) == [0.0, 1.5, 3.0, 6.0]
    assert grouped([(x, 2.0 * x) for x in range(20)])[:2] == [(0.5, 1.0), (2.5, 5.0)]


@pytest.mark.full
def test_nothing_is_loaded_from_a_network(finished):
    assert main(["compare", str(KEY)]) == 0
    for path in (KEY.page, Path("reports/compare/comparison.html")):
        sources = [attrs.get(LOADED[tag]) for tag, attrs in Page(path).tags if tag in LOADED]
        assert {source for source in sources if source is not None} == {"data:,"}
        styles = path.read_text().split("<style>")[1].split("</style>")[0]
        assert "url(" not in styles and "@import" not in styles
        assert path.stat().st_size < 2_500_000


def test_text_of_models_cannot_become_markup(run, rendered):
    evil = "</script><b>bold</b><!--"
    trajectory, answers = copy.deepcopy((run.trajectory, run.answers))
    trajectory["pieces"][0] = trajectory["problem"] = evil
    answers[0]["problem"] = answers[0]["base"]["text"] = evil
    answers[0]["base"]["grid"] = None
    shown = rendered(replace(run, trajectory=trajectory, answers=answers))
    assert "b" not in {tag for tag, _ in shown.tags} and shown.text.count(evil) == 4
    (data,) = [script for script in shown.scripts if '"pieces"' in script and script[0] == "{"]
    assert json.loads(data)["pieces"][0] == evil


def test_how_a_method_works_follows_its_settings(run, rendered):
    values = {"attempts": "4", "keep": "correct", "record": "until_eos", "teacher": "ema"}
    values |= {"first_temperature": "0", "retry_temperature": "0.9", "keep_threshold": "0.25"}
    values |= {"record_last_block": "true", "state_sample": "0", "divergence": "jsd"}
    values |= {"reveal_ratio": "0.25", "reveal_scope": "all_masked"}

    def text(**changes: str) -> str:
        changed = {f"x.{name}": value for name, value in (values | changes).items()}
        return how_it_works(replace(run, settings=replace(run.settings, values=changed)))

    for said in ("4 answers at temperature 0", "0.9", "Jensen-Shannon", "moving average", "25% of"):
        assert said in text()
    assert "50% of" in how_it_works(run) and "% of" not in text(reveal_ratio="0.0")
    assert "reference solution" in text(reveal_ratio="0.0", max_teacher_prompt="400")
    untaught = replace(run, settings=replace(run.settings, values={"rft.attempts": "8"}))
    assert how_it_works(untaught) == "" and "How the method works" not in rendered(untaught).text


def test_updates_that_taught_nothing_are_counted_where_the_loss_is_a_distance(run):
    losses = [0.009, 1.0, 0.009, 0.0]
    training = [{"update": n, "loss": loss} for n, loss in enumerate(losses, 1)]
    for more, expected in (
        ({"x.clip": "null"}, [("–", "2", "3")]),
        ({"x.clip": "0.05"}, []),
        ({"x.least_shift": "0.03"}, []),  # a part of its updates learns from rewards
    ):
        settings = replace(run.settings, values={"x.teacher": "base"} | more)
        chosen = {"update": 3, "accuracy": 0.3, "base_accuracy": 0.3}  # no gain
        tested = run.tested | {"selected": run.selected | chosen}
        facts = replace(run, training=training, settings=settings, tested=tested)
        assert [row[1:] for row in run_page._idle_updates(facts)] == expected


def test_costs_are_counted_until_half_of_the_gain(run):
    name = run.selected["protocol"]
    accuracies = {0: 0.2, 2: 0.3, 4: 0.5, 6: 0.45, 8: 0.6}
    curve = [{"update": u, "accuracy": a, "protocol": name} for u, a in accuracies.items()]
    chosen = run.selected | {"update": 8, "accuracy": 0.6, "base_accuracy": 0.2}
    costs = {u: {"updates": u, "sampled_tokens": 100 * u, "seconds": u / 2} for u in accuracies}
    values = run.settings.values | {"sampling.steps": "20", "sampling.gen_length": "40"}
    facts = replace(
        run,
        tested=run.tested | {"selected": chosen},
        curve=curve,
        costs=costs,
        totals=run.totals | {"updates": 8, "sampled_tokens": 800},
        settings=replace(run.settings, values=values),
    )
    rows = {row[0]: row[1:] for row in run_page._cost_rows(facts)}
    assert rows["updates"] == ("4", "8", "8") and rows["sampled tokens"] == ("400", "800", "800")
    assert rows["forwards of sampling, of one row, at most"] == ("200", "400", "400")
    assert ("2", "4", "4") in rows.values()  # seconds
    for change, half in (
        ({"start_accuracy": 0.45}, 8),
        ({"start_accuracy": 0.6}, None),  # no gain
        ({"raced": 4}, None),
    ):
        tested = run.tested | {"selected": chosen | change}
        assert run_page.half_of_gain(replace(facts, tested=tested)) == half
    started = replace(facts.description, start="runs/sudoku/d_opsd/0/best")  # which has changed
    assert run_page.half_of_gain(replace(facts, description=started)) is None


def test_problems_that_share_solutions_are_counted(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text('{"answer": "12"}\n{"answer": "21"}\n{"answer": "12"}\n')
    assert _shared_solutions(path) == 2
    path.write_text('{"answer": "12"}\n{"answer": "21"}\n')
    assert _shared_solutions(path) == _shared_solutions(tmp_path / "absent.jsonl") == 0


def other_device(run: RunFacts) -> RunFacts:
    """The base's score is from another device."""
    tested = copy.deepcopy(run.tested)
    tested["protocols"]["greedy"]["base"]["measured_on"][0]["device"] = "NVIDIA A100"
    return replace(run, tested=tested)


def changed(part: str, **values: Any) -> Callable[[RunFacts], RunFacts]:
    """Return a change of a part of the facts: a dataclass, a dictionary, or the selection."""

    def change(run: RunFacts) -> RunFacts:
        if part == "selected":
            return replace(run, tested=run.tested | {"selected": run.selected | values})
        if part == "settings":
            return replace(run, settings=replace(run.settings, **values))
        return replace(run, **values)

    return change


CURVE = [
    {"protocol": "greedy", "update": u, "accuracy": 0.5, "low": 0.4, "high": 0.6} for u in (0, 2, 4)
]
WARNINGS = {
    "Stale run": changed("settings", stale="other code"),
    "Selected on the test set": changed("selected", split="test"),
    "Collapse": changed("facts", training=[{"update": 3, "loss": 1.0, "collapsed": 1.0}]),
    "Ended early": changed("settings", planned_updates=8),
    "The last checkpoint is the best": changed("selected", update=4),
    "No better than the base": changed("selected", base_accuracy=0.9),
    "Measured differently": other_device,
}


def test_each_warning_comes_alone_with_its_reason(run, rendered):
    best = {"update": 2, "split": "validation", "accuracy": 0.8, "base_accuracy": 0.5}
    healthy = replace(changed("selected", **best)(run), curve=CURVE)
    ill = healthy = replace(healthy, training=[{"update": 3, "loss": 1.0}])
    assert words.warnings(healthy) == []
    for title, change in WARNINGS.items():
        assert [name for name, _ in words.warnings(change(healthy))] == [title]
        ill = change(ill)
    shown, many = rendered(ill).text, dict(words.warnings(ill))
    assert len(many) == len(WARNINGS) - 1  # that the last is the best is not said of a collapse
    assert all(f"{title}." in shown for title in many)


@pytest.mark.full
def test_a_run_with_other_settings_is_called_stale_and_has_no_command(finished, capsys):
    write_params(train__learning_rate=0.25)
    assert main(["summary"]) == 0
    shown = Page(KEY.page)
    assert "prompts:" not in capsys.readouterr().out  # params.yaml may have another number
    assert "Stale run." in shown.text
    assert "train.learning_rate 0.003 in this run, 0.25 now" in shown.text
    assert all(attrs.get("id") != "commands" for _, attrs in shown.tags)


@pytest.mark.parametrize(
    ("better", "worse", "said"),
    [
        (12, 3, "+15.0 points [+3.0, +27.0]"),
        (12, 3, "explain the gain. The score is better on 12 problems, equal on 45, worse on 3."),
        (4, 0, "4 of 60 scores changed, which chance can explain (sign test: p = 0.12)"),  # 2/2**4
        (6, 0, "does not explain the gain"),  # 2 / 2**6 = 0.03
    ],
)
def test_the_headline_reads_the_interval_and_how_many_answers_changed(run, better, worse, said):
    scores = [1.0] * better + [0.0] * (60 - better)
    before = [0.0] * better + [1.0] * worse + [0.0] * (60 - better - worse)
    sides = {
        name: run.comparison[name] | {"per_problem": {str(i): v for i, v in enumerate(values)}}
        for name, values in (("base", before), ("best", scores))
    }
    paired = {"difference": 0.15, "interval": [0.03, 0.27]}
    result = run.comparison | sides | {"paired": paired}
    run = replace(run, tested=run.tested | {"protocols": {"greedy": result}})
    assert said in words.headline(run)


@pytest.mark.full
def test_runs_of_earlier_versions_say_what_they_lack(finished):
    trajectory = json.loads((KEY.folder / "test/trajectory.json").read_text())
    for name in ("pieces", "grid", "has_own_teacher"):
        del trajectory[name]
    write_json(KEY.folder / "test/trajectory.json", trajectory)
    (KEY.folder / "test/answers.json").unlink()
    next(Path("work").glob(f"train-*/{MACHINE}")).unlink()
    next(Path("work").glob("train-*/log.jsonl")).unlink()
    assert main(["report"]) == 0
    shown = Page(KEY.page).text
    assert "did not keep answers" in shown and "Seconds are not shown" in shown


@pytest.mark.full
def test_a_page_is_written_again_only_when_its_inputs_change(finished, capsys):
    before = KEY.page.read_bytes()
    assert main(["summary"]) == 0
    assert KEY.page.read_bytes() == before  # Bokeh's ids are random: a new page would differ
    said = capsys.readouterr().out
    totals = json.loads((KEY.folder / "train.json").read_text())
    prompts = totals["collects"] * load_params().run(*KEY.parts).train.prompts_per_collect
    assert f"report: {KEY.page}" in said and f"  prompts: {prompts}\n" in said
    KEY.page.unlink()
    assert main(["summary"]) == 0
    assert page.INPUTS.search(KEY.page.read_text())[1] == page.INPUTS.search(before.decode())[1]
    answers = KEY.folder / "test/answers.json"
    answers.write_text(answers.read_text().replace('"score": 0', '"score": 1'))
    digest = page.INPUTS.search(KEY.page.read_text())[1]
    assert main(["report"]) == 0
    assert page.INPUTS.search(KEY.page.read_text())[1] != digest


def test_a_run_without_any_trained_checkpoint_has_a_page(run, rendered):
    run = changed("selected", update=0, accuracy=0.5, base_accuracy=0.5)(run)
    run = replace(run, curve=CURVE[:1], costs={0: run.costs[0]}, training=[])
    shown = rendered(run).text
    assert "Update 0 of 4" in shown and "No better than the base." in shown
    assert "The last checkpoint is the best" not in shown


DAMAGED = {
    "test/answers.json": '{"answers": [{}]}',
    "test/trajectory.json": '{"pieces": []}',
    "curve.csv": "update\n0\n",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_page_that_cannot_be_drawn_is_logged_and_the_command_goes_on(finished, capsys, name):
    before = KEY.page.read_bytes()
    (KEY.folder / name).write_text(DAMAGED[name])
    assert refresh(load_params(), [KEY], "summary") == {}
    assert f"summary: no report of {KEY}: " in capsys.readouterr().err
    assert KEY.page.read_bytes() == before


def test_a_run_whose_data_is_not_here_has_a_page_that_says_so(finished):
    shutil.rmtree("data")
    KEY.page.unlink()
    assert refresh(load_params(), [KEY], "summary") == {str(KEY): KEY.page}
    shown = Page(KEY.page).text
    assert "Stale run. It cannot be checked: data/sudoku" in shown
    assert "train.learning_rate 0.003" in shown  # as recorded in training


def test_the_code_of_a_page_includes_what_draws_and_formats_it(monkeypatch, tmp_path):
    before = page.digest_of({})
    names = {path.name for path in page.code_files()}
    assert {"figures.py", "tables.py", "palette.py", "statistics.py", "style.css"} <= names
    changed = tmp_path / "palette.py"
    changed.write_text("PALETTE = ()")
    rest = [path for path in page.code_files() if path.name != changed.name]
    monkeypatch.setattr(page, "code_files", lambda: [*rest, changed])
    page._code_digest.cache_clear()
    assert page.digest_of({}) != before
    page._code_digest.cache_clear()


def test_without_bokeh_results_are_still_shown(finished, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    assert main(["summary"]) == 0
    shown = capsys.readouterr()
    assert "no reports: bokeh is not installed; pip install 'dopsd[pipeline]'" in shown.err
    assert "checkpoint" in shown.out


def test_settings_that_differ_are_found_with_their_values():
    first = {"a": 1, "b": {"c": [1], "d": None}, "e": {"f": 1}}
    second = {"a": 1, "b": {"c": [2], "d": None}, "e": {"f": 1, "g": 2}}
    assert list(repeat.changed(first, second)) == [
        ("b.c", [1], [2]),
        ("e", {"f": 1}, {"f": 1, "g": 2}),  # e.g cannot be removed alone
    ]


def test_the_nearest_profile_is_named_with_its_options(here):
    assert main(["params", "--profile", "llada-8b-sudoku", "--preset", "paper"]) == 0
    assert main(["params", "--set", "train.updates=7"]) == 0
    name, changes = repeat.nearest_profile(load_params(), KEY)
    assert name == "llada-8b-sudoku --preset paper"
    assert [key for key, *_ in changes] == ["train.updates"]
    words = ["--profile", "smollm2-135m-sudoku", "--hardware", "cpu"]  # far from its other choices
    assert main(["params", *words]) == 0
    assert repeat.nearest_profile(load_params(), KEY) == (" ".join(words[1:]), [])


SURE = [0.02, 0.03, 0.02, 0.04, 0.01]


@pytest.mark.parametrize(
    ("difference", "interval", "by_seed", "said"),
    [
        (0.03, [0.01, 0.05], SURE, "a is better than b, by +3.0 points [+1.0, +5.0] over 5 seeds"),
        (0.03, [0.01, 0.05], SURE, "(sure)"),
        (-0.03, [-0.05, -0.01], [-0.03] * 2, "b is better than a, by +3.0 points [+1.0, +5.0]"),
        (-0.03, [-0.05, -0.01], [-0.03] * 2, "(weakly sure)"),
        (-0.03, [-0.05, -0.01], [-0.03], "cannot tell"),
        (0.03, [0.01, 0.05], [*SURE, -0.01], "(weakly sure)"),
        (0.03, [-0.01, 0.05], SURE, "cannot tell"),
    ],
)
def test_how_sure_a_comparison_is(difference, interval, by_seed, said):
    pair = {"task": "t", "first": "a", "second": "b", "difference": difference}
    assert said in comparison_text.verdict(pair | {"interval": interval, "by_seed": by_seed})


def test_seeds_that_differ_more_than_problems_explain_are_named():
    pair = {"task": "t", "first": "a", "second": "b", "problem_error": 0.014}
    assert "varies by a standard deviation of 3.5 points" in comparison_text.seed_spread(
        pair | {"by_seed": [0.0239, 0.0376, 0.0908]}  # standard deviation, by hand: 3.53
    )
    assert comparison_text.seed_spread(pair | {"by_seed": [0.02, 0.03, 0.04]}) == ""  # 1.0
    assert comparison_text.seed_spread(pair | {"by_seed": [0.5]}) == ""


@needs_chromium
@pytest.mark.full
def test_chromium_draws_the_pages_at_every_width(finished, tmp_path_factory):
    for stage in ("train", "evaluate", "select", "test", "report"):
        assert main([stage, "--method", "rft"]) == 0
    assert main(["compare", str(KEY), "sudoku/rft/0"]) == 0
    pages = [KEY.page, Path("reports/compare/comparison.html")]
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        for path, width, is_dark in product(pages, (400, 900, 1280), (0, 1)):
            browser.open(path, width, bool(is_dark))
            assert browser.run("return document.documentElement.scrollWidth") <= width
            assert browser.messages() == []
            if path == KEY.page and width >= 900:
                assert browser.run("return document.querySelector('#results .wide')") is None
            empty = browser.run(EMPTY_CHARTS)
            assert empty == [], (path, width, empty)
        browser.open(KEY.page, 1280)
        states = [browser.run(STATE.format(move=move)) for move in ("0", "1", "99")]
        assert [state[0] for state in states[:2]] == ["0", "1"] and states[0] != states[1]
        assert states[2][1] == 0 and "the whole answer" in states[2][2]
        assert browser.run(SWITCH) == ["sampled tokens", 480]


EMPTY_CHARTS = """
const painted = (canvas) => canvas.getContext("2d")
  .getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value);
const canvases = (node) => [...node.querySelectorAll("*")].flatMap((child) => [
  ...(child.tagName === "CANVAS" ? [child] : []),
  ...(child.shadowRoot ? canvases(child.shadowRoot) : []),
]);
return [...document.querySelectorAll("figure.chart")]
  .filter((chart) => !canvases(chart).some((canvas) => canvas.width > 200 && painted(canvas)))
  .map((chart) => chart.id);
"""
STATE = """
const slider = document.getElementById("step");
document.activeElement.blur();
slider.value = 0; slider.dispatchEvent(new Event("input"));
for (let i = 0; i < {move}; i++)
  document.dispatchEvent(new KeyboardEvent("keydown", {{key: "ArrowRight"}}));
return [slider.value, document.querySelectorAll("#student .masked, #student .new").length,
  document.getElementById("where").textContent];
"""
SWITCH = """
document.querySelector('[data-column="sampled_tokens"]').click();
const root = document.querySelector("#accuracy-0 [data-root-id]").dataset.rootId;
const figure = Bokeh.documents[0].get_model_by_id(root);
return [figure.below[0].axis_label, Math.max(...figure.renderers[0].data_source.data.x)];
"""


@pytest.mark.full
def test_the_command_in_the_page_repeats_the_run(tmp_path):
    names = ("first", "second")
    first, second = (Workspace(tmp_path / name, is_shipped=True, is_warm=True) for name in names)
    changes = [f"--set={key}={json.dumps(value)}" for key, value in SHORT_RUN.items()]
    first.run(sys.executable, "-m", "dopsd", "params", *changes)
    first.commit()
    first.run(sys.executable, "-m", "dopsd", "repro")
    source = (first.folder / KEY.page).read_text()
    commands = re.search(r'<pre id="commands">(.*?)</pre>', source, re.DOTALL)[1]
    lines = html.unescape(commands)
    assert re.match("git checkout [0-9a-f]{40}\n", lines), lines
    script = lines.partition("\n")[2].replace("dopsd ", f"{sys.executable} -m dopsd ")
    subprocess.run(["bash", "-euc", script], cwd=second.folder, env=second.env, check=True)
    results = [folder.folder / KEY.folder / "test" for folder in (first, second)]
    for name in ("paired.json", "answers.json", "trajectory.json"):
        assert (results[0] / name).read_bytes() == (results[1] / name).read_bytes()


def test_a_run_that_is_another_method_by_its_settings_says_so(finished, rendered):
    record = next(Path("work").glob("train-*/run.json"))
    recorded = json.loads(record.read_text())
    recorded["settings"]["espo"] = {"objective": "squared", "clip_range": 4e-4}
    write_json(record, recorded)
    espo = RunKey("sudoku", "espo", 0)
    shutil.copytree(KEY.folder, espo.folder)
    shown = rendered(gather(load_params(), espo)).text
    assert "espo (GDSD) on sudoku, seed 0" in shown
    assert "espo (GDSD) : GDSD: the change of" in shown and "ESPO" not in shown


def test_the_axis_of_small_losses_shows_them():
    """A format with three decimals would write 1e-8 as 0."""
    from bokeh.models import BasicTickFormatter, NumeralTickFormatter

    loss, share = (figure_of("update", "loss", is_share) for is_share in (False, True))
    assert isinstance(loss.yaxis.formatter, BasicTickFormatter)
    assert isinstance(share.yaxis.formatter, NumeralTickFormatter)
