"""The model `dopsd` of lm-evaluation-harness, and its command with that model.

    python -m dopsd.serving.lm_eval run --model dopsd --tasks TASK \
        --model_args path=base/sudoku,adapter=runs/sudoku/d_opsd/0/best,gen_length=40

The harness finds no models of other packages by itself, so that this module registers ours and
then runs its command line, with all of its options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from torch import Tensor

from dopsd.algorithms.common.losses import token_logps
from dopsd.algorithms.common.views import random_subset
from dopsd.api.policy import load_policy
from dopsd.config.loading import load_params
from dopsd.core.errors import Code, DopsdError, unknown
from dopsd.core.progress import Progress, log
from dopsd.core.rng import fold_in, key_from, uniform
from dopsd.models.text import ChatText, prompt_text
from dopsd.rollout.config import EvalProtocol
from dopsd.rollout.engine import denoise_all
from dopsd.rollout.prompts import decoding
from dopsd.rollout.sampler import GenerationRequest

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from dopsd.models.config import Dtype


@register_model("dopsd")
class HarnessModel(LM):  # type: ignore[misc]  # the harness is not typed
    """A diffusion language model with our sampler, and LLaDA's estimate of likelihoods."""

    def __init__(
        self,
        path: str,
        adapter: str | None = None,
        protocol: str | None = None,
        dtype: Dtype = "float32",
        **options: Any,  # noqa: ANN401  # words of --model_args
    ) -> None:
        """Load the model.

        Args:
            path: folder of the base.
            adapter: folder of a checkpoint; None: the base alone.
            protocol: one of `evaluate.protocols` of params.yaml in this folder; None: `options`.
            dtype: of the base's weights.
            **options: keys of a protocol (gen_length, block_length, steps, threshold, ...);
                draws: masks of a likelihood (128, as LLaDA); seed; device; batch_size of the
                harness.

        Raises:
            DopsdError: if a name is unknown, or the model cannot be loaded.
        """
        super().__init__()
        self.draws, self.seed = int(options.pop("draws", 128)), int(options.pop("seed", 0))
        device, size = options.pop("device", None), options.pop("batch_size", None)
        options.pop("max_batch_size", None)
        if str(device).startswith("cuda") and not torch.cuda.is_available():
            device = None  # the harness asks for a GPU where nobody said so
        known: dict[str, Any] = {"gen_length": 256, "block_length": 32}
        if protocol is not None:
            protocols = load_params().evaluate.protocols
            if protocol not in protocols:
                raise DopsdError(unknown(f"protocol {protocol}", protocols), code=Code.UNKNOWN_NAME)
            known = protocols[protocol].model_dump()
        if wrong := [name for name in options if name not in EvalProtocol.model_fields]:
            names = [*EvalProtocol.model_fields, "draws", "seed"]
            raise DopsdError(unknown(f"model_args: {wrong[0]}", names), code=Code.UNKNOWN_NAME)
        known |= options | ({"batch_size": size} if str(size).isdecimal() else {})
        known.setdefault("steps", int(known["gen_length"]) // 2)
        self.protocol = EvalProtocol.model_validate(known)
        self.policy = load_policy(path, adapter, device, dtype)
        self.path, self.text = path, cast(ChatText, self.policy.text)

    @property
    def tokenizer_name(self) -> str:
        """The folder of the tokenizer, for the harness's caches."""
        return self.path

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the chat template of the base."""
        return str(self.text.tokenizer.chat_template)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a chat as the text that the base gets."""
        return prompt_text(self.text.tokenizer, self.text.plain.config, chat_history)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return an answer to each context, up to its first stop text.

        Lengths and steps are the protocol's; of the task, `until` and `temperature` count.
        """
        answers: dict[int, str] = {}
        temperatures = [float(r.args[1].get("temperature") or 0.0) for r in requests]
        for temperature in sorted({*temperatures}):
            chosen = [i for i, other in enumerate(temperatures) if other == temperature]
            asked = [
                GenerationRequest(str(i), 0, self._fitting(i, requests), self._key(i))
                for i in chosen
            ]
            plan = decoding(self.protocol, temperature)
            with Progress("lm_eval", len(asked), "answer") as progress:
                rollouts = denoise_all(self.policy, asked, plan, lambda n: progress.step(n))
            for i, rollout in zip(chosen, rollouts, strict=True):
                answer = self.text.decode(rollout.completion_ids)
                for stop in filter(None, _listed(requests[i].args[1].get("until"))):
                    answer = answer.partition(stop)[0]
                answers[i] = answer
                self.cache_hook.add_partial("generate_until", requests[i].args, answer)
        return [answers[i] for i in range(len(requests))]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Return a bound of ln p(continuation) for each context, and whether it is greedy.

        The bound is LLaDA's (arXiv 2502.09992, Eq. 6): the mean over `draws` masks of l of the
        continuation's L tokens of L / l times the sum of their ln p.
        """
        found = []
        for i, request in enumerate(requests):
            context, whole = (self._ids(text) for text in (request.args[0], "".join(request.args)))
            target = whole[len(context) :]
            found.append((self._bound(context, target, i), self._is_greedy(context, target)))
        return found

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Return the bound of ln p of each text, in parts of the model's length."""
        totals = []
        for i, request in enumerate(requests):
            parts = self._ids(request.args[0]).split(self.policy.max_length)
            empty = torch.tensor([], dtype=torch.long)
            totals.append(sum(self._bound(empty, part, i) for part in parts))
        return totals

    def _ids(self, text: str) -> Tensor:
        """Return the ids [n] of a text of the harness, which may have a template's tokens."""
        ids = self.text.tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.long)

    def _fitting(self, i: int, requests: Sequence[Instance]) -> Tensor:
        """Return the ids of a context.

        Raises:
            DopsdError: if the model has no room for it and an answer.
        """
        ids, room = self._ids(requests[i].args[0]), self.policy.max_length
        if len(ids) + self.protocol.gen_length > room:
            raise DopsdError(
                f"lm_eval: context {i}: {len(ids)} tokens and an answer of"
                f" {self.protocol.gen_length} exceed the model's {room}; lower gen_length or"
                " --num_fewshot",
                code=Code.MISFIT,
            )
        return ids

    def _key(self, i: int) -> int:
        return key_from("lm_eval", self.seed, i, "", 0)

    @torch.no_grad()
    def _bound(self, context: Tensor, target: Tensor, i: int) -> float:
        """Return the bound of ln p(target | context), in nats."""
        keys = fold_in(torch.tensor(self._key(i)), torch.arange(self.draws)[:, None])  # [N, 1]
        draw = uniform(fold_in(keys, torch.arange(len(target) + 1)))  # [N, L+1]
        masks = random_subset(draw, torch.ones(len(target), dtype=torch.bool))  # [N, L]
        total = 0.0
        for mask in masks.split(self.protocol.batch_size):
            ids = torch.cat(
                [
                    context.expand(len(mask), -1),
                    target.expand(len(mask), -1).masked_fill(mask, self.policy.mask_id),
                ],
                1,
            ).to(self.policy.device)
            targets = target.expand(len(mask), -1).to(self.policy.device)
            logps = token_logps(self.policy, ids, None, targets).cpu()  # [n, L]
            total += ((logps * mask).sum(1) * len(target) / mask.sum(1)).sum().item()
        return total / self.draws

    def _is_greedy(self, context: Tensor, target: Tensor) -> bool:
        """Return whether greedy denoising, a token a step, writes the target."""
        length = len(target)
        plan = replace(
            decoding(self.protocol), gen_length=length, block_length=length, steps=length
        )
        (rollout,) = denoise_all(
            self.policy, [GenerationRequest("0", 0, context, self._key(0))], plan
        )
        return bool(torch.equal(rollout.completion_ids, target))


def _listed(stops: str | Sequence[str] | None) -> Iterator[str]:
    yield from [stops] if isinstance(stops, str) else stops or []


def main() -> None:
    """Run the harness's command line; a refusal is one line."""
    try:
        cli_evaluate()
    except DopsdError as error:
        log(f"lm_eval: {error.coded}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
