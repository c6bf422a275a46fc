"""benchmarks/published_code.py against this test's own stand-in for the published code."""

import importlib
import sys
from pathlib import Path

import pytest
from conftest import ROOT

UTILS = """
import torch
from dopsd.tasks.registry import TASKS, load_task

def _score(name, gold, text):
    task = load_task(name, TASKS.config_class(name)())
    problem = task.ask(gold) if name == "sudoku" else task.of_generation("q", gold)
    return None, task.verify(problem, text).score

def get_all_parsed_answer(text, gold, dataset):
    return _score("gsm8k", 5.0, text) if dataset == "gsm8k" else _score("math500", "5", text)

def get_parsed_answer_countdown(text, numbers, target):
    return _score("countdown", [numbers, target], text)

def get_parsed_answer_sudoku(text, solution, puzzle):
    return _score("sudoku", puzzle, text)

def get_num_transfer_tokens(mask, steps):
    count, more = divmod(int(mask.sum()), steps)
    return torch.tensor([[count + (i < more) for i in range(steps)]])

def add_gumbel_noise(logits, temperature, dtype):
    if not temperature:
        return logits
    logits = logits.to(dtype)
    u = torch.rand_like(logits, dtype=dtype)
    return logits.exp() / (-u.log()) ** temperature

def generate(model, prompt, steps, gen_length, block_length, temperature, mask_id, eos_token_id):
    ids = torch.cat([prompt, torch.full((1, gen_length), mask_id)], 1)
    recorded, blocks = [], gen_length // block_length
    for block in range(blocks):
        end = prompt.shape[1] + (block + 1) * block_length
        masked = ids[:, end - block_length : end] == mask_id
        for count in get_num_transfer_tokens(masked, steps // blocks)[0].tolist():
            row = ids[0].tolist()
            until = row.index(eos_token_id) if eos_token_id in row else len(row)
            if block < blocks - 1 and (until == len(row) or mask_id in row[:until]):
                recorded.append(ids.clone())
            logits = model(ids).logits
            tokens = add_gumbel_noise(logits, temperature, logits.dtype).argmax(-1)
            sure = logits.softmax(-1).gather(-1, tokens[..., None])[0, :, 0]
            sure[(ids[0] != mask_id) | (torch.arange(ids.shape[1]) >= end)] = -1
            chosen = sure.topk(count).indices
            ids[0, chosen] = tokens[0, chosen]
    return ids, recorded
"""

TRAINER = """
import torch
from trl.extras.profiling import profiling_decorator
from trl.trainer.grpo_trainer import GRPOTrainer

class dOPSDTrainer(GRPOTrainer):
    @profiling_decorator
    def compute_loss(self, model, inputs):
        states, shown = inputs["trajectory"], inputs["teacher_trajectory"]
        size = (len(states) - 1) // self.batch_divide
        start = (self._step - 1) % self.batch_divide * size
        student, after = states[start : start + size], states[start + 1 : start + size + 1]
        with torch.no_grad():
            if self.fixed_teacher:
                with self.accelerator.unwrap_model(model).disable_adapter():
                    teacher = model(shown[start : start + size]).logits
            else:
                teacher = model(shown[start : start + size]).logits
        own, total = model(student).logits, 0
        for i, row in enumerate(student):
            masked = (row == self.args.mask_id).nonzero()[:, 0]
            width, start = inputs["block_length"], inputs["prompt_length"]
            block = masked[(masked - start) // width == (masked[0] - start) // width]
            best = block[teacher[i, block].amax(-1).topk(2).indices]
            places = (row != after[i]).nonzero()[:, 0] if self.diff_student_mask else best
            total = total + self._divergence(own[i, places], teacher[i, places])
        return total / size * bool(inputs["is_correct"])

    def _divergence(self, p, q):
        if self.top_k_loss:
            kept = q.topk(self.top_k_loss).indices
            p, q = p.gather(-1, kept), q.gather(-1, kept)
        p, q, beta = p.log_softmax(-1), q.log_softmax(-1), self.beta
        if beta in (0, 1):
            value = p.exp() * (p - q) if beta else q.exp() * (q - p)
        else:
            m = ((1 - beta) * p.exp() + beta * q.exp()).log()
            value = beta * q.exp() * (q - m) + (1 - beta) * p.exp() * (p - m)
        cap = self.jsd_token_clip
        return (value if cap is None else value.clamp(max=cap)).sum()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the script on a stand-in, with fewer rollouts and texts; returns its exit code."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("published_code")
    monkeypatch.setattr(module, "ROLLOUTS", [(0, 0.0), (1, 0.9)])
    monkeypatch.setattr(module, "TEXTS", 50)
    names = "reference", "JSD", "student's positions"
    monkeypatch.setattr(module, "VARIANTS", {name: module.VARIANTS[name] for name in names})

    def run(utils: str, trainer: str) -> int:
        folder = tmp_path / "d-opsd"
        folder.mkdir()
        (folder / "utils.py").write_text(utils)
        (folder / "d_opsd_trainer.py").write_text(trainer)
        monkeypatch.syspath_prepend(str(folder))
        for name in ("utils", "d_opsd_trainer"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "argv", ["published_code.py", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            module.main()
        for name in ("utils", "d_opsd_trainer"):
            sys.modules.pop(name, None)
        return int(ended.value.code or 0)

    return run


@pytest.mark.full
def test_a_checkout_that_computes_the_same_agrees_in_every_check(script, capsys):
    assert script(UTILS, TRAINER) == 0
    said = capsys.readouterr().out
    assert "DIFFERS" not in said and "43 of 43 checks agree" in said


@pytest.mark.full
def test_what_computes_otherwise_is_named(script, capsys):
    utils = UTILS.replace("(-u.log()) ** temperature", "(-u.log())")
    assert script(utils, TRAINER.replace("clamp(max=", "clamp(max=0.5 * ")) == 1
    lines = capsys.readouterr().out.splitlines()
    differing = [line.split("  ")[1] for line in lines if line.startswith("DIFFERS")]
    assert "noise: tokens chosen in bfloat16" in differing
    assert "reference: loss of update 1" in differing
    assert not any("schedule" in name or "scores" in name for name in differing)
