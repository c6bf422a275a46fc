"""Conversion between chats, texts and token ids, with a checkpoint's tokenizer and template."""

from __future__ import annotations

import re
import string
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dopsd.models.template_date import CLOCK, without_clock

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from dopsd.models.config import EmbeddedShape
    from dopsd.models.denoiser import Denoiser, DenoiserConfig

MARK = "\ufdd0"  # a noncharacter in the text of a special token, while a template renders it


def prompt_text(
    tokenizer: PreTrainedTokenizerBase,
    config: DenoiserConfig,
    messages: list[dict[str, str]],
    prefill: str = "",
    begins: bool = True,
) -> str:
    """Return a chat as the text that a model gets, up to where the answer begins.

    The date in it is a fixed one.

    Args:
        messages: the chat, as {role, content}.
        begins: whether the template's generation prompt follows the chat.
    """
    options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": begins}
    if CLOCK in str(tokenizer.chat_template):
        options["chat_template"] = without_clock(tokenizer.get_chat_template())
    header = tokenizer.apply_chat_template(messages, **options | config.template_options)
    return f"{header}{prefill}"


def _marked(text: str) -> str:
    return f"{text[:1]}{MARK}{text[1:]}"


class PlainTokens:
    """Token ids of chats and texts in which only the chat's template writes special tokens.

    The text of a special token in a message or a solution is tokenized as any other text.

    Args:
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
    """The Text of a policy; token ids are in main memory."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: Denoiser) -> None:
        self.tokenizer = tokenizer
        self.plain = PlainTokens(tokenizer, model.config)
        self.eos_id = model.config.eos_token_id
        self.end_of_turn = model.config.end_of_turn

    def encode(self, messages: list[dict[str, str]], prefill: str = "") -> Tensor:
        """Return the token ids [P] of a chat, up to where the answer begins.

        The text of special tokens in messages stays text.
        """
        return torch.tensor(self.plain.chat(messages, prefill), dtype=torch.long)

    def tokens(self, text: str) -> Tensor:
        """Return the token ids [n] of a text; none of them is a special token."""
        return torch.tensor(self.plain.text(text), dtype=torch.long)

    def decode(self, ids: Tensor, after_eos: bool = False, special: bool = True) -> str:
        """Return the text before the first end-of-sequence token."""
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


EOS, MASK, BOS = "<|endoftext|>", "<|mdm_mask|>", "<|startoftext|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim"
    " }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of the embedded model.

    Every character is a token; tags, roles, mask and end of text are single tokens. As in LLaDA,
    padding is end of text.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [EOS, MASK, BOS, *ROLES, *TAGS, *CHARACTERS]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        mask_token=MASK,
        unk_token="?",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(ROLES)})
    tokenizer.add_tokens(list(TAGS))
    tokenizer.chat_template = TEMPLATE
    tokenizer.padding_side = "left"
    return tokenizer


def build_config(shape: EmbeddedShape, tokenizer: PreTrainedTokenizerFast) -> DenoiserConfig:
    """Return the config of the embedded model: LLaDA-8B's architecture, or SDAR's, at small width.

    Args:
        shape: widths and depth, and the blocks of SDAR.
        tokenizer: the tokenizer, whose vocabulary and special tokens count.
    """
    ids = {
        "mask_token_id": tokenizer.mask_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if shape.block_size:
        from dopsd.models.sdar.architecture import SdarConfig

        return SdarConfig(
            hidden_size=shape.d_model,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_heads,
            head_dim=shape.d_model // shape.n_heads,
            num_hidden_layers=shape.n_layers,
            intermediate_size=shape.mlp_hidden_size,
            vocab_size=len(tokenizer),
            tie_word_embeddings=False,
            max_position_embeddings=256,
            rope_parameters={"rope_theta": shape.rope_theta, "rope_type": "default"},
            block_size=shape.block_size,
            block_alignment="completion",  # short prompts would differ by where they end
            **ids,
        )
    from dopsd.models.llada.configuration import LladaConfig

    return LladaConfig(
        d_model=shape.d_model,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_heads,
        n_layers=shape.n_layers,
        mlp_hidden_size=shape.mlp_hidden_size,
        vocab_size=len(tokenizer),
        embedding_size=len(tokenizer),
        weight_tying=False,
        max_sequence_length=256,
        rope_theta=shape.rope_theta,
        **ids,
    )
