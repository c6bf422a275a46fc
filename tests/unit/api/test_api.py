"""The library: every name is there, every example runs, and the loss is the algorithm's."""

import ast
import doctest
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import nbformat
import pytest
import torch
from conftest import ROOT
from hub_toys import save_hub
from nbclient import NotebookClient
from toy_project import TOY

import dopsd
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.core.errors import DopsdError
from dopsd.core.extras import EXTRAS
from dopsd.core.types import Rollout

PUZZLE = "0410020420430020"
FUNCTIONS = [name for name in dopsd.__all__ if name[0].islower()]


@pytest.fixture(scope="module")
def run() -> dopsd.RunSettings:
    return dopsd.run_settings("embedded", {"model.path": str(TOY / "base" / "sudoku")})


@pytest.fixture(scope="module")
def policy(run):
    return dopsd.load_policy(run.model.path, dopsd.AdapterConfig(r=4, alpha=4, dropout=0.0))


@pytest.mark.full
def test_dopsd_and_its_command_line_are_light_and_a_core_install_samples():
    """A process without the packages of the extras, as on a bare GPU machine, on the toy base."""
    code = f"""
import sys
import dopsd
assert not {{"torch", "pydantic", "transformers"}} & set(sys.modules)
import dopsd.cli.main
from dopsd.config import profiles
profiles.resolve("llada-8b-gsm8k")
assert not {{"torch", "peft", "mlflow", "transformers"}} & set(sys.modules)
for name in {sorted(EXTRAS)}:
    sys.modules[name] = None
run = dopsd.run_settings("embedded")
policy = dopsd.load_policy({str(TOY / "base" / "sudoku")!r}, run.train.lora)
(rollout,) = dopsd.sample(policy, ["{PUZZLE}"], run)
dopsd.d_opsd_loss(policy, [rollout], run).total.backward()
import dopsd.pipeline.stages.train
print(len(rollout.completion_ids))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "40\n"), done.stderr


def test_the_names_that_are_exported_are_those_that_type_checkers_see():
    assert dopsd.__version__
    tree = ast.parse((ROOT / "dopsd" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.name for node in imports for alias in node.names}
    assert typed == set(dopsd.__all__) <= set(dir(dopsd))
    assert all(getattr(dopsd, name).__doc__ for name in dopsd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dopsd.nothing  # noqa: B018


@pytest.mark.parametrize("name", ["", *FUNCTIONS])
def test_an_example_of_the_library_runs(name: str, tmp_path: Path, monkeypatch):
    """As a reader would run it: in a folder with the embedded base in it; here that is the toy."""
    shutil.copytree(TOY / "base", tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    of = getattr(dopsd, name) if name else dopsd
    found = doctest.DocTestFinder(recurse=False).find(of, name or "dopsd", globs={})
    assert found[0].examples, f"{name}: no Example"
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(found[0], out=report.append)
    assert result.failed == 0, "".join(report)


def test_a_trace_goes_from_masks_to_the_answer(policy):
    ids = policy.text.tokens("12")
    answer = torch.cat([ids, ids.new_tensor([policy.eos_id])])
    rollout = Rollout("a", 0, ids, answer, torch.tensor([2, 0, 2]))
    steps = dopsd.trace(policy, rollout)
    assert [(step.step, step.text) for step in steps] == [(0, "···"), (2, "·2·"), (3, "12_")]
    committed = [step.committed.tolist() for step in steps]
    assert committed[:2] == [[False, True, False], [True, False, True]]


def test_a_rollout_depends_on_its_seed_and_attempt_alone(policy, run):
    other = "0230130020100042"
    alone = dopsd.sample(policy, [PUZZLE], run, temperature=0.9, attempts=2, seed=1)
    beside = dopsd.sample(policy, [other, PUZZLE], run, temperature=0.9, attempts=2, seed=1)
    reseeded = dopsd.sample(policy, [PUZZLE], run, temperature=0.9, attempts=2, seed=2)
    texts = [[r.completion_ids.tolist() for r in rs] for rs in (alone, beside[2:], reseeded)]
    assert texts[0] == texts[1] != texts[2] and texts[0][0] != texts[0][1]


def test_the_loss_of_an_untrained_adapter_is_that_of_its_states_and_has_gradients(policy, run):
    """A fresh adapter changes nothing, so that only what is revealed parts teacher and student."""
    rollouts = dopsd.sample(policy, [PUZZLE], run)
    before = torch.get_rng_state()
    loss = dopsd.d_opsd_loss(policy, rollouts, run)
    loss.total.backward()
    assert loss.total > 0 and any(p.grad.abs().sum() > 0 for p in policy.trainable().values())
    assert torch.equal(before, torch.get_rng_state())
    blind = replace(run, algorithm=run.algorithm.model_copy(update={"reveal_ratio": 0.0}))
    states = dopsd.training_states(policy, rollouts, blind)
    assert torch.equal(states.student_ids, states.teacher_ids)
    assert dopsd.d_opsd_loss(policy, rollouts, blind).total == 0


def test_a_run_is_resumed_and_its_adapter_loads(project, run):
    changes = {"train.updates": 1, "train.prompts_per_collect": 2, "train.checkpoint_every": 1}
    changes |= {"method.d_opsd.attempts": 2, "method.d_opsd.keep_threshold": 0.0}
    first = dopsd.train(dopsd.run_settings("embedded", changes))
    second = dopsd.train(dopsd.run_settings("embedded", changes | {"train.updates": 2}))
    assert [row["update"] for row in second.log] == [1, 2] and second.log[0] == first.log[0]
    trained = dopsd.load_policy("base/sudoku", second.checkpoints[-1])
    fresh = dopsd.load_policy("base/sudoku", run.train.lora)
    puzzle = [PUZZLE]
    ids = dopsd.sample(fresh, puzzle, run)[0].prompt_ids[None]
    assert not torch.equal(trained.hidden(ids, None), fresh.hidden(ids, None))


def errors(policy, run) -> dict[str, object]:
    rollouts = dopsd.sample(policy, [PUZZLE], run)
    short = replace(rollouts[0], completion_ids=rollouts[0].completion_ids[:16])
    states, loss = (partial(f, policy) for f in (dopsd.training_states, dopsd.d_opsd_loss))
    plain, odd = dopsd.load_policy(run.model.path), {"train.updates": object()}
    ema = replace(run, algorithm=DOpsdConfig(teacher="ema"))
    rft = dopsd.run_settings("embedded", method="rft")
    return {
        "settings tiny: unknown": lambda: dopsd.run_settings("tiny"),
        "nothere.yaml: no such file": lambda: dopsd.run_settings("nothere.yaml"),
        "train.updats: unknown key": lambda: dopsd.run_settings(changes={"train.updats": 4}),
        "task chess: unknown": lambda: dopsd.run_settings(task="chess"),
        "method ppo: unknown": lambda: dopsd.run_settings(method="ppo"),
        "no config.json": lambda: dopsd.load_policy("nothere"),
        "no adapter_config.json": lambda: dopsd.load_policy(run.model.path, run.model.path),
        "device gpu: unknown": lambda: dopsd.load_policy(run.model.path, device="gpu"),
        "dtype float16: unknown": lambda: dopsd.load_policy(run.model.path, dtype="float16"),
        "given twice": lambda: dopsd.sample(policy, [PUZZLE, PUZZLE], run),
        "attempts 0": lambda: dopsd.sample(policy, [PUZZLE], run, attempts=0),
        "not among the problems": lambda: dopsd.score(policy, rollouts, [], run),
        "expected d_opsd": lambda: dopsd.training_states(policy, rollouts, rft),
        "ema is an average": lambda: dopsd.training_states(policy, rollouts, ema),
        "training_states: rollouts: expected a list": lambda: states([], run),
        "has 16 tokens, and run.sampling.gen_length is 40": lambda: loss([short], run),
        "temperature nan": lambda: dopsd.sample(policy, [PUZZLE], run, temperature=float("nan")),
        "expected a list, found one problem": lambda: dopsd.sample(policy, PUZZLE, run),
        "expected one rollout, found list": lambda: dopsd.trace(policy, rollouts),
        "seed 'x': expected a whole number": lambda: dopsd.run_settings(seed="x"),
        "did you mean d_opsd": lambda: dopsd.run_settings(method="d-opsd"),
        "method.d_opsd.reveal_ratio": lambda: dopsd.run_settings(changes={"reveal_ratio": 0.1}),
        "expected a value that YAML can hold": lambda: dopsd.run_settings(changes=odd),
        "other_code|unknown; there is stop": lambda: dopsd.train(run, other_code="bogus"),
        "device mps: unknown": lambda: dopsd.load_policy(run.model.path, device="mps"),
        "adapter nowhere: no such folder": lambda: dopsd.load_policy(run.model.path, "nowhere"),
        "adapter: expected a folder": lambda: dopsd.load_policy(run.model.path, True),
        "nothing to train": lambda: dopsd.d_opsd_loss(plain, rollouts, run),
    }


def test_mistakes_are_one_line(policy, run):
    for message, call in errors(policy, run).items():
        with pytest.raises(DopsdError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_training_outside_the_main_thread_is_refused(run):
    with ThreadPoolExecutor(1) as pool, pytest.raises(DopsdError, match="main thread"):
        pool.submit(dopsd.train, run).result()


def test_blocks_of_attention_may_be_named(tmp_path: Path):
    save_hub(tmp_path, "a2d-qwen3")
    assert dopsd.load_policy(tmp_path).block_size is None
    assert dopsd.load_policy(tmp_path, block_size=4).block_size == 4
    with pytest.raises(DopsdError, match="block_size 0: expected a whole number above 0"):
        dopsd.load_policy(tmp_path, block_size=0)


FIRST_STEPS = ROOT / "docs" / "notebooks" / "first_steps.ipynb"


def test_the_notebook_is_committed_without_outputs():
    notebook = nbformat.read(FIRST_STEPS, nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all((cell.outputs, cell.execution_count) == ([], None) for cell in code)


@pytest.mark.nightly
def test_the_notebook_runs(monkeypatch):
    """As a user starts it: in its folder, with the kernel of this environment."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(FIRST_STEPS, nbformat.NO_CONVERT)
    resources = {"metadata": {"path": str(FIRST_STEPS.parent)}}
    done = NotebookClient(notebook, timeout=600, resources=resources).execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    said = "".join(output.get("text", "") for output in outputs)
    assert "update 4  loss" in said and "difference" in said
