"""Tokenizers: a chat template if a checkpoint lacks one, and the tokens that are never sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from dopsd.core.errors import Code, DopsdError
from dopsd.models.template_date import CLOCK, MACRO, NOTE
from dopsd.models.text import PlainTokens, prompt_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dopsd.models.denoiser import DenoiserConfig

START, HEADER, HEADER_END, END_OF_TURN = (
    "<|startoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
SAME = "take config.json and the tokenizer from the same checkpoint"
LLADA_TEMPLATE = (  # the assistant's header always follows: LLaDA always answers
    f"{START}{{% for message in messages %}}{HEADER}{{{{ message['role'] }}}}{HEADER_END}{{{{"
    f" '\\n\\n' }}}}{{{{ message['content'] | trim }}}}{END_OF_TURN}{{% endfor"
    f" %}}{HEADER}assistant{HEADER_END}{{{{ '\\n\\n' }}}}"
)


def load_tokenizer(folder: Path, config: DenoiserConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder; no code in the folder is run.

    A tokenizer with LLaDA's special tokens and without a chat template gets LLaDA's template.

    Args:
        config: its config; if it names the text of the mask, a tokenizer without one gets it; if
            its texts end with the turn, it gets that token's id.
    """
    try:
        tokenizer = _read(folder, config)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        files = "tokenizer.json and tokenizer_config.json"
        raise Code.TOKENIZER.error(
            f"{folder}: cannot read a tokenizer ({reason}...); copy {files} into the folder"
        ) from error
    if tokenizer.chat_template is None:
        missing = {START, HEADER, HEADER_END, END_OF_TURN} - set(tokenizer.get_vocab())
        if missing:
            names = ", ".join(sorted(missing))
            raise Code.TOKENIZER.error(
                f"{folder}: the tokenizer has no chat template, and lacks {names} for LLaDA's; add"
                " a template"
            )
        tokenizer.chat_template = LLADA_TEMPLATE
    with rendering(folder):
        prompt_text(tokenizer, config, [{"role": "user", "content": "1 + 1"}])
    if config.mask_token:
        _add_mask(tokenizer, config, folder)
    if config.text_ends_with_turn:
        vocabulary = tokenizer.get_vocab()
        config.eos_token_id = vocabulary.get(config.end_of_turn, config.eos_token_id)
    return tokenizer


@contextmanager
def rendering(
    place: Path | str,
    advice: str = "correct it, or download the file again",
    code: Code = Code.TOKENIZER,
) -> Iterator[None]:
    """Turn the failure of a chat template in this context into one line."""
    try:
        yield
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise DopsdError(
            f"{place}: the tokenizer's chat template cannot be rendered"
            f" ({' '.join(str(error).split())}); {advice}",
            code=code,
        ) from error


def template_notes(tokenizer: PreTrainedTokenizerBase, config: DenoiserConfig) -> list[str]:
    """Return what a user may not expect of a chat template: a date, or no generation prompt."""
    text = str(tokenizer.chat_template)
    notes = [NOTE] if CLOCK in text and MACRO not in text else []
    question, answer = {"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "two"}
    with rendering(tokenizer.name_or_path):
        asked = prompt_text(tokenizer, config, [question])
        plain = prompt_text(tokenizer, config, [question], begins=False)
        told = prompt_text(tokenizer, config, [question, answer], begins=False)
    before = told.rpartition(answer["content"])[0]
    if asked == plain and before.startswith(asked) and (header := before.removeprefix(asked)):
        notes.append(
            "the chat template writes no generation prompt, so that answers begin without"
            f" {header!r}; add it under `if add_generation_prompt`"
        )
    return notes


def _read(folder: Path, config: DenoiserConfig) -> PreTrainedTokenizerBase:
    """Read the files of a tokenizer; one with code of its own is read by classes of transformers.

    Raises:
        OSError: if files are missing.
        ValueError: if files are damaged, or there is no class to read them.
    """
    import transformers

    kind, wanted = transformers.AutoTokenizer, {"config": config, "trust_remote_code": False}
    if "auto_map" in transformers.models.auto.tokenization_auto.get_tokenizer_config(folder):
        has_all = (folder / "tokenizer.json").is_file()
        name = "PreTrainedTokenizerFast" if has_all else config.tokenizer_name
        if not name:
            raise ValueError("it needs code of its own, which is not run")
        kind, wanted = getattr(transformers, name), {}
    tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(
        folder, local_files_only=True, **wanted
    )
    tokenizer.init_kwargs.pop("auto_map", None)  # a copy of the files comes without the code
    return tokenizer


def _add_mask(tokenizer: PreTrainedTokenizerBase, config: DenoiserConfig, folder: Path) -> None:
    text = {i: text for text, i in tokenizer.get_vocab().items()}.get(config.mask_token_id)
    if text is not None:
        if text.lower() != config.mask_token.lower() and text != tokenizer.mask_token:
            raise Code.TOKENIZER.error(
                f"{folder}: mask_token_id {config.mask_token_id} of config.json is {text} in the"
                f" tokenizer, not the mask {config.mask_token}; {SAME}"
            )
        return
    tokenizer.add_special_tokens({"mask_token": config.mask_token})
    if tokenizer.mask_token_id != config.mask_token_id:
        raise Code.TOKENIZER.error(
            f"{folder}: the mask {config.mask_token} would be token {tokenizer.mask_token_id} of"
            f" this tokenizer, but the model's is {config.mask_token_id}; {SAME}"
        )


def suppress_tokens(tokenizer: PreTrainedTokenizerBase, config: DenoiserConfig) -> list[int]:
    """Return the ids that must never be sampled, sorted.

    These are the mask, every special token but end of text, padding and end of turn, and rows of
    the embedding without a token.
    """
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
    mask = config.mask_token_id
    is_other = tokenizer.mask_token_id not in {None, mask}
    if mask not in special | set(added) or mask == config.eos_token_id or is_other:
        raise Code.TOKENIZER.error(
            f"tokenizer: mask_token_id {mask} of config.json must be the tokenizer's mask, or a"
            f" special token if it names none, and not eos_token_id {config.eos_token_id}; {SAME}"
        )
    ends = {vocabulary.get(config.end_of_turn), tokenizer.eos_token_id}
    allowed = ({config.eos_token_id, tokenizer.pad_token_id} | ends) - {mask}
    unused = set(range(config.embedding_size)) - set(vocabulary.values())
    return sorted((special | {mask}) - allowed | unused)


class TokenCounts:
    """The texts of a checkpoint folder's tokenizer."""

    def __init__(self, folder: Path) -> None:
        from dopsd.models.registry import read_config

        self.config = read_config(folder)
        self.longest: int = self.config.max_sequence_length  # tokens of prompt and completion
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
