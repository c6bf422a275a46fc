"""`dopsd compare`: intervals paired by problem and seed, curves against costs, gaps are said."""

import json
import re
from pathlib import Path
from unittest.mock import Mock

import numpy
import pytest
from cells import finished, trained_with
from conftest import small_params

from dopsd.analysis.results import COSTS, Finished, paired_over_seeds
from dopsd.cli.main import main
from dopsd.config.params import CompareConfig, Params
from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.core.tables import write_table
from dopsd.pipeline.results import compare, run_report


@pytest.fixture
def folder(request, here, monkeypatch) -> Params:
    if "figure" not in request.function.__name__:  # half of the time of a comparison
        monkeypatch.setattr(compare, "save_figure", lambda figure, path: path.write_bytes(b""))
    name = lambda run: f"train-{run.key.method}{run.key.seed}"  # noqa: E731
    by_name = lambda run: Mock(is_current=lambda made: made["fingerprint"] == name(run))  # noqa: E731
    for module in (compare, run_report):
        monkeypatch.setattr(module, "identify", by_name)
    matrix = {"matrix__methods": ["d_opsd", "rft"], "matrix__seeds": [0, 1, 2]}
    return Params.model_validate(small_params(**matrix))


def html() -> str:
    return (compare.OUT / "comparison.html").read_text()


def test_methods_are_paired_by_problem_over_the_seeds_that_both_have(folder):
    finished("d_opsd", 0, {"a": 1.0, "b": 0.5})
    finished("d_opsd", 1, {"a": 0.5, "b": 0.5})
    finished("rft", 0, {"b": 0.0, "a": 0.5})
    finished("rft", 1, {"b": 0.5, "a": 0.0})
    finished("d_opsd", 2, {"a": 0.0, "b": 0.0})  # rft has no seed 2
    text = compare.compare(folder, [])
    # seed 0: 0.5, 0.5; seed 1: 0.5, 0. One draw in 16 takes seed 1 and problem b twice, and has 0
    published = text.split("PUBLISHED, not run here")[1].splitlines()
    assert "| sudoku | d_opsd | 23.9 | 20.6 | 425 |" in published
    pair = "| sudoku | d_opsd | rft | 2 | +37.5 [+0.0, +50.0] | +50.0, +25.0 | cannot tell |"
    assert pair in text.splitlines()
    # seed 1 over its two problems: 0.25 / sqrt(2)
    (row,) = json.loads(Path("reports/compare/comparison.json").read_text())["pairs"]
    assert row["by_seed"] == [0.5, 0.25] and row["problem_error"] == pytest.approx(0.25 / 2**0.5)
    row = "| sudoku/d_opsd/0 | 2 | 25.0 [20.0, 30.0] | 75.0 [65.0, 85.0] | +50.0 [+40.0, +60.0] |"
    assert f"{row} 2 | 2 | 4 | 160 | from the cache |" in text.splitlines()


def test_an_interval_between_methods_covers_the_difference_of_seeds():
    """No difference, seeds spread by 2 points: problems alone exclude 0 in 48 of these 100."""
    draw, missed = numpy.random.default_rng(0), 0
    for _ in range(100):
        gaps = draw.normal(0, 0.03, (4, 1)) + draw.normal(0, 0.1, (4, 64))
        _, (low, high) = paired_over_seeds(gaps, 200)
        missed += not low <= 0 <= high
    assert missed <= 15


def test_runs_of_other_settings_or_other_problems_are_not_mixed(folder, capsys):
    finished("d_opsd", 0, {"a": 1.0, "b": 0.5})
    finished("rft", 0, {"a": 1.0, "c": 0.5})
    with pytest.raises(DopsdError, match="d_opsd/0 and sudoku/rft/0 have different problems"):
        compare.compare(folder, [])
    write_json(Path("runs/sudoku/rft/0/train.json"), {"fingerprint": "train-of-before"})
    text = compare.compare(folder, [])
    assert "rft/0: skipped, made with other settings" in capsys.readouterr().err
    assert "rft" not in text


H200 = {"device": "NVIDIA H200", "batch_size": 16, "dtype": "bfloat16"}
H200 |= {"packages": {"dopsd": "0.2.0"}}
A100 = H200 | {"device": "NVIDIA A100"}


def test_runs_measured_on_two_devices_are_compared_with_a_warning(folder):
    """The base's own answers differ there, too: between two kinds of GPU they nearly always do."""
    for seed in (0, 1):
        finished("d_opsd", seed, {"a": 1.0, "b": 0.5}, measured_on=(H200, H200))
    assert "Warning" not in compare.compare(folder, [])
    finished("rft", 0, {"a": 1.0, "b": 0.5}, base_score=0.5, measured_on=(A100, A100))
    finished("rft", 1, {"a": 1.0, "b": 0.5}, measured_on=(H200, A100))
    text = compare.compare(folder, [])
    warnings = json.loads((compare.OUT / "comparison.json").read_text())["warnings"]
    page = html()
    for start, warning in zip(("sudoku/rft/1: device", "device differs"), warnings, strict=True):
        assert warning.startswith(start) and "NVIDIA A100" in warning and "NVIDIA H200" in warning
        assert f"Warning: {warning}\n" in text and warning in page


def test_other_answers_of_the_base_on_one_device_are_another_base(folder):
    finished("d_opsd", 0, {"a": 1.0}, measured_on=(H200, H200))
    finished("d_opsd", 1, {"a": 1.0}, base_score=0.5, measured_on=(A100, A100))
    finished("rft", 0, {"a": 1.0}, base_score=0.75, measured_on=(A100, A100))
    with pytest.raises(DopsdError, match="d_opsd/1 and sudoku/rft/0 have different answers of"):
        compare.compare(folder, [])
    write_json(Path("runs/sudoku/d_opsd/1/train.json"), {"fingerprint": "train-of-before"})
    assert "Warning: device differs" in compare.compare(folder, [])


@pytest.mark.parametrize(
    ("there", "base_files", "said"),
    [
        (H200 | {"batch_size": 8}, "01", "different answers of the base"),
        (H200 | {"packages": {"dopsd": "0.3.0"}}, "01", "different answers of the base"),
        (H200 | {"dtype": "float32"}, "01", "different answers of the base"),
        (A100, "23", "have different bases; run both with the same"),
    ],
)
def test_only_another_device_excuses_other_answers_and_never_another_base(
    folder, there, base_files, said
):
    finished("d_opsd", 0, {"a": 1.0}, measured_on=(H200, H200))
    finished("rft", 0, {"a": 1.0}, base_score=0.5, measured_on=(there, there))
    path = Path("runs/sudoku/rft/0/test/paired.json")
    write_json(path, json.loads(path.read_text()) | {"base_files": base_files})
    with pytest.raises(DopsdError, match=said):
        compare.compare(folder, [])


def test_costs_are_summed_to_each_checkpoint(folder):
    finished("d_opsd", 0, {"a": 1.0}, seconds=[3.0, 4.5])
    run = Finished("sudoku", "d_opsd", 0)
    assert [run.curve(cost) for cost in COSTS] == [[(0, 0.25), (x, 1.0)] for x in (2, 4, 7.5)]
    log = Path("work/train-d_opsd0/log.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0]["time/borrowed_seconds"] = 10.0  # what another run had recorded for this one
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.curve("seconds") == [(0, 0.25), (17.5, 1.0)]


def test_the_command_writes_table_and_figure_and_names_what_is_not_there(folder, capsys, refusal):
    Path("params.yaml").write_text(json.dumps(folder.model_dump()))
    finished("d_opsd", 0, {"a": 1.0, "b": 0.5})
    compare.OUT.parent.mkdir()
    compare.OUT.symlink_to("../elsewhere")
    for words in ([], ["sudoku/d_opsd/0", "sudoku/d_opsd/00"]):  # again, and one run twice
        assert main(["compare", *words]) == 0
        assert capsys.readouterr().out.count("| sudoku/d_opsd/0 |") == 1
    assert compare.OUT.is_symlink()
    written = {f"comparison.{kind}" for kind in ("html", "json", "md")} | {"accuracy.png"}
    assert {path.name for path in compare.OUT.iterdir()} == written
    before = (compare.OUT / "comparison.md").read_bytes()
    wrong = {
        "sudoku/rft/0": "rft/0/train.json: no such file",
        "sudoku": "task/method/seed",
        "chess/rft/0": "chess: unknown; there is",
    }
    for word, said in wrong.items():
        assert said in refusal("compare", word)
    assert (compare.OUT / "comparison.md").read_bytes() == before


def test_costs_until_the_baselines_best_and_means_over_seeds(folder):
    for seed, (ours, theirs) in enumerate([(0.75, 0.5), (0.25, 0.5)]):
        finished("d_opsd", seed, {"a": ours, "b": ours}, seconds=[1.0, 2.0])
        finished("diffu_grpo", seed, {"a": theirs, "b": theirs}, seconds=[4.0, 4.0])
    finished("rft", 0, {"a": 0.25, "b": 0.5})
    names = [f"sudoku/{method}/{seed}" for method in ("d_opsd", "diffu_grpo") for seed in (0, 1)]
    lines = compare.compare(folder, [*names, "sudoku/rft/0"]).splitlines()
    both = "| 50.0 [25.0, 75.0] | +25.0 [+0.0, +50.0] |"  # of seeds with +50 and 0
    assert f"| sudoku | d_opsd | 2 {both} 2 | 2 | 4 | 160 | 3 |" in lines
    assert "| sudoku | d_opsd | 2 | 50.0 | 2 | 2 | 4 | 160 | 3 |" in lines
    assert "| sudoku | diffu_grpo | 2 | 50.0 | 2 | 2 | 4 | 160 | 8 |" in lines
    assert f"| sudoku | rft | 1 | 50.0 |{' not reached |' * 5}" in lines
    found = json.loads((compare.OUT / "comparison.json").read_text())
    cost = {"updates": 2, "trajectories": 2, "rollouts": 4, "sampled_tokens": 160, "seconds": 3.0}
    expected = {"task": "sudoku", "method": "d_opsd", "seeds": 2, "best": 0.5, "cost": cost}
    assert found["reached"][0] == expected
    pair = {"first": "d_opsd", "second": "diffu_grpo", "difference": 0.0}
    assert found["pairs"][0].items() >= pair.items()
    # of one seed: the report's own
    assert found["means"][2]["trained"][1] == found["runs"][4]["trained_interval"]


def test_the_base_itself_is_not_a_checkpoint_that_reaches_anything(folder):
    finished("diffu_grpo", 0, {"a": 0.25, "b": 0.0})  # worse than its base
    finished("rft", 0, {"a": 0.0, "b": 0.0})
    lines = compare.compare(folder, ["sudoku/diffu_grpo/0", "sudoku/rft/0"]).splitlines()
    assert "| sudoku | diffu_grpo | 1 | 12.5 | 2 | 2 | 4 | 160 | from the cache |" in lines
    assert any("best accuracy of `diffu_grpo`." in line for line in lines)
    assert f"| sudoku | rft | 1 | 12.5 |{' not reached |' * 5}" in lines


def test_a_baseline_that_is_no_method_is_named(folder):
    finished("d_opsd", 0, {"a": 1.0})
    wrong = folder.model_copy(update={"compare": CompareConfig(baseline="grpo")})
    with pytest.raises(DopsdError, match=r"compare\.baseline: grpo: unknown; there is ar_opsd"):
        compare.compare(wrong, [])


def test_runs_without_a_checkpoint_in_common_leave_the_row_out(folder):
    for seed, update in ((0, 2), (1, 1)):
        finished("diffu_grpo", seed, {"a": 0.5})
        rows = [{"update": u, "accuracy": 0.5, "protocol": "greedy"} for u in (0, update)]
        write_table(Path("runs/sudoku/diffu_grpo") / str(seed) / "curve.csv", rows)
    text = compare.compare(folder, ["sudoku/diffu_grpo/0", "sudoku/diffu_grpo/1"])
    assert "first reaches the best" not in text


def test_a_choice_on_the_test_set_and_what_is_not_finished_are_reported(folder, capsys):
    finished("d_opsd", 0, {"a": 1.0, "b": 0.5}, split="test")
    assert "chosen on THE TEST SET ITSELF" in compare.compare(folder, [])
    unfinished = "not finished yet: sudoku/d_opsd/1 sudoku/d_opsd/2 sudoku/rft/0"
    assert unfinished in capsys.readouterr().err
    thrice = compare.compare(folder, ["sudoku/d_opsd/0"] * 3)
    assert "| sudoku | d_opsd | 1 |" in thrice  # one seed
    finished("rft", 0, {"a": 1.0, "b": 0.5})
    with pytest.raises(DopsdError, match="selection splits"):
        compare.compare(folder, ["sudoku/d_opsd/0", "sudoku/rft/0"])


def test_a_finished_variant_is_compared_also_after_ablate_lost_it(folder):
    with pytest.raises(DopsdError, match="rft-mild: unknown"):
        compare.compare(folder, ["sudoku/rft-mild/0"])
    finished("rft-mild", 0, {"a": 1.0, "b": 0.5})
    assert "| sudoku | rft-mild | 1 |" in compare.compare(folder, ["sudoku/rft-mild/0"])


def test_the_page_has_the_verdict_the_tables_and_what_is_stale(folder):
    for seed, scores in enumerate([{"a": 1.0, "b": 0.5}, {"a": 0.5, "b": 0.5}]):
        finished("d_opsd", seed, scores)
        finished("rft", seed, {"a": scores["a"] - 0.5, "b": 0.0})
    compare.compare(folder, [])
    page = html()
    assert "sudoku: d_opsd is better than rft, by +50.0 points [+50.0, +50.0]" in page
    cautions = page.split('id="cautions"')[1].split("</aside>")[0]
    assert "2 of 2 runs of sudoku/d_opsd, 2 of 2 runs of sudoku/rft" in cautions
    assert "fewer answers get full marks" not in cautions
    assert "Stale run" not in page and "+50.0, +50.0</td><td>weakly sure" in page
    rows = dict(re.findall(r"<tr><td><code>([\w.]+)</code></td>(.*?)</tr>", page))
    assert rows["method.attempts"] == "<td>3</td><td>2</td>"
    assert rows["method.reveal_ratio"] == "<td>0.5</td><td>–</td>"
    assert list(rows).index("method.attempts") < list(rows).index("method.clip")
    write_json(Path("runs/sudoku/rft/0/train.json"), {"fingerprint": "train-of-before"})
    paired = Path("runs/sudoku/d_opsd/0/test/paired.json")
    tested = json.loads(paired.read_text())
    tested["protocols"]["greedy"]["base"]["whole"] = 0.25  # 0 after training
    write_json(paired, tested)
    compare.compare(folder, ["sudoku/d_opsd/0", "sudoku/rft/0"])
    page = html()
    assert "full marks. These are 0.0% of its answers, and 25" in page
    assert "Stale run sudoku/rft/0." in page and "cannot tell whether" in page


def test_accuracy_with_fewer_steps_is_beside_it(folder):
    for seed in (0, 1):
        finished("d_opsd", seed, {"a": 1.0, "b": 0.5})
        finished("rft", seed, {"a": 0.5, "b": 0.5})
        path = Path(f"runs/sudoku/d_opsd/{seed}/test/paired.json")
        tested = json.loads(path.read_text())
        greedy = tested["protocols"]["greedy"]
        for side in ("base", "best"):
            greedy[side] |= {"steps": 20.0, "protocol": greedy["base"]["protocol"]}
        half = json.loads(json.dumps(greedy))
        for side, score in (("base", 0.0), ("best", 0.5)):
            half[side] |= {"steps": 10.0, "accuracy": score}
            half[side]["per_problem"] = {"a": score, "b": score}
        tested["protocols"]["greedy-steps10"] = half
        sure = json.loads(json.dumps(half))  # takes fewer steps than the half in one seed, and more
        for side in ("base", "best"):
            sure[side] |= {"steps": 9.0 + 2 * seed, "accuracy": 0.25}
        tested["protocols"]["greedy-threshold0.9"] = sure
        if seed:
            tested["protocols"]["greedy-threshold0.8"] = sure  # of one seed alone
        write_json(path, tested)
    text = compare.compare(folder, [])
    # a: (10 * 0.25 + 10 * 0.75) / 20 = 0.5, b: 0.375; base: (10 * 0 + 10 * 0.125) / 20 = 0.0625
    points = "10 (threshold0.9): 25.0, 10: 50.0, 20: 75.0"
    row = f"| sudoku | d_opsd | 2 | 6.2 | 43.8 | +37.5 [+31.2, +43.8] | {points} |"
    assert row in text.splitlines()
    assert 'id="speed"' in html() and points in html()


def test_the_page_names_a_best_method_that_shares_no_seed(folder):
    for seed in (0, 1):
        finished("d_opsd", seed, {"a": 0.5, "b": 0.5})
        finished("rft", seed, {"a": 0.25, "b": 0.25})
    finished("ar_opsd", 2, {"a": 1.0, "b": 1.0})
    names = [f"sudoku/{name}" for name in ("d_opsd/0", "d_opsd/1", "rft/0", "rft/1")]
    compare.compare(folder, [*names, "sudoku/ar_opsd/2"])
    page = html()
    assert "sudoku: ar_opsd has the highest accuracy and shares no seed" in page
    assert "d_opsd is better than rft, by +25.0 points" in page and "No two methods" not in page
    compare.compare(folder, ["sudoku/d_opsd/0", "sudoku/ar_opsd/2"])
    assert "sudoku: no two methods share a seed, so there is nothing to compare" in html()


GDSD = {"objective": "squared", "clip_range": 4e-4}


def test_a_run_that_is_another_method_by_its_settings_has_that_name_everywhere(folder):
    """GDSD is espo with another objective. Recorded settings count, not params.yaml."""
    for method in ("espo", "espo-ratio"):
        finished(method, 0, {"a": 1.0, "b": 1.0})
    finished("rft", 0, {"a": 0.5, "b": 0.5})
    trained_with("espo", 0, espo=GDSD)
    trained_with("espo-ratio", 0, espo={"objective": "ratio"})
    text = compare.compare(folder, ["sudoku/espo/0", "sudoku/espo-ratio/0", "sudoku/rft/0"])
    ours, published = text.split("PUBLISHED, not run here", 1)
    assert "| sudoku | espo (GDSD) | 1 |" in ours and "| sudoku/espo/0 (GDSD) | 2 |" in ours
    assert "between espo (GDSD)" in ours or "whether espo (GDSD) or rft" in ours
    assert not re.search(r"\bespo(?!/0 \(GDSD\)| \(GDSD\)|-ratio)", ours)
    assert "The row `espo` above is not the method of the runs of `espo (GDSD)` here." in published
    shown = re.sub(r"<script.*?</script>|href=\"[^\"]*\"", "", html(), flags=re.DOTALL)
    assert "<code>espo (GDSD)</code>" in shown
    before = shown.split('id="published"')[0]
    assert not re.search(r"\bespo(?!/0 \(GDSD\)| \(GDSD\)|-ratio|\.)", before)
    assert "The row <code>espo</code> above is not the method of the runs of" in shown
    found = json.loads((compare.OUT / "comparison.json").read_text())
    assert found["variants"] == {"sudoku/espo/0": "GDSD"}
    assert found["means"][0]["method"] == "espo"


def test_the_page_has_the_published_tables_folded_one_for_each_protocol(folder):
    finished("d_opsd", 0, {"a": 1.0, "b": 0.5})
    text = compare.compare(folder, [])
    section = html().split('<section id="published">')[1].split("</section>")[0]
    assert "compare within one table only" in section and "<details open" not in section
    tables = section.split("<details>")[1:]
    assert len(tables) == text.count("PUBLISHED, not run here") == 3
    row = re.search(r"<tr><td>sudoku</td><td><code>d_opsd</code></td>(.*?)</tr>", tables[0])[1]
    assert re.findall(">([^<]+)<", row) == ["23.9", "20.6", "425"]
    counted = "sudoku, LLaDA-8B-Instruct, blank cells that are right, in %"
    assert text.count(counted) == 2 and counted in tables[0] and counted in tables[2]
    assert "Accuracy on sudoku is the mean score: the share of an answer that is right." in text
    assert "three examples in the prompt" in tables[2] and "94.0" in tables[2]
    assert "94.0" not in tables[0] + tables[1]
