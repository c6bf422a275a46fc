"""Conversion between chats, texts and token ids, with a checkpoint's tokenizer and template."""

from __future__ import annotations

import re
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from dopsd.models.denoiser import Denoiser, DenoiserConfig


MARK = "\ufdd0"  # a noncharacter in the text of a special token, while a template renders it


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


def _marked(text: str) -> str:
    return f"{text[:1]}{MARK}{text[1:]}"


class PlainTokens:
    """Token ids of chats and texts in which only the chat's template writes special tokens.

    The text of a special token in a message or a solution is tokenized as any other text.

    Args:
        tokenizer: the checkpoint's tokenizer, with a chat template.
        config: the model's config, with the options of the template and with the mask, which a
            tokenizer may not flag as special.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DenoiserConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        added = tokenizer.added_tokens_decoder
        ids = {i for i, token in added.items() if token.special} | {*tokenizer.all_special_ids}
        self.ids = {i for i in ids | {config.mask_token_id} if i in added}
        texts = sorted((added[i].content for i in self.ids), key=len, reverse=True)
        self.texts = [text for text in texts if len(text) > 1]  # the embedded base's ? is one token
        self.pattern = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        marked = "|".join(re.escape(_marked(text)) for text in self.texts)
        self.marked = re.compile(f"({marked or '(?!)'})")

    def chat(self, messages: list[dict[str, str]], prefill: str = "") -> list[int]:
        """Return the ids of a chat, up to where the answer begins."""
        plain = [message | {"content": self._mark(message["content"])} for message in messages]
        return self._tokens(prompt_text(self.tokenizer, self.config, plain, prefill))

    def text(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens."""
        return self._tokens(self._mark(text))

    def special(self, text: str) -> str | None:
        """Return the first text of a special token in a text; None without one."""
        found = self.pattern.search(text)
        return found and found[0]

    def _mark(self, text: str) -> str:
        return self.pattern.sub(lambda found: _marked(found[0]), text)

    def _tokens(self, text: str) -> list[int]:
        parts = self.marked.split(text)  # every second one is the marked text of a special token
        ids = [
            self._split(part.replace(MARK, "")) if n % 2 else self._ids(part)
            for n, part in enumerate(parts)
            if part
        ]
        return list(chain.from_iterable(ids))

    def _ids(self, text: str, **how: bool) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, **how)["input_ids"]
        return ids

    def _split(self, text: str) -> list[int]:
        """Return the ids of the text of a special token, which is no such token itself."""
        ids = self._ids(text, split_special_tokens=True)
        if self.ids.isdisjoint(ids):
            return ids
        return self._ids(text[:1]) + self._ids(text[1:])  # a token without the flag


class ChatText:
    """The Text of a policy; token ids are in main memory.

    Args:
        tokenizer: the checkpoint's tokenizer, with a chat template.
        model: the model, whose end-of-sequence id counts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: Denoiser) -> None:
        self.tokenizer = tokenizer
        self.plain = PlainTokens(tokenizer, model.config)
        self.eos_id = model.config.eos_token_id
        self.end_of_turn = model.config.end_of_turn

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor:
        """Return the token ids [P] of a chat, up to where the answer begins.

        The text of special tokens in messages stays text.

        Args:
            messages: the chat, as {role, content}.
            prefill: text after the assistant's header, with which the answer begins.
        """
        return torch.tensor(self.plain.chat(messages, prefill))

    def tokens(self, text: str) -> Tensor:
        """Return the token ids [n] of a text; none of them is a special token."""
        return torch.tensor(self.plain.text(text))

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
