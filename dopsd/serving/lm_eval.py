"""The model `dopsd` of lm-evaluation-harness, and its command with that model.

    python -m dopsd.serving.lm_eval run --model dopsd --tasks TASK \
        --model_args path=base/sudoku,adapter=runs/sudoku/d_opsd/0/best,gen_length=40

The harness finds no models of other packages by itself, so that this module registers ours and
then runs its command line, with all of its options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string
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


THEIRS = {"pretrained": "path", "peft": "adapter"}  # names of the harness's own model `hf`
HARNESS = ("device", "batch_size", "max_batch_size")
OURS = ("path", "adapter", "protocol", "dtype", *EvalProtocol.model_fields)
OTHERS = ("draws", "seed", "block_size")


def check_words(path: object, options: dict[str, Any]) -> None:
    """Refuse words of --model_args that are unknown, and a missing path."""
    for name in (name for name in options if name not in (*OURS, *OTHERS, *HARNESS)):
        line = f"model_args: {name}: unknown; did you mean {THEIRS.get(name)}?"
        line = line if name in THEIRS else unknown(f"model_args: {name}", [*OURS, *OTHERS])
        raise Code.UNKNOWN_NAME.error(line)
    if path in ("", None):
        raise Code.ARGUMENT.error(
            "model_args: path is missing; name the folder of the base, as in path=base/sudoku"
        )


def _whole(options: dict[str, Any], name: str, default: int, least: int) -> int:
    value = options.pop(name, default)
    if not str(value).isdecimal() or int(value) < least:
        raise Code.ARGUMENT.error(
            f"model_args: {name}: expected a whole number from {least} on, found {value!r:.40}"
        )
    return int(value)


@register_model("dopsd")
class HarnessModel(LM):  # type: ignore[misc]  # the harness is not typed
    """A diffusion language model with our sampler, and LLaDA's estimate of likelihoods."""

    def __init__(
        self,
        path: str = "",
        adapter: str | None = None,
        protocol: str | None = None,
        dtype: Dtype = "float32",
        **options: Any,  # noqa: ANN401  # words of --model_args
    ) -> None:
        """Load the model.

        Args:
            adapter: folder of a checkpoint; None: the base alone.
            protocol: one of `evaluate.protocols` of params.yaml in this folder; None: `options`.
            **options: keys of a protocol (gen_length, block_length, steps, threshold, ...);
                block_size of a base whose config.json does not tell it; draws: masks of a
                likelihood (128, as LLaDA); seed; device and batch_size of the harness.
        """
        super().__init__()
        check_words(path, options)
        self.draws, self.seed = _whole(options, "draws", 128, 1), _whole(options, "seed", 0, 0)
        device, size = options.pop("device", None), options.pop("batch_size", None)
        block_size = options.pop("block_size", None)
        options.pop("max_batch_size", None)
        if str(device).startswith("cuda") and not torch.cuda.is_available():
            device = None  # the harness asks for a GPU where nobody said so
        known: dict[str, Any] = {"gen_length": 256, "block_length": 32}
        if protocol is not None:
            protocols = load_params().evaluate.protocols
            if protocol not in protocols:
                raise Code.UNKNOWN_NAME.error(unknown(f"protocol {protocol}", protocols))
            known = protocols[protocol].model_dump()
        known |= options | ({"batch_size": size} if str(size).isdecimal() and int(size) > 1 else {})
        if "steps" not in known and str(known["gen_length"]).isdecimal():
            known["steps"] = int(known["gen_length"]) // 2
        try:
            self.protocol = EvalProtocol.model_validate(known)
        except ValueError as error:
            reason = " ".join(str(error).split()[:40])
            raise Code.ARGUMENT.error(f"model_args: {reason}") from error
        if self.protocol.merged or self.protocol.autocast != "none":
            raise Code.ARGUMENT.error(
                "model_args: a protocol that merges the adapter or computes in autocast is for"
                " `dopsd evaluate --protocol`; name another one"
            )
        folder = None if adapter is None else str(adapter)  # the harness makes a number of `5`
        self.path = str(path)
        self.policy = load_policy(self.path, folder, device, dtype, block_size=block_size)
        self.text = cast(ChatText, self.policy.text)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> HarnessModel:
        """Return the model; words of --model_args count before the command line's defaults."""
        return cls(**((additional_config or {}) | arg_dict))

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> HarnessModel:
        """Return the model; the same for --model_args as one text."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

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
        last = {} if add_generation_prompt else chat_history[-1]  # with which the answer begins
        chat = chat_history if add_generation_prompt else chat_history[:-1]
        config = self.text.plain.config
        return prompt_text(self.text.tokenizer, config, chat, last.get("content", ""))

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return an answer to each context, up to its first stop text.

        Lengths and steps are the protocol's; of the task, `until`, `temperature` and `do_sample`
        count. A turn ends the answer too.
        """
        answers: dict[int, str] = {}
        kwargs = [r.args[1] for r in requests]
        temperatures = [float(k.get("temperature") or 0) * k.get("do_sample", True) for k in kwargs]
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
                until = kwargs[i].get("until") or []
                stops = [until] if isinstance(until, str) else until
                for stop in filter(None, [*stops, self.text.end_of_turn]):
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
            context, end = request.args
            kept = context.rstrip()  # as LLaDA: a space belongs to the word that follows
            whole, prompt = self._ids(context + end), self._ids(kept)
            target = whole[len(prompt) :]
            if len(whole) > self.policy.max_length:
                raise self._too_long(i, len(whole))
            found.append((self._bound(prompt, target, i), self._is_greedy(prompt, target)))
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
        """Return the ids of a context and the protocol's prefill, cut if the protocol says so."""
        ids = self._ids(requests[i].args[0] + self.protocol.prefill)
        ids = ids[-(self.protocol.max_prompt_tokens or len(ids)) :]
        if len(ids) + self.protocol.gen_length > self.policy.max_length:
            raise self._too_long(i, len(ids) + self.protocol.gen_length)
        return ids

    def _too_long(self, i: int, length: int) -> DopsdError:
        return Code.MISFIT.error(
            f"lm_eval: request {i}: {length} tokens with the answer exceed the model's"
            f" {self.policy.max_length}; lower gen_length or --num_fewshot"
        )

    def _key(self, i: int) -> int:
        return key_from("lm_eval", self.seed, i, "", 0)

    @torch.no_grad()
    def _bound(self, context: Tensor, target: Tensor, i: int) -> float:
        """Return the bound of ln p(target | context), in nats; of one token it is exact."""
        if not len(target):
            return 0.0
        draws = self.draws if len(target) > 1 else 1
        keys = fold_in(torch.tensor(self._key(i)), torch.arange(draws)[:, None])  # [N, 1]
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
        return total / draws

    def _is_greedy(self, context: Tensor, target: Tensor) -> bool:
        """Return whether greedy denoising, a token a step, writes the target."""
        length = len(target) + -len(target) % (self.policy.block_size or 1)  # whole blocks
        plan = replace(decoding(self.protocol), threshold=None, cache="none", gen_length=length)
        plan = replace(plan, block_length=self.policy.block_size or length, steps=length)
        requests = [GenerationRequest("0", 0, context, self._key(0))] if length else []
        rollouts = denoise_all(self.policy, requests, plan)
        return all(torch.equal(r.completion_ids[: len(target)], target) for r in rollouts)


def main() -> None:
    """Run the harness's command line; a refusal is one line."""
    try:
        cli_evaluate()
    except DopsdError as error:
        log(f"lm_eval: {error.coded}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
