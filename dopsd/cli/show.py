"""Terminal output of `dopsd sample`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dopsd.config.params import Params
from dopsd.core.types import NEVER


def sample(
    params: Params,
    task_name: str,
    puzzle: str | None,
    adapter: Path | None,
    temperature: float,
    seed: int,
) -> None:
    """Denoise one answer and print the state after every step: new tokens green, masks as dots.

    Args:
        task_name: Task that asks the problem and verifies the answer.
        puzzle: Problem as text; None takes the first test problem.
        adapter: Checkpoint folder; None takes the base model.
        temperature: Sampling temperature; 0 is greedy.
    """
    from dopsd.core.fingerprint import key_from
    from dopsd.evaluation.evaluator import Evaluator
    from dopsd.models.adapter_files import shape_of
    from dopsd.rollout.engine import sampler_of
    from dopsd.rollout.prompts import decoding
    from dopsd.rollout.sampler import GenerationRequest

    settings = params.evaluation(task_name)
    if adapter:
        settings = replace(settings, lora=shape_of(adapter))
    evaluator = Evaluator(settings, "test")
    problem = evaluator.task.ask(puzzle) if puzzle else evaluator.problems[0]
    policy = evaluator.with_adapter(adapter)
    prompt = evaluator.prompt_of(problem)
    request = GenerationRequest(problem.id, 0, prompt, key_from("sample", seed, problem.id))
    how = decoding(params.sampling, temperature)
    (rollout,) = sampler_of(how)(policy, [request], how)
    console = Console()
    console.print(f"problem {problem.prompt}", markup=False)
    tokens = policy.tokenizer.convert_ids_to_tokens(rollout.completion_ids.tolist())
    made = {*rollout.revealed_at.tolist()} - {NEVER}
    for step in range(how.steps) if how.threshold is None else sorted(made):
        console.print(
            Text(f"{step:4} ").append_text(_state(tokens, rollout.revealed_at.tolist(), step)),
            soft_wrap=True,
        )
    text = policy.text.decode(rollout.completion_ids, params.sampling.text_after_eos)
    score = evaluator.task.verify(problem, text)
    console.print(
        f"answer {score.answer}   score {score.score:.2f}   solution {problem.answer}",
        markup=False,
    )


def _state(tokens: Sequence[str], revealed: list[int], step: int) -> Text:
    line = Text()
    for token, revealed_step in zip(tokens, revealed, strict=True):
        displayed = "_" if token.startswith("<|") else token
        line.append(
            displayed if revealed_step <= step else "·",
            style="bold green" if revealed_step == step else "",
        )
    return line
