"""Tokenizers: a chat template if a checkpoint lacks one, and the tokens that are never sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
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
LLADA_TEMPLATE = (  # the assistant's header always follows: LLaDA always answers
    f"{START}{{% for message in messages %}}{HEADER}{{{{ message['role'] }}}}{HEADER_END}{{{{"
    f" '\\n\\n' }}}}{{{{ message['content'] | trim }}}}{END_OF_TURN}{{% endfor"
    f" %}}{HEADER}assistant{HEADER_END}{{{{ '\\n\\n' }}}}"
)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder.

    A tokenizer with LLaDA's special tokens and without a chat template gets LLaDA's template.

    Raises:
        DopsdError: if the files are missing or damaged, or there is no template to use.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        files = "tokenizer.json and tokenizer_config.json"
        raise DopsdError(
            f"{folder}: cannot read a tokenizer ({reason}...); copy {files} into the folder",
            code=Code.TOKENIZER,
        ) from error
    if tokenizer.chat_template is None:
        missing = {START, HEADER, HEADER_END, END_OF_TURN} - set(tokenizer.get_vocab())
        if missing:
            names = ", ".join(sorted(missing))
            raise DopsdError(
                f"{folder}: the tokenizer has no chat template, and lacks {names} for LLaDA's; add"
                " a template",
                code=Code.TOKENIZER,
            )
        tokenizer.chat_template = LLADA_TEMPLATE
    return tokenizer


def suppress_tokens(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> list[int]:
    """Return the ids that must never be sampled, sorted.

    These are the mask, every special token but end of text and end of turn, and rows of the
    embedding without a token.

    Args:
        tokenizer: the checkpoint's tokenizer.
        config: the checkpoint's config, with mask_token_id, eos_token_id and embedding_size.

    Raises:
        DopsdError: if mask_token_id is no special token, or equals eos_token_id.
    """
    vocabulary = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    if config.mask_token_id not in special or config.mask_token_id == config.eos_token_id:
        raise DopsdError(
            f"tokenizer: mask_token_id {config.mask_token_id} of config.json must be a special"
            f" token, and not eos_token_id {config.eos_token_id}; take config.json and the"
            " tokenizer from the same checkpoint",
            code=Code.TOKENIZER,
        )
    allowed = {config.eos_token_id, vocabulary.get(END_OF_TURN)}
    return sorted(special - allowed | set(range(config.embedding_size)) - set(vocabulary.values()))
