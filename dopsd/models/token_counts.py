"""A checkpoint's tokenizer without its weights: prompts as text, lengths, and what it can write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.models.text import PlainTokens, prompt_text
from dopsd.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class TokenCounts:
    """The texts of a checkpoint folder's tokenizer.

    Attributes:
        longest: tokens of prompt and completion that the model was trained for.
    """

    def __init__(self, folder: Path) -> None:
        from dopsd.models.architecture import read_config

        self.config = read_config(folder)
        self.longest: int = self.config.max_sequence_length
        self.tokenizer = load_tokenizer(folder, self.config)
        self.plain = PlainTokens(self.tokenizer, self.config)

    def prompt(self, messages: list[dict[str, str]], prefill: str) -> str:
        """Return a chat as the text that the model gets."""
        return prompt_text(self.tokenizer, self.config, messages, prefill)

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        return [len(self.plain.text(text)) for text in texts]

    def is_written(self, text: str) -> bool:
        """Return whether the tokens of a text give it back, but for white space."""
        decoded = str(self.tokenizer.decode(self.plain.text(text)))
        return "".join(decoded.split()) == "".join(text.split())


def token_counts(folder: Path) -> TokenCounts | None:
    """Return a folder's tokenizer; None if the checkpoint is not there."""
    is_there = all((folder / n).is_file() for n in ("config.json", "tokenizer_config.json"))
    return TokenCounts(folder) if is_there else None
