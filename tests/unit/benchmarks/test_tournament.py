"""benchmarks/tournament: budgets, chosen rates and checkpoints, leaders, intervals and claims."""

import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, small_params

from dopsd.core.errors import DopsdError
from dopsd.core.files import read_lines, write_json
from dopsd.tasks.registry import load_task

sys.path.insert(0, str(ROOT))

from benchmarks.tournament import __main__ as tournament
from benchmarks.tournament import runs
from benchmarks.tournament.make import further_updates, scored, scored_updates
from benchmarks.tournament.plan import Plan, read_plan
from benchmarks.tournament.results import LOOKS, draw_curves, folder_of, warnings_of
from benchmarks.tournament.runs import RESULT, RUN, TESTED, TUNE, Run, best_rate, leaders, runs_of
from benchmarks.tournament.standings import answer, areas, difference, paired_t, reached, standings

pytestmark = pytest.mark.full

PLAN = {
    "tasks": ["sudoku"],
    "entries": {
        "own": {"method": "infill", "knows": "gold answer"},
        "d_opsd": {"knows": "reward"},
        "d_opsd_ema": {"method": "d_opsd", "knows": "reward", "settings": {"teacher": "ema"}},
        "told": {"method": "infill", "knows": "gold answer", "settings": {"reveal_ratio": 1.0}},
        "rft": {"knows": "reward"},
    },
    "own": "own",
    "tokens": 1000,
    "seconds": 10.0,
    "seeds": [0, 1],
    "more_seeds": [2],
    "best": 3,
    "tuning": {"rates": [0.001, 0.003], "share": 0.5},
}


def plan(**changes: object) -> Plan:
    return Plan.model_validate(PLAN | changes)


def row(update: int, accuracy: float, tokens: float, seconds: float) -> dict[str, float]:
    costs = {"rollouts": tokens / 40, "tokens": tokens, "cpu_seconds": seconds}
    return {"update": update, "accuracy": accuracy, "seconds": seconds, "flops": 0.0, **costs}


@pytest.fixture
def results(monkeypatch) -> dict[tuple, dict]:
    """Results of runs by part, entry, rate and seed; a run without one is unfinished."""
    found: dict[tuple, dict] = {}
    get = property(lambda run: found.get((run.part, run.entry, run.rate, run.seed)))
    monkeypatch.setattr(Run, "result", get)
    monkeypatch.setattr(Run, "tested", property(lambda _: None))
    monkeypatch.setattr(Run, "failure", "")
    return found


def as_another_command() -> None:
    """Forget what a command reads once."""
    runs.settings.cache_clear()
    runs._decided.clear()


def curve(*accuracies: float) -> dict:
    rows = [row(5 * i, accuracy, 200 * i, i) for i, accuracy in enumerate(accuracies)]
    return {"curve": rows, "n": 10}


def test_a_run_is_as_long_as_its_larger_budget_needs():
    run = Run(plan(), RUN, "sudoku", "own", 0, 0.001)
    # 10 updates cost 400 tokens and 1 second: 25 for 1000 tokens, 100 for 10 seconds
    assert further_updates(run, 10, {10: row(10, 0, 400, 1.0)}) == 100
    # nothing sampled: seconds decide, 10 * 10 / 3
    assert further_updates(run, 10, {10: row(10, 0, 0, 3.0)}) == 34
    assert further_updates(run, 10, {10: row(10, 0, 1000, 10.0)}) == 10
    short = Run(plan(most_updates=50), RUN, "sudoku", "own", 0, 0.001)
    assert further_updates(short, 10, {10: row(10, 0, 400, 1.0)}) == 50


def test_scored_checkpoints_are_dense_then_sparse_with_the_last_ones_within_the_budgets():
    costs = {u: row(u, 0, 10 * u, u / 12) for u in range(131)}  # budgets end at 100 and 120
    run = Run(plan(), RUN, "sudoku", "own", 0, 0.001)
    assert scored_updates(run, costs) == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 75, 100, 120, 125]
    # tuning has half of the budgets, 50 and 60 updates, and scores the last
    tuned = Run(plan(), TUNE, "sudoku", "own", 100, 0.001)
    assert scored_updates(tuned, costs) == [50, 60]
    assert scored_updates(tuned, {u: row(u, 0, 200 * u, u) for u in range(11)}) == [2, 5]
    assert scored_updates(tuned, {u: row(u, 0, 600 * u, 6 * u) for u in range(11)}) == []


def test_the_chosen_checkpoint_is_the_earliest_best_one_within_its_budget(results):
    rows = [row(0, 0.9, 0, 0), row(5, 0.6, 500, 6)]
    rows += [row(10, 0.6, 1000, 11), row(15, 0.8, 1001, 12)]
    results[RUN, "own", 0.001, 0] = {"curve": rows}
    chosen = Run(plan(), RUN, "sudoku", "own", 0, 0.001).chosen
    assert chosen["tokens"]["update"] == 5 and chosen["seconds"]["update"] == 5
    rows[2]["accuracy"] = 0.7
    chosen = Run(plan(), RUN, "sudoku", "own", 0, 0.001).chosen
    assert chosen["tokens"]["update"] == 10 and chosen["seconds"]["update"] == 5


def test_without_a_budget_of_seconds_tokens_alone_choose_rates_and_checkpoints(results):
    p = plan(seconds=None)
    tuned = Run(p, TUNE, "sudoku", "own", 100, 0.001)
    assert scored_updates(tuned, {u: row(u, 0, 100 * u, 2.5 * u) for u in range(11)}) == [5]
    results[TUNE, "own", 0.001, 100] = {"curve": [row(0, 0.9, 0, 0), row(5, 0.6, 500, 4)]}
    assert (tuned.best, tuned.chosen_updates) == (0.6, {"tokens": 5})
    assert further_updates(tuned, 10, {10: row(10, 0, 0, 4)}) == p.most_updates  # samples nothing


def test_rates_and_leaders_wait_for_all_runs_and_follow_validation(results):
    p, accuracies = plan(), {"own": 0.5, "d_opsd": 0.6, "d_opsd_ema": 0.7, "told": 0.4, "rft": 0.8}
    for entry in p.entries:
        results[TUNE, entry, 0.001, 100] = curve(0.3, 0.4)
    assert best_rate(p, "sudoku", "own") is None  # the other rate is missing
    for entry in p.entries:
        results[TUNE, entry, 0.003, 100] = curve(0.3, 0.4 if entry == "own" else 0.5)
    assert best_rate(p, "sudoku", "own") == 0.001  # the lower one of equals
    assert best_rate(p, "sudoku", "rft") == 0.003
    for entry, accuracy in accuracies.items():
        for seed in p.seeds:
            assert leaders(p, "sudoku") == []
            rate = 0.001 if entry == "own" else 0.003
            results[RUN, entry, rate, seed] = curve(0.3, accuracy)
    # our own, the strongest d_opsd, the strongest that knows as much; they fill the three places
    assert leaders(p, "sudoku") == ["own", "d_opsd_ema", "told"]
    assert leaders(plan(best=1), "sudoku") == ["own", "d_opsd_ema", "told"]
    assert leaders(plan(best=4), "sudoku") == ["own", "d_opsd_ema", "told", "rft"]
    more = [run for run in runs_of(p, RUN) if run.seed == 2]
    assert [run.entry for run in more] == ["own", "d_opsd_ema", "told"]


def test_the_strongest_of_each_budget_gets_more_seeds(results):
    p = plan(best=1)
    for entry in p.entries:
        for rate in p.tuning.rates:
            results[TUNE, entry, rate, 100] = curve(0.3, 0.4)
        for seed in p.seeds:
            results[RUN, entry, 0.001, seed] = curve(0.3, 0.4)
    for seed in p.seeds:  # d_opsd is ahead at equal seconds, after its tokens are used up
        rows = [row(0, 0.3, 0, 0), row(5, 0.5, 1000, 1), row(10, 0.9, 2000, 10)]
        results[RUN, "d_opsd", 0.001, seed] = {"curve": rows, "n": 10}
        results[RUN, "d_opsd_ema", 0.001, seed] = curve(0.3, 0.6)
    assert leaders(p, "sudoku") == ["own", "d_opsd_ema", "told", "d_opsd"]


def test_a_test_counts_only_for_the_checkpoints_and_the_rules_it_was_made_with(project):
    as_another_command()
    run = Run(plan(), RUN, "sudoku", "own", 0, 0.001)
    rows = curve(0.3, 0.5, 0.4)["curve"]
    write_json(run.key.folder / RESULT, {"identity": run.identity, "curve": rows})
    tested = {"identity": run.identity, "updates": {"tokens": 5, "seconds": 5}}
    write_json(run.key.folder / TESTED, tested)
    assert run.tested == tested
    rows[2]["accuracy"] = 0.6  # another checkpoint is chosen
    write_json(run.key.folder / RESULT, {"identity": run.identity, "curve": rows})
    assert run.result and run.tested is None
    shorter = Run(plan(tokens=400), RUN, "sudoku", "own", 0, 0.001)
    assert shorter.result is None and shorter.tested is None

    settings = yaml.safe_load(Path("params.yaml").read_text())
    for weight_decay in (0.5, small_params()["train"]["weight_decay"]):
        settings["train"]["weight_decay"] = weight_decay
        Path("params.yaml").write_text(yaml.safe_dump(settings))
        as_another_command()
        assert (run.result is None) == (weight_decay == 0.5)

    problems = Path("data/sudoku/validation.jsonl")
    problems.write_text("".join(problems.read_text().splitlines(keepends=True)[:-1]))
    as_another_command()
    assert run.result is None


def test_the_question_is_answered_with_its_opponents():
    p = plan(tasks=["sudoku", "chains"])
    named = {task: ["d_opsd_ema", "told"] for task in p.tasks}
    tested = [
        {"budget": "tokens", "task": task, "second": entry, "is_claim": True, "difference": 0.1}
        for task in p.tasks
        for entry in ("d_opsd_ema", "told", "d_opsd")
    ]
    assert "on every task? Yes. " in answer(p, named, tested)
    assert "chains: “d_opsd_ema” (our own is better), “told” (our" in answer(p, named, tested)
    for changes, words in (
        ({"difference": -0.1}, "sudoku: “d_opsd_ema” (our own is worse)"),
        ({"is_claim": False}, "sudoku: “d_opsd_ema” (no claim)"),
        ({"budget": "seconds"}, "sudoku: “d_opsd_ema” (not tested)"),
    ):
        text = answer(p, named, [tested[0] | changes, *tested[1:]])
        assert "No claim of that" in text and words in text
    assert "No claim of that" in answer(p, {"sudoku": []}, [])


def test_a_gain_counts_from_the_first_of_two_checkpoints_in_a_row():
    rows = curve(0.5, 0.56, 0.54, 0.55, 0.7, 0.3)["curve"]
    assert reached(rows, 0.05)["update"] == 15  # 0.56 is alone; 0.55 is exactly base + gain
    assert reached(rows, 0.05)["tokens"] == 600
    assert reached(rows[:2], 0.05) is None


def test_the_t_interval_of_three_seeds():
    # mean 2, standard deviation 1, 2 degrees of freedom: 4.302653 / sqrt(3) on either side
    assert paired_t([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert paired_t([1.0]) is None


def test_the_wider_interval_counts_and_a_claim_needs_five_seeds():
    same_seeds = {seed: [0.0, 1.0] * 20 for seed in range(5)}  # only problems differ
    found = difference(same_seeds, 500)
    assert found["interval"] == found["bootstrap"] and found["t"] == (0.5, 0.5)
    same_problems = {seed: [value] * 20 for seed, value in enumerate([0.1, 0.2, 0.3, 0.4, 0.5])}
    found = difference(same_problems, 500)
    assert found["interval"] == found["t"] and found["is_claim"]
    assert found["difference"] == pytest.approx(0.3)
    assert not difference({s: v for s, v in same_problems.items() if s < 4}, 500)["is_claim"]
    around_zero = {seed: [value] * 20 for seed, value in enumerate([-0.5, 0.2, 0.3, 0.4, 0.5])}
    assert not difference(around_zero, 500)["is_claim"]


def test_before_the_test_standings_show_validation_and_no_difference(results):
    for seed, best in ((0, 0.5), (1, 0.7)):
        results[RUN, "own", 0.001, seed] = curve(0.3, 0.4, best)
    made = [Run(plan(), RUN, "sudoku", "own", seed, 0.001) for seed in (0, 1)]
    first = standings(made, 100)[0]
    assert first["validation"] == pytest.approx(0.6) and first["by_seed"] == {0: 0.5, 1: 0.7}
    assert first["test"] is None and first["over_base"] is None
    assert first["reached"]["tokens"] == 200 and first["reached_by"] == 2


def test_every_run_of_the_shipped_plans_has_sound_settings(monkeypatch):
    monkeypatch.chdir(ROOT)
    as_another_command()
    for path in {*Path("benchmarks").glob("*.yaml")} - {Path("benchmarks/objectives.yaml")}:
        p = read_plan(path)
        for run in runs_of(p, TUNE) or runs_of(p, RUN):
            made = run.params(5).run(*run.key.parts)
            assert made.train.learning_rate == run.rate and made.train.updates == 5


def test_a_task_is_tested_once_its_own_runs_are_made(project, results, monkeypatch):
    p = plan(tasks=["sudoku", "chains"], more_seeds=[])
    # chains: no run is made
    is_of = property(lambda run: curve(0.3, 0.4) if run.task == "sudoku" else None)
    monkeypatch.setattr(Run, "result", is_of)
    with pytest.raises(DopsdError, match="the runs of chains are missing"):
        tournament.to_test(p, ["sudoku", "chains"])
    assert not Path("reports/tournament/tests.jsonl").exists()
    for _ in range(2):
        tested = tournament.to_test(p, ["sudoku"])
        assert {run.task for run in tested} == {"sudoku"} and len(tested) == 5 * 2
    warned = warnings_of(p, [], list(read_lines(folder_of(p) / LOOKS)))
    said = "The test split of sudoku was looked at 2 times, so the best may be too high."
    assert [text for text in warned if "looked at" in text] == [said]


def test_problems_of_earlier_tests_are_not_scored_again_and_there_must_be_others(project):
    whole, last = (Run(plan(used=n), RUN, "sudoku", "d_opsd", 0, 0.001) for n in (0, 2))

    def base(run: Run, split: str) -> dict:
        (reports,) = scored(run, run.params(1), split, [])
        return reports[run.protocol]["per_problem"]

    task = load_task("sudoku", whole.params(1).data.sudoku)
    names = [problem.id for problem in task.load("test")]
    assert list(base(last, "validation")) == list(base(whole, "validation"))
    all_of = base(whole, "test")
    assert len(names) > 2 and base(last, "test") == {name: all_of[name] for name in names[2:]}
    tournament.check_unused(plan(used=len(names) - 1), ["sudoku"])
    with pytest.raises(DopsdError, match="raise their number in section data"):
        tournament.check_unused(plan(used=len(names)), ["sudoku"])


def test_choosing_on_the_test_split_is_refused_before_any_run(project, capsys):
    settings = yaml.safe_load(Path("params.yaml").read_text())
    settings["select"]["split"] = "test"
    Path("params.yaml").write_text(yaml.safe_dump(settings))
    Path("plan.yaml").write_text(yaml.safe_dump(PLAN))
    as_another_command()
    with pytest.raises(SystemExit):
        tournament.main(["--plan", "plan.yaml"])
    assert "chooses rates, checkpoints and leaders on validation" in capsys.readouterr().err
    assert not Path("work/tournament").exists()


def test_each_point_of_a_curve_has_the_mean_and_the_interval_of_its_seeds(monkeypatch, tmp_path):
    def side(full: float, few: float) -> dict:
        points = {"greedy": [20.0, full], "greedy-steps5": [5.0, few]}
        return {"per_problem": {"p": full, "q": few}, "points": points}

    def tested(run: Run) -> dict:
        gained = 0.1 * (run.seed + 1) if run.entry == "own" else 0.0
        return {"curve": {"base": side(0.4, 0.2), "best": side(0.4 + gained, 0.2)}}

    monkeypatch.setattr(Run, "tested", property(tested))
    cells = [(entry, seed) for entry in ("own", "rft") for seed in (0, 1, 2)]
    made = [Run(plan(), RUN, "sudoku", *cell, 0.001) for cell in cells]
    own, rft = rows = areas(made, 100)
    assert own["points"]["greedy"] == pytest.approx([20.0, 0.6])
    assert own["intervals"]["greedy"] == pytest.approx((0.6 - 0.2484138, 0.6 + 0.2484138))
    assert own["intervals"]["greedy-steps5"] == pytest.approx((0.2, 0.2))
    assert (own["area"], rft["area"], own["base"]) == pytest.approx((0.4, 0.3, 0.3))
    entries = {name: {"title": name} for name in ("own", "rft")}
    draw_curves({"areas": rows, "entries": entries, "rules": {"own": "own"}}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
