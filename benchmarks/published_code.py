"""Compare this project with a checkout of the published d-OPSD code, check by check.

    git clone https://github.com/xingzhejun/d-OPSD CHECKOUT
    python benchmarks/published_code.py CHECKOUT

Both sides compute with one small model with random weights and LLaDA's vocabulary: nothing is
downloaded, and a CPU needs a minute. The functions of d-opsd/utils.py and d-opsd/d_opsd_trainer.py
run unchanged; trl, which the trainer imports, is replaced by blank modules. Three things are made
equal, because they cannot agree by themselves: random numbers, the tokens that may be sampled, and
the dtype float32. Fails if a check disagrees. It does not run `_generate_and_score_completions`,
whose reveal draws other positions, nor DeepSpeed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from published_sides import (
    LENGTHS,
    PROMPT,
    AsTheirs,
    Losses,
    blocks_of,
    gradients,
    keyed_noise,
    published,
    their_inputs,
    toy,
)
from torch import Tensor

from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.algorithms.d_opsd.states import recorded_steps
from dopsd.core.rng import bfloat16_uniform, fold_in, uniform_table
from dopsd.core.types import Rollout
from dopsd.models.llm_policy import LlmPolicy
from dopsd.rollout.config import Decoding
from dopsd.rollout.sampler import GenerationRequest, choose, denoise
from dopsd.tasks.registry import TASKS, load_task
from dopsd.training.config import TrainConfig
from dopsd.training.optim import adamw, optimizer_step

VARIANTS: dict[str, dict[str, Any]] = {
    "reference": {},
    "forward KL": {"divergence": "forward_kl"},
    "JSD": {"divergence": "jsd", "jsd_beta": 0.3},
    "no clip, whole vocabulary": {"clip": None, "loss_vocabulary": "full"},
    "student's positions": {"position_selection": "student"},
    "live teacher": {"teacher": "live"},
}
ROLLOUTS = [(0, 0.0), (1, 0.9), (2, 0.9), (3, 0.9), (4, 0.9)]  # key and temperature
TEXTS = 5000
BOXES = ("\\boxed{", "\\boxed ", "\\boxed {", "\\boxed", "\\fbox{", "{", "}", "$")
TAGS = ("<answer>", "</answer>", "<|eot_id|>", "<|endoftext|>", "```", "\n", " ", ",")
ANSWERS = ("5", "1/2", "49+55-53", "=51", "x", "-3.5", "1234341221434321")


@dataclass
class Tally:
    """The checks so far."""

    failed: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, name: str, is_same: bool, note: str = "") -> None:
        """Print one check."""
        self.count += 1
        self.failed += [] if is_same else [name]
        sys.stdout.write(f"{'agrees ' if is_same else 'DIFFERS'}  {name}{note and f'  ({note})'}\n")

    def close(self, name: str, theirs: Tensor, ours: Tensor) -> None:
        """Compare two tensors within float32's rounding."""
        scale = max(theirs.abs().max().item(), 1e-12)
        gap = (theirs - ours).abs().max().item() / scale
        self.add(name, gap < 1e-4, f"relative difference {gap:.1e}")


def check_schedule(tally: Tally, utils: ModuleType) -> None:
    """Compare how many tokens each step commits."""
    for block, steps in ((32, 16), (8, 3), (7, 7), (10, 4)):
        theirs = utils.get_num_transfer_tokens(torch.ones(1, block, dtype=torch.bool), steps)
        ours = Decoding(block, block, steps).num_transfer_tokens
        tally.add(f"schedule: {block} tokens in {steps} steps", theirs[0].tolist() == ours)


def check_noise(tally: Tally, utils: ModuleType) -> None:
    """Compare the tokens that the same bfloat16 draws choose."""
    logits, keys = torch.randn(200, 1000) * 3, fold_in(torch.arange(200), 7)
    draws = bfloat16_uniform(uniform_table(keys, 1000))
    with mock.patch.object(torch, "rand_like", lambda *_, **__: draws):
        theirs = utils.add_gumbel_noise(logits, 0.9, torch.bfloat16).argmax(-1)
    ours = choose(logits, keys, Decoding(1, 1, 1, 0.9, "bfloat16"))
    tally.add("noise: tokens chosen in bfloat16", torch.equal(theirs, ours))
    device = "cuda" if torch.cuda.is_available() else "cpu"  # torch 2.11's CPU draws otherwise
    shares = (
        torch.rand(2**20, dtype=torch.bfloat16, device=device) == 0,
        bfloat16_uniform(torch.rand(2**20)) == 0,
    )
    zeros = [512 * float(share.double().mean()) for share in shares]
    note = f"512 x the share of draws that are 0: {zeros[0]:.2f} and {zeros[1]:.2f}"
    tally.add("noise: distribution of torch.rand", abs(zeros[0] - zeros[1]) < 0.15, note)


def check_rollout(
    tally: Tally, utils: ModuleType, policy: LlmPolicy, key: int, temperature: float
) -> tuple[Rollout, Tensor]:
    """Compare a rollout and its recorded states; return ours, and theirs [S, P+G]."""
    name = f"rollout {key} at temperature {temperature}"
    request = GenerationRequest("toy", 0, PROMPT, key)
    ours = denoise(policy, [request], Decoding(**LENGTHS, temperature=temperature))[0]
    ids = {"mask_id": policy.mask_id, "eos_token_id": policy.eos_id}
    with keyed_noise(key):
        sequence, states = utils.generate(
            AsTheirs(policy), PROMPT[None], temperature=temperature, **LENGTHS, **ids
        )
    tally.add(f"{name}: tokens", torch.equal(sequence[0, len(PROMPT) :], ours.completion_ids))
    steps = torch.tensor(recorded_steps(ours, DOpsdConfig(), blocks_of(policy)))
    masked = ours.revealed_at >= steps[:, None]
    expected = torch.where(masked, policy.mask_id, ours.completion_ids)
    theirs = torch.cat(states)
    is_same = torch.equal(theirs[:, len(PROMPT) :], expected)
    tally.add(f"{name}: recorded states", is_same, f"{len(theirs)} states")
    return ours, theirs


def check_losses(
    tally: Tally, module: ModuleType, policy: LlmPolicy, rollout: Rollout, recorded: Tensor
) -> None:
    """Compare losses and gradients of every update of a rollout, in every variant."""
    for name, changes in VARIANTS.items():
        both = Losses(module, policy, DOpsdConfig(**changes), rollout)
        inputs = their_inputs(rollout, recorded, both.updates)
        for number in range(len(both.updates)):
            theirs, ours = both.theirs(number, inputs), both.ours(number)
            tally.close(f"{name}: loss of update {number + 1}", theirs.detach(), ours.detach())
            found = [gradients(policy, loss) for loss in (theirs, ours)]
            tally.close(f"{name}: gradient of update {number + 1}", *found)
    wrong = both.theirs(0, inputs | {"is_correct": False})
    tally.add("a wrong answer: their loss is 0", wrong.item() == 0)


def check_steps(
    tally: Tally, module: ModuleType, policy: LlmPolicy, rollout: Rollout, recorded: Tensor
) -> None:
    """Compare the weights after four updates: warm-up, clipping, AdamW."""
    from transformers import get_constant_schedule_with_warmup

    both = Losses(module, policy, DOpsdConfig(), rollout)
    inputs = their_inputs(rollout, recorded, both.updates)
    settings, weights = TrainConfig(learning_rate=1e-3), list(policy.trainable().values())
    start, after = flat(weights), []
    optimizer = torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = get_constant_schedule_with_warmup(optimizer, 1)
    for number in range(len(both.updates)):
        optimizer.zero_grad()
        both.theirs(number, inputs).backward()
        torch.nn.utils.clip_grad_norm_(weights, 0.2)
        optimizer.step()
        schedule.step()
        after.append(flat(weights) - start)
    torch.nn.utils.vector_to_parameters(start.clone(), weights)
    policy.core.zero_grad()
    ours = adamw(weights, settings)
    for number in range(len(both.updates)):
        both.ours(number).backward()
        optimizer_step(ours, SimpleNamespace(num_processes=1), settings, number)  # type: ignore[arg-type]
        name = f"movement of the weights after update {number + 1}"
        tally.close(name, after[number], flat(weights) - start)


def flat(weights: list[Tensor]) -> Tensor:
    """Return a copy of all weights in one row."""
    return torch.nn.utils.parameters_to_vector(weights).detach().clone()


def texts() -> Iterator[str]:
    """Yield random texts of what answer extraction looks for."""
    draw = random.Random(0)
    for _ in range(TEXTS):
        yield "".join(draw.choices(BOXES + TAGS + ANSWERS, k=draw.randint(0, 9)))


def check_scores(tally: Tally, utils: ModuleType) -> None:
    """Compare the scores of random texts, by task."""
    tasks = {name: load_task(name, TASKS.config_class(name)()) for name in TASKS.names}
    puzzle = tasks["sudoku"].ask("0204032001400402")
    asked = puzzle.answer, puzzle.prompt
    answers = {"gsm8k": 5.0, "math500": "5", "countdown": [[49, 55, 53], 51]}
    problems = {name: tasks[name].of_generation("q", gold) for name, gold in answers.items()}
    problems["sudoku"] = puzzle
    scorers = {
        "gsm8k": lambda text: utils.get_all_parsed_answer(text, "5", "gsm8k")[1],
        "math500": lambda text: utils.get_all_parsed_answer(text, r"\boxed{5}", "math")[1],
        "countdown": lambda text: utils.get_parsed_answer_countdown(text, [49, 55, 53], 51)[1],
        "sudoku": lambda text: utils.get_parsed_answer_sudoku(text, *asked)[1],
    }
    for name, scorer in scorers.items():
        differing = [
            text
            for text in texts()
            if float(scorer(text)) != tasks[name].verify(problems[name], text).score
        ]
        note = f"{TEXTS} random texts" + (f"; {differing[0]!r} differs" if differing else "")
        tally.add(f"{name}: scores", not differing, note)


def main() -> None:
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "d-opsd" / "utils.py").is_file():
        sys.exit("usage: python benchmarks/published_code.py CHECKOUT, which has d-opsd/utils.py")
    tally, (utils, module), policy = Tally(), published(Path(sys.argv[1])), toy()
    check_schedule(tally, utils)
    check_noise(tally, utils)
    rollouts = [check_rollout(tally, utils, policy, k, t) for k, t in ROLLOUTS]
    longest = max(rollouts, key=lambda item: len(item[1]))
    check_losses(tally, module, policy, *longest)
    check_steps(tally, module, policy, *longest)
    check_scores(tally, utils)
    sys.stdout.write(f"{tally.count - len(tally.failed)} of {tally.count} checks agree\n")
    sys.exit(bool(tally.failed))


if __name__ == "__main__":
    main()
