"""Tokenizers: the chat template where a checkpoint lacks one, and the tokens that must never be
sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.errors import DopsdError

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedTokenizerBase

START, HEADER, HEADER_END, END_OF_TURN = (
    "<|startoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
LLADA_TEMPLATE = (  # the assistant's header always follows: LLaDA only ever answers
    f"{START}{{% for message in messages %}}{HEADER}{{{{ message['role'] }}}}{HEADER_END}{{{{"
    f" '\\n\\n' }}}}{{{{ message['content'] | trim }}}}{END_OF_TURN}{{% endfor"
    f" %}}{HEADER}assistant{HEADER_END}{{{{ '\\n\\n' }}}}"
)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer; one with LLaDA's special tokens and no chat template gets LLaDA's."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        files = "tokenizer.json and tokenizer_config.json"
        raise DopsdError(
            f"{folder}: no tokenizer can be read there ({reason}...); copy {files} into it"
        ) from error
    if tokenizer.chat_template is None:
        missing = {START, HEADER, HEADER_END, END_OF_TURN} - set(tokenizer.get_vocab())
        if missing:
            names = ", ".join(sorted(missing))
            raise DopsdError(
                f"{folder}: the tokenizer has no chat template, and no {names} for LLaDA's; add a"
                " template"
            )
        tokenizer.chat_template = LLADA_TEMPLATE
    return tokenizer


def suppress_tokens(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> list[int]:
    """The mask, every special token but the end of text and of turn, and embedding rows that are no
    token.
    """
    vocabulary = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    if config.mask_token_id not in special or config.mask_token_id == config.eos_token_id:
        raise DopsdError(
            f"tokenizer: mask_token_id {config.mask_token_id} of config.json must be one of its"
            f" special tokens, and not eos_token_id {config.eos_token_id}; take config.json and the"
            " tokenizer from the same checkpoint"
        )
    allowed = {config.eos_token_id, vocabulary.get(END_OF_TURN)}
    return sorted(special - allowed | set(range(config.embedding_size)) - set(vocabulary.values()))
