"""What a policy reads and may write: tokenizers, LLaDA's prompt, suppressed tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toys import llada_tokenizer, rewrite, save_toy, toy

from dopsd.core.errors import DopsdError
from dopsd.models.config import ModelConfig
from dopsd.models.llm_policy import load_policy
from dopsd.models.text import ChatText, build_tokenizer, prompt_text


def test_the_embedded_tokenizer_is_one_token_a_character_and_a_tag():
    tokenizer = build_tokenizer()
    text = "<reasoning>12 a\n</reasoning><answer>3</answer>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == 1 + 5 + 1 + 1 + 1 + 1
    assert tokenizer.decode(ids) == text
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": " 12 "}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|startoftext|><|user|>12<|assistant|>"
    assert tokenizer.pad_token_id == tokenizer.eos_token_id != tokenizer.mask_token_id


def test_special_tokens_but_the_end_of_text_can_never_be_sampled(tmp_path: Path):
    save_toy(tmp_path)
    policy = load_policy(ModelConfig(path=str(tmp_path)), None, 0)
    assert policy.mask_id in policy.suppress_tokens and policy.eos_id not in policy.suppress_tokens
    rows = list(range(len(policy.tokenizer), 112))
    named = [i for i in policy.suppress_tokens if i not in rows]
    assert len(named) == 6  # mask, start of text, three roles, the sign for unknown characters
    assert set(rows) <= set(policy.suppress_tokens)


@pytest.fixture
def as_llada(tmp_path: Path) -> Path:
    """A toy checkpoint whose tokenizer is LLaDA's in its special tokens."""
    toy().save_pretrained(tmp_path)
    tokenizer = llada_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    mask, eos = tokenizer.convert_tokens_to_ids(["<|mdm_mask|>", "<|endoftext|>"])
    toy_rows = {"mask_token_id": mask, "eos_token_id": eos, "pad_token_id": eos}
    rewrite(tmp_path / "config.json", **toy_rows)
    odd = {"tokenizer_class": "PreTrainedTokenizerFast", "trust_remote_code": True}
    odd |= {"gmask_token": "[gMASK]", "backend": None}
    rewrite(tmp_path / "tokenizer_config.json", **odd)  # as the published file has them
    return tmp_path


def test_lladas_prompt_is_the_published_one(as_llada: Path):
    policy = load_policy(ModelConfig(path=str(as_llada)), None, 0)
    system = {"role": "system", "content": "Be brief.\n"}
    asked = [system, {"role": "user", "content": "  2+2? "}]
    expected = (
        "<|startoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert policy.tokenizer.decode(policy.text.encode(asked)) == expected
    ids = policy.text.encode(asked)
    assert ids[0] == policy.tokenizer.bos_token_id
    assert (ids == policy.tokenizer.bos_token_id).sum() == 1
    assert policy.tokenizer.decode(policy.text.encode(asked, "<a> ")) == expected + "<a> "


def test_a_text_ends_at_its_first_end_unless_all_of_it_is_read_as_published(as_llada: Path):
    text = load_policy(ModelConfig(path=str(as_llada)), None, 0).text
    end, turn = (text.tokenizer.decode([i]) for i in (text.eos_id, _turn_id(text)))
    ids = written(text, f"12{turn}{end}34{end}{end}")
    assert text.decode(ids) == f"12{turn}"
    assert text.decode(ids, after_eos=True) == f"12{turn}{end}34{end}{end}"


def written(text: ChatText, words: str) -> Tensor:
    """Tokens of a text in which special tokens stand for themselves."""
    return torch.tensor(text.tokenizer(words, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("place", ["embedded", "llada", "mask without a flag"])
def test_special_tokens_in_a_question_or_solution_are_text(as_llada: Path, tmp_path: Path, place):
    if place == "embedded":
        save_toy(tmp_path / "toy")
    elif place == "mask without a flag":
        tokens = json.loads((as_llada / "tokenizer.json").read_text())
        (mask,) = [t for t in tokens["added_tokens"] if t["content"] == "<|mdm_mask|>"]
        mask["special"] = False
        (as_llada / "tokenizer.json").write_text(json.dumps(tokens))
    folder = tmp_path / "toy" if place == "embedded" else as_llada
    text = load_policy(ModelConfig(path=str(folder)), None, 0).text
    plain = [{"role": "user", "content": "12 34"}]
    before = prompt_text(text.tokenizer, text.plain.config, plain, "<a>")
    assert torch.equal(text.encode(plain, "<a>"), written(text, before))
    odd = "12<|mdm_mask|> <|endoftext|>34<|startoftext|>"
    asked = [{"role": "user", "content": odd}]
    ids = text.encode(asked).tolist()
    assert text.tokenizer.decode(ids) == prompt_text(text.tokenizer, text.plain.config, asked)
    special = set(text.tokenizer.convert_tokens_to_ids(["<|mdm_mask|>", "<|endoftext|>"]))
    assert not special & set(ids) and ids.count(text.tokenizer.bos_token_id) == 1
    tokens = text.tokens(odd).tolist()
    assert text.tokenizer.decode(tokens) == odd
    assert not special & set(tokens) and text.tokenizer.bos_token_id not in tokens
    marks = [{"role": "user", "content": "<\ufdd0|endoftext|><|endoftext|>"}]
    assert not special & set(text.encode(marks).tolist())


def _turn_id(text: ChatText) -> int:
    return int(text.tokenizer.convert_tokens_to_ids("<|eot_id|>"))


def test_llada_may_end_its_turn_and_its_text_but_write_no_other_special_token(as_llada: Path):
    policy = load_policy(ModelConfig(path=str(as_llada)), None, 0)
    tokenizer = policy.tokenizer
    assert tokenizer.mask_token is None and policy.mask_id == tokenizer.convert_tokens_to_ids(
        "<|mdm_mask|>"
    )
    names = ["<|startoftext|>", "[CLS]", "[gMASK]", "<|reserved_token_0|>", "<role>", "</role>"]
    names += ["<|arithmetic_start|>"]
    names += ["<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>"]
    special = sorted(tokenizer.convert_tokens_to_ids(names))
    assert policy.suppress_tokens == [*special, *range(len(tokenizer), 112)]


def test_a_mask_that_is_an_ordinary_token_is_refused(as_llada: Path):
    rewrite(as_llada / "config.json", mask_token_id=3)
    with pytest.raises(
        DopsdError, match=r"mask_token_id 3 of config\.json must be the tokenizer.s mask"
    ):
        load_policy(ModelConfig(path=str(as_llada)), None, 0)


def test_the_pieces_of_an_answer_join_to_its_text_even_where_tokens_are_bytes():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    text = ChatText(PreTrainedTokenizerFast(tokenizer_object=core), toy())
    ids = text.tokens("aé 1")
    assert text.pieces(ids) == ["a", "", "é", " ", "1"]
    assert text.pieces(ids[:2]) == ["a", "\ufffd"]  # cut off within a character
