"""The answer inside a generation, in characters and in tokens, and another answer in its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from texts import golden, needs_golden
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dopsd.models.text import ChatText
from dopsd.rollout.answer_span import answer_in_text, answer_span, with_answer
from dopsd.tasks.gsm8k.task import number
from dopsd.tasks.registry import TASKS, load_task

if TYPE_CHECKING:
    from torch import Tensor

EOS, EOT = "<|endoftext|>", "<|eot_id|>"


@pytest.mark.parametrize(
    ("text", "answer", "closing"),
    [
        (r"so \boxed{3}<answer> \boxed{18} </answer> or 4", "18", "} </answer>"),
        (r"<answer>\boxed{\frac{1}{2}}</answer>", r"\frac{1}{2}", "}</answer>"),
        (r"<answer>\boxed{1} no, \boxed{ 2 }</answer>", " 2 ", "}</answer>"),
        ("<answer>\n\\boxed{18}<|eot_id|>", "18", "}"),  # never closed: the box counts
        ("<answer>\n 1234 \n</answer>\n", "1234", " \n</answer>"),
        (r"<answer>\boxed 5</answer>", r"\boxed 5", "</answer>"),  # no brace: the text counts
        (r"<answer>\boxed{5</answer>", r"\boxed{5", "</answer>"),
        ("<answer>12</answer><answer>34</answer>", "12", "</answer>"),
        ("<answer> </answer>", "", " </answer>"),
        ("<answer>12<|eot_id|>", None, None),
        (r"\boxed{18}</answer>", None, None),
    ],
)
def test_the_answer_of_a_text(text: str, answer: str | None, closing: str | None):
    span = answer_in_text(text)
    found = (None, None) if span is None else (text[slice(*span[:2])], text[slice(*span[1:])])
    assert found == (answer, closing)


def tokenizer(*words: str) -> ChatText:
    """Characters as tokens, and words that the tokenizer prefers to them."""
    characters = [*dict.fromkeys("</answer> \\boxed{}1234567890abc\n")]
    vocabulary = {token: i for i, token in enumerate([*characters, *words])}
    merges, made = [], set(characters)
    for word in words:  # each is a known word and one more character
        merges.append((word[:-1], word[-1]) if word[:-1] in made else (word[0], word[1:]))
        made.add(word)
    model = Tokenizer(models.BPE(vocabulary, merges))
    model.pre_tokenizer, model.decoder = pre_tokenizers.Split("\0", "isolated"), decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=model, clean_up_tokenization_spaces=False)
    fast.add_special_tokens({"eos_token": EOS, "additional_special_tokens": [EOT]})
    config = SimpleNamespace(eos_token_id=fast.eos_token_id, end_of_turn=EOT, mask_token_id=-1)
    return ChatText(fast, SimpleNamespace(config=config))


def completion(text: ChatText, written: str, length: int) -> Tensor:
    ids = torch.tensor(text.tokenizer(written)["input_ids"])  # with special tokens, as sampled
    return torch.cat([ids, torch.full((length - len(ids),), text.eos_id)])


CHARACTERS = tokenizer()


def filled(text: ChatText, written: str, length: int, answer: str):
    ids = completion(text, written, length)
    span = answer_span(text, ids, text.eos_id)
    return span, with_answer(text, ids, span, answer, text.eos_id)


@pytest.mark.parametrize(
    ("answer", "length", "after", "end", "closed"),
    [
        ("43", 30, f"b{EOT}", 11, 11),  # of the same length: nothing else changes
        ("4", 25, EOT, 10, 19),  # another length: the tail is built again
        ("4321", 25, EOT, 13, 22),
        ("1234567", 25, "", 16, 25),  # no room for the end of the turn
    ],
)
def test_an_answer_replaces_the_old_one(answer, length, after, end, closed):
    text = f"a<answer>12</answer>{after or EOT}"
    span, new = filled(CHARACTERS, text, length, answer)
    assert (span.start, span.end, span.closed, span.answer) == (9, 11, 20, "12")
    assert CHARACTERS.decode(new.ids) == f"a<answer>{answer}</answer>{after}"
    assert (new.start, new.end, new.closed) == (9, end, closed) and len(new.ids) == length


def test_the_text_after_the_answer_goes_and_an_open_answer_keeps_its_brace():
    assert CHARACTERS.decode(filled(CHARACTERS, "<answer>1</answer>ab", 30, "23")[1].ids) == (
        "<answer>23</answer>"
    )
    new = filled(CHARACTERS, rf"<answer>\boxed{{1}}{EOT}", 30, "23")[1]
    assert CHARACTERS.decode(new.ids) == rf"<answer>\boxed{{23}}{EOT}"
    assert (new.start, new.end, new.closed) == (15, 17, 18)


def test_an_answer_that_does_not_fit_or_cannot_be_written_is_none():
    assert filled(CHARACTERS, "a<answer>12</answer>", 25, "12345678")[1] is None  # 26 tokens
    assert filled(CHARACTERS, "a<answer>12</answer>", 25, "q2")[1] is None  # no such character


def test_a_token_across_an_edge_counts_whole_and_its_other_characters_stay():
    words = tokenizer(">1", "12", "2<", "{1", "3}")
    span, new = filled(words, "<answer>123</answer>", 25, "45")
    assert (span.start, span.end) == (7, 10)  # `>1` is the eighth token; then `2`, `3`
    assert (span.before, span.answer, span.after) == (">", "123", "")
    assert words.decode(new.ids) == "<answer>45</answer>" and new.end - new.start == 3
    span, new = filled(words, r"<answer>\boxed{13}</answer>", 30, "5")
    assert (span.before, span.answer, span.after) == ("{", "13", "}")
    assert words.decode(new.ids) == r"<answer>\boxed{5}</answer>"


@needs_golden
@pytest.mark.parametrize(
    ("name", "spans", "unread", "others"),
    [
        # unread: 4 have an earlier box, which the scorer reads; 1 has no gold answer
        # others: 4 boxes are empty, 1 holds no number, 1 closes too late, 1 follows another box
        ("gsm8k", 885, 5, 7),
        # unread: 7 answers have no whole box, so that the scorer reads all of the text; after 2 a
        # box follows. others: 2 boxes are empty, and 7 of the unread are not what the scorer takes
        ("math500", 403, 9, 9),
    ],
)
def test_the_verifier_reads_the_span_of_published_generations(name, spans, unread, others):
    task = load_task(name, TASKS.config_class(name)())
    found = 0
    for row in golden(name):
        problem = task.of_generation(row["question"], row["ground_truth"])
        text = row["generation"].partition(EOS)[0]
        span = answer_in_text(text)
        if span is None:
            continue
        found += 1
        own, read = text[span.start : span.end], task.verify(problem, text).answer
        is_same = number(own, 0) == float(read or "nan") if name == "gsm8k" else own == read
        others -= not is_same
        replaced = text[: span.start] + problem.answer + text[span.end :]
        unread -= not task.verify(problem, replaced).correct
    assert (found, unread, others) == (spans, 0, 0)
