"""Conversion between chats, texts and token ids, with a checkpoint's tokenizer and template."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from dopsd.models.denoiser import Denoiser, DenoiserConfig


def prompt_text(
    tokenizer: PreTrainedTokenizerBase,
    config: DenoiserConfig,
    messages: list[dict[str, str]],
    prefill: str = "",
) -> str:
    """Return a chat as the text that a model gets, up to where the answer begins.

    Args:
        tokenizer: the checkpoint's tokenizer, with a chat template.
        config: the checkpoint's config, with the options of its template.
        messages: the chat, as {role, content}.
        prefill: text with which the answer begins.
    """
    options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True}
    header = tokenizer.apply_chat_template(messages, **options | config.template_options)
    return f"{header}{prefill}"


class ChatText:
    """The Text of a policy; token ids are in main memory.

    Args:
        tokenizer: the checkpoint's tokenizer, with a chat template.
        model: the model, whose end-of-sequence id counts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: Denoiser) -> None:
        self.tokenizer, self.config = tokenizer, model.config
        self.eos_id = model.config.eos_token_id
        self.end_of_turn = model.config.end_of_turn

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor:
        """Return the token ids [P] of a chat, up to where the answer begins.

        Args:
            messages: the chat, as {role, content}.
            prefill: text after the assistant's header, with which the answer begins.
        """
        return self.tokens(prompt_text(self.tokenizer, self.config, messages, prefill))

    def tokens(self, text: str) -> Tensor:
        """Return the token ids [n] of a text; no special tokens are added."""
        return torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Tensor, after_eos: bool = False, special: bool = True) -> str:
        """Return the text before the first end-of-sequence token.

        Args:
            ids: [n].
            after_eos: return the text of all tokens, as the published scorers read it.
            special: write special tokens out; False: leave them out, as published rewards do.
        """
        row = ids.tolist()
        end = row.index(self.eos_id) if self.eos_id in row and not after_eos else len(row)
        if special:
            return str(self.tokenizer.decode(row[:end]))
        ends = {self.eos_id, self.tokenizer.added_tokens_encoder.get(self.end_of_turn)}
        kept = [token for token in row[:end] if token not in ends]
        return str(self.tokenizer.decode(kept, skip_special_tokens=True))

    def pieces(self, ids: Tensor) -> list[str]:
        """Return the text of each token; joined, they are the decoded text of all tokens.

        A character that several tokens make up belongs to the last of them.
        """
        row, texts = ids.tolist(), [""]
        for end in range(1, len(row) + 1):
            text = str(self.tokenizer.decode(row[:end]))
            is_whole = not text.endswith("\ufffd") or end == len(row)
            texts.append(text if is_whole else texts[-1])
        return [text[len(before) :] for before, text in pairwise(texts)]
