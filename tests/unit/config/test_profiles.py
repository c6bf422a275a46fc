"""`dopsd params`: profiles are sound, written with their comments, and what changed is said."""

import itertools
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, small_params

from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.registry import ALGORITHMS
from dopsd.cli.main import main
from dopsd.config import params_file, profiles
from dopsd.config.layout import render
from dopsd.config.loading import checked, load_params
from dopsd.config.profiles import layers
from dopsd.config.profiles.layers import embedded_text
from dopsd.core.errors import DopsdError
from dopsd.evaluation.published import published_tables
from dopsd.models.config import AdapterConfig
from dopsd.pipeline.run import request as run_request
from dopsd.pipeline.run.request import RunRequest

TASKS = ("gsm8k", "math500", "countdown", "sudoku")


@pytest.mark.parametrize("base", profiles.families())
def test_every_profile_is_sound_and_read_alike_by_every_yaml_reader(base: str):
    """Rendering takes long: of each base, task and preset at least one profile is rendered."""
    assert {f"{base}-{task}" for task in TASKS} < set(profiles.names())
    presets, hardware = profiles.presets(), profiles.families()[base].hardware
    for name, preset, machine in {
        *itertools.product((f"{base}-{task}" for task in TASKS), presets, ("1x80gb",)),
        *itertools.product((f"{base}-gsm8k",), presets, hardware),
    }:
        raw = profiles.resolve(name, preset, machine)
        checked(raw, Path(f"{name}, {preset}, {machine}"))
        shown = {name == f"{base}-gsm8k", preset == "reference"}
        if machine == "1x80gb" and (shown == {True} or (base == "llada-8b" and True in shown)):
            assert yaml.safe_load(render(raw)) == raw, (name, preset)


def test_a_preset_of_another_keeps_what_an_algorithm_adds_to_either(monkeypatch):
    of_algorithms = {"wd1": "presets: {fast: {beta: 7}}", "spg": "presets: {reference: {beta: 3}}"}
    read = layers._in_folders
    monkeypatch.setattr(
        layers, "_in_folders", lambda r, file: of_algorithms if r is ALGORITHMS else read(r, file)
    )
    fast = layers._language_models.__wrapped__()["presets"]["fast"]
    assert fast["method"] == {"spg": {"beta": 3}, "wd1": {"beta": 7}}
    assert fast["sampling"] and fast["select"]


def test_the_shipped_params_are_what_dopsd_params_makes_of_the_embedded_profile(here):
    assert main(["params", "--profile", "embedded"]) == 0
    made = Path("params.yaml").read_text()
    advice = "the profile is the source: rm params.yaml; dopsd params --profile embedded"
    assert (ROOT / "params.yaml").read_text() == made, advice
    assert {*made.splitlines()} <= {*embedded_text().splitlines()}  # its layout and comments


def test_reference_is_the_published_code_and_paper_its_equations():
    reference = checked(profiles.resolve("llada-8b-gsm8k", "reference"), Path("p"))
    published = DOpsdConfig(teacher_dropout=True, train={"warmup_ratio": 1e-4})
    assert reference.method.d_opsd == published
    assert reference.run("gsm8k", "d_opsd", 0).train.warmup_ratio == 1e-4
    assert reference.train.lora == AdapterConfig() and reference.train.learning_rate == 5e-6
    paper = checked(profiles.resolve("llada-8b-math500", "paper"), Path("p")).method.d_opsd
    reads = (paper.reveal_scope, paper.loss_vocabulary, paper.reduction)
    assert reads == ("all_masked", "full", "mean")
    assert (paper.updates_per_trajectory, paper.record, paper.clip) == (1, "all", 0.04)


def test_hardware_changes_no_setting_that_decides_a_result():
    machines = ("1x80gb", "4x80gb", "1xh200")
    resolved = (profiles.resolve("llada-8b-sudoku", "reference", name) for name in machines)
    parts = [params_file.flat(raw) for raw in resolved]
    odd = {key for key in parts[0] if len({str(part[key]) for part in parts}) > 1}
    memory = {"processes", "batch_size", "micro_batch_states", "gradient_checkpointing"}
    assert {key.split(".")[-1] for key in odd} <= memory


@pytest.mark.parametrize(
    ("base", "hardware", "size"),
    [
        ("llada-8b", "1x80gb", 16),
        ("llada-8b", "1xh200", 32),
        ("a2d-0.6b", "1x80gb", 256),
        ("a2d-0.6b", "1x16gb", 64),
        ("a2d-0.6b", "cpu", 4),
    ],
)
def test_a_small_base_samples_and_evaluates_more_texts_at_once(base: str, hardware: str, size: int):
    raw = profiles.resolve(f"{base}-gsm8k", hardware=hardware)
    sizes = [part["batch_size"] for part in raw["evaluate"]["protocols"].values()]
    assert [raw["sampling"]["batch_size"], *sizes] == [size] * 3


def test_the_small_preset_adapts_with_the_problems_that_it_leaves():
    raw = profiles.resolve("smollm2-135m-countdown", "small", "cpu")
    train, learn = raw["train"], raw["adapt"]["learn"]["train"]
    assert all(learn[key] == train[key] for key in ("updates", "checkpoint_every"))
    assert learn["prompts_per_collect"] <= raw["data"]["countdown"]["limit"]


@pytest.fixture
def embedded(here) -> str:
    """A folder with the shipped params.yaml, and its text."""
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    return Path("params.yaml").read_text()


def test_a_profile_is_written_and_what_changed_is_reported(here, capsys):
    assert main(["params", "--profile", "embedded"]) == 0
    first = Path("params.yaml").read_text()
    assert re.match(r"params.yaml: written, \d+ settings", capsys.readouterr().out)
    changes = "--set=train.learning_rate=5e-6", "--set=method.d_opsd.clip=null"
    assert main(["params", *changes]) == 0
    assert capsys.readouterr().out == (
        "params.yaml: 1 key changed; the file as it was: work/params.before.yaml\n"
        "  train.learning_rate: 0.003 -> 5e-06\n"
    )
    assert load_params().train.learning_rate == 5e-6
    assert "# over all processes" in Path("params.yaml").read_text()
    assert Path("work/params.before.yaml").read_text() == first
    assert main(["params", "--profile", "llada-8b-gsm8k", "--hardware", "4x80gb"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14 and lines[1] == '  matrix.tasks: ["sudoku"] -> ["gsm8k"]'
    assert lines[-1].endswith(" more: diff work/params.before.yaml params.yaml")
    assert load_params().launch.processes == 4
    assert load_params().matrix.tasks == ["gsm8k"]


def test_a_section_in_place_of_null_is_reported_by_its_keys_and_not_as_removed():
    found = params_file.differences({"adapt": {"distill": None}}, {"adapt": {"distill": {"a": 1}}})
    assert found == ["adapt.distill.a: (absent) -> 1"]


def test_a_change_keeps_comments_of_the_user_and_a_profile_replaces_them(embedded):
    text = embedded
    mine = text.replace("\n  seeds: [0]", "\n  # tried 1 on Monday\n  seeds: [0] # mine", 1)
    assert mine != text
    Path("params.yaml").write_text(mine)
    assert main(["params", "--set", "matrix.seeds=[0, 1]"]) == 0
    changed = mine.replace("seeds: [0] # mine", "seeds: [0, 1] # mine")
    assert Path("params.yaml").read_text() == changed
    assert main(["params", "--profile", "embedded"]) == 0
    assert Path("params.yaml").read_text() == text
    assert "# tried 1 on Monday" in Path("work/params.before.yaml").read_text()


def test_what_a_person_wrote_is_never_lost(embedded, capsys):
    before, settings, then = Path("work/params.before.yaml"), Path("params.yaml"), []
    mine = f"{embedded}# mine\n"

    def newest() -> str:
        assert main(["params"]) == 0
        found = re.search(r"yours: (\S+); `cp \1 params.yaml` b", capsys.readouterr().out)
        return Path(found[1]).read_text()

    settings.write_text(mine)
    for updates in (1, 2):
        run_request.write(RunRequest(max_updates=updates))
        then.append(settings.read_text())
    assert then[0] != then[1] and before.read_text() == mine  # by the old rule: then[0]
    assert newest() == mine
    settings.write_text(f"{then[1]}# changed after a run\n")
    run_request.write(RunRequest(max_updates=1))
    assert before.read_text() == newest() == f"{then[1]}# changed after a run\n"
    settings.write_text(again := f"{embedded}# again\n")
    for change in ("train.updates=9", "train.updates=8"):  # two commands, then a run
        assert main(["params", f"--set={change}"]) == 0
    run_request.write(RunRequest(max_updates=1))
    assert newest() == again
    copies = {path.read_text() for path in Path("work").glob("params.before.*.yaml")}
    assert copies == {mine, f"{then[1]}# changed after a run\n", again}


def test_a_method_and_a_task_join_with_their_comments_and_leave_again(embedded, capsys):
    assert main(["params", "--set=matrix.methods=[d_opsd, rft]"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  method.rft: added"
    joins = "--set=matrix.methods=[d_opsd, rft, wd1]", "--set=matrix.tasks=[sudoku, chains]"
    assert main(["params", *joins, "--set=method.trace_rl.shrink=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    added = "data.chains", "method.trace_rl", "method.wd1"
    assert [f"  {name}: added" for name in added] == lines[3:]
    profile = indented(embedded_text(), "trace_rl").replace("shrink: 4", "shrink: 2")
    text = Path("params.yaml").read_text()
    assert profile.count("#") > 10 and profile in text  # the other keys as vetted, not as published
    assert indented(embedded_text(), "chains") in text and indented(embedded_text(), "wd1") in text
    assert "\n\n\n" not in text and "\n\n " not in text
    assert main(["params", "--profile", "embedded"]) == 0
    assert Path("params.yaml").read_text() == embedded


def indented(text: str, name: str) -> str:
    """A section of a task or a method, with its comments."""
    return re.search(rf"^  {name}:.*\n(    .*\n)+", text, re.MULTILINE)[0]


def test_a_section_that_a_file_lacks_is_that_of_its_base():
    """Of a base in base/ the vetted one, of others the published one."""
    vetted = profiles.embedded()["method"]["wd1"]["iterations"]
    published = ALGORITHMS.config_class("wd1")().iterations
    assert vetted != published
    for path, expected in (("base/mine", vetted), ("models/LLaDA", published)):
        raw = {"model": {"path": path}, "evaluate": profiles.embedded()["evaluate"]}
        assert checked(raw, "p").method.wd1.iterations == expected


def test_a_section_without_a_value_takes_one(embedded):
    path = "data/external/t.jsonl"
    assert main(["params", "--set", "data.countdown.limit=5"]) == 0  # the section is there now
    test = "--set", "data.countdown.generate_test=0", "--set", f"data.countdown.test.path={path}"
    for words in (["--set", f"method.sft.traces={{path: {path}}}"], test):
        assert main(["params", *words]) == 0
    settings = load_params()
    assert settings.method.sft.traces.path == settings.data.countdown.test.path == path
    request = RunRequest("embedded", overrides={"method.sft.traces": {"path": path}})
    raw = params_file.with_changes(request.raw(), request.changes)
    assert checked(raw, "p").method.sft.traces.path == path


def test_a_change_of_one_of_two_keys_that_share_a_value_leaves_the_other(here):
    raw = small_params()
    protocol = yaml.safe_dump(raw["evaluate"]["protocols"]["greedy"], default_flow_style=True)
    raw["evaluate"]["protocols"] = {"greedy": "GREEDY", "other": "OTHER"}
    text = yaml.safe_dump(raw).replace("GREEDY", f"&shared {protocol.strip()}")
    Path("params.yaml").write_text(text.replace("OTHER", "*shared"))
    before = load_params().evaluate.protocols["other"]
    assert main(["params", "--set", "evaluate.protocols.greedy.batch_size=3"]) == 0
    protocols = load_params().evaluate.protocols
    assert protocols["greedy"].batch_size == 3 and protocols["other"] == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "llama"], "--profile llama: unknown; there is embedded, and BASE-TASK"),
        (
            ["--profile", "llada-8b-gsm8k", "--preset", "best"],
            "there is reference, paper, small, fast",
        ),
        (["--profile", "llada-8b-gsm8k", "--hardware", "tpu"], "--hardware tpu: unknown"),
        (
            ["--profile", "dream-7b-gsm8k", "--hardware", "1x16gb"],
            "--hardware 1x16gb: dream-7b-gsm8k has no settings for it; there is 1x80gb",
        ),
        (["--profile", "embedded", "--set", "train.updates"], "expected key=value"),
        (["--profile", "embedded", "--set", "train.update=3"], "train.update: unknown key"),
        (["--profile", "embedded", "--set", "train.updates.x=3"], "updates is not a section"),
        (["--profile", "embedded", "--set", "train.updates=["], "is not a YAML value"),
        ([], "name a --profile: embedded"),
        (["--hardware", "4x80gb"], "--preset and --hardware need a profile"),
        (["--profile", "embedded", "--hardware", "4x80gb"], "apply to profiles of language models"),
    ],
)
def test_a_wrong_profile_or_change_writes_nothing(here, refusal, words, said):
    err = refusal("params", *words)
    assert said in err and len(err.strip().splitlines()) == 1
    assert not Path("params.yaml").exists()


@pytest.mark.parametrize(
    ("task", "updates"), [("gsm8k", 7700), ("math500", 6600), ("countdown", 5000), ("sudoku", 3800)]
)
def test_baselines_run_as_long_as_they_were_published_to(task: str, updates: int):
    found = checked(profiles.resolve(f"llada-8b-{task}"), "profile")
    told = published_tables()[0].methods["diffu_grpo"][task]["updates"]
    assert found.of("diffu_grpo").train.updates == updates == told
    assert found.of("d_opsd").train.updates == 500
    assert found.of("vrpo").train.schedule == "cosine"
    same = found.of("d_opsd-one_update_same_data")
    assert same.train.updates == 125 and same.method.d_opsd.updates_per_trajectory == 1


def test_a_change_that_does_not_hold_for_a_method_is_reported(embedded, capsys):
    assert main(["params", "--set", "matrix.methods=[d_opsd, diffu_grpo]"]) == 0
    assert "note:" not in capsys.readouterr().err
    assert main(["params", "--set", "train.updates=20", "--set", "train.grad_clip=0.1"]) == 0
    note = "note: method.diffu_grpo.train.updates is 200 and overrides train.updates\n"
    assert capsys.readouterr().err == note


@pytest.fixture
def plug_in(tmp_path, monkeypatch) -> Path:
    """The folder of a plug-in's algorithm `mine`, which is registered."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "plug_in_with_files"
    folder.mkdir()
    (folder / "__init__.py").touch()
    packages = profiles.layers.ALGORITHMS.packages | {"mine": folder.name}
    registered = dict(sorted(packages.items()))
    monkeypatch.setitem(vars(profiles.layers.ALGORITHMS), "packages", registered)
    monkeypatch.delitem(sys.modules, folder.name, raising=False)  # of another test's folder
    for cached in (profiles.layers._language_models, profiles.layers.embedded_text):
        monkeypatch.setattr(profiles.layers, cached.__name__, cached.__wrapped__)
    return folder


def test_an_algorithms_folder_has_its_part_of_every_profile_and_its_papers_figures(plug_in: Path):
    (plug_in / "embedded.yaml").write_text("mine: # like rft\n  draws: 3\n")
    (plug_in / "profiles.yaml").write_text("tasks: {math500: {draws: 4}}\n")
    table = "source: arXiv 1\n  protocol: of mine\n  lengths: {gsm8k: [256]}\n"
    methods = "  methods: {mine: {gsm8k: {accuracy: [9.0]}}}\n"
    (plug_in / "published.yaml").write_text(f"- {table}{methods}")
    assert "\n  just_grpo:" in (text := profiles.layers.embedded_text())
    assert "\n  mine: # like rft\n    draws: 3\n  rft:" in text
    layers = profiles.language_models()["tasks"]
    assert layers["math500"]["method"]["mine"] == {"draws": 4}
    assert "mine" not in layers["gsm8k"]["method"]
    (mine,) = [table for table in published_tables() if "mine" in table.methods]
    assert (mine.protocol, mine.as_profiles) == ("of mine", False)


def test_a_wrong_file_in_an_algorithms_folder_is_one_line(plug_in: Path):
    (plug_in / "profiles.yaml").write_text("tasks: {math: {draws: 4}}\n")
    said = "algorithm mine: profiles.yaml: tasks.math: unknown; there is tasks.gsm8k, tasks.math500"
    with pytest.raises(DopsdError, match=re.escape(said)):
        profiles.language_models()
    (plug_in / "published.yaml").write_text("- {source: arXiv 1, protocol: p, methods: {}}\n")
    with pytest.raises(DopsdError, match=r"mine: published.yaml: lengths: Field required"):
        published_tables()


def test_two_protocols_of_one_paper_need_names(plug_in: Path):
    table = "- {source: arXiv 1, protocol: p, lengths: {}, methods: {}}\n"
    (plug_in / "published.yaml").write_text(2 * table)
    with pytest.raises(DopsdError, match=r"several tables have the source arXiv 1 and the name ``"):
        published_tables()
    (plug_in / "published.yaml").write_text(table + table.replace("p,", "q, name: of two,"))
    assert {"1", "1-of_two"} <= {table.key for table in published_tables()}
