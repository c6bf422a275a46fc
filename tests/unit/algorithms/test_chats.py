"""Rows of chats: what is learnt of them, and what is refused with its row."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from autoregressive_toys import CHATML

from dopsd.algorithms.common.chats import chat_of, check_chats, tokens_of
from dopsd.core.errors import DopsdError
from dopsd.models.template_date import without_clock
from dopsd.models.text import PlainTokens, build_tokenizer, prompt_text
from dopsd.models.tokenizer import LLADA_TEMPLATE, template_notes
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.sources import Row

QUESTION = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL, PARTS = {"role": "tool", "content": "5"}, {"content": [{"type": "text"}]}
CALLS = {"tool_calls": [{"id": 1}]}
PAIR = {"question": "q", "response": "a"}


def row(**values: Any) -> Row:
    return Row(values, "c.jsonl", 7)


@pytest.mark.parametrize(
    ("values", "chat"),
    [
        (PAIR, [QUESTION]),
        (PAIR | {"system_prompt": "Be brief."}, [SYSTEM, QUESTION]),
        (PAIR | {"system": "Be brief.", "system_prompt": ""}, [SYSTEM, QUESTION]),
        (PAIR | {"messages": None, "tools": [], "weight": 1.0}, [QUESTION]),
        ({"messages": [QUESTION, ANSWER], "system_prompt": "Be brief."}, [SYSTEM, QUESTION]),
        (
            {"messages": [QUESTION, ANSWER | {"weight": 0}, QUESTION, ANSWER | {"weight": 1}]},
            [QUESTION, ANSWER, QUESTION],
        ),
        ({"messages": [QUESTION, ANSWER | {"tool_calls": None, "thinking": False}]}, [QUESTION]),
        (PAIR | {"messages": [], "tools": "[]", "weight": "1.00", "system": " "}, [QUESTION]),
        ({"messages": [QUESTION, ANSWER], "question": "q", "response": ""}, [QUESTION]),
    ],
)
def test_what_stands_before_an_answer_is_learnt(values, chat):
    assert chat_of(row(**values)) == (chat, "a")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"messages": [QUESTION, ANSWER | {"content": ""}]}, "messages[1] (assistant) is blank"),
        ({"messages": [QUESTION | {"content": " \n"}, ANSWER]}, "messages[0] (user) is blank"),
        ({"messages": [QUESTION, ANSWER], **PAIR}, "messages, and also question and response"),
        ({"messages": [SYSTEM, QUESTION, ANSWER], "system": "t"}, "column system and a system"),
        (PAIR | {"response": " "}, "expected a text in column response"),
        (PAIR | {"system_prompt": 5}, "expected a text in column system_prompt"),
        (PAIR | {"reasoning_content": "why"}, "reasoning_content is not learnt, found why"),
        (PAIR | {"tools": [{"name": "f"}]}, "tools is not learnt"),
        (PAIR | {"weight": 0.5}, "weight: only 1 is learnt, found 0.5; remove it, or the row"),
        ({"messages": [QUESTION, ANSWER | {"weight": 0}]}, "messages[1].weight: only 1 is learnt"),
        ({"messages": [QUESTION, ANSWER, QUESTION]}, "found: messages[2] is the user's"),
        ({"messages": [ANSWER]}, "found: messages[0] is the assistant's"),
        ({"messages": "[{...}]"}, "expected messages as a list of {role, content}, found str"),
        ({"messages": [QUESTION, TOOL, ANSWER]}, "messages[1]: expected"),
        ({"messages": [QUESTION | PARTS, ANSWER]}, "messages[0].content: "),
        (
            {"messages": [QUESTION, ANSWER | {"reasoning_content": "r"}, QUESTION, ANSWER]},
            "messages[1].reasoning_content is not learnt, found r; remove it, or the row",
        ),
        ({"messages": [QUESTION, ANSWER | CALLS]}, "messages[1].tool_calls is not learnt"),
        ({"conversations": [{"from": "human"}]}, "columns found: conversations"),
    ],
)
def test_what_would_be_dropped_is_refused_with_row_and_key(values, said):
    with pytest.raises(DopsdError, match=r"^c.jsonl:7: ") as found:
        chat_of(row(**values))
    assert said in str(found.value)


def plain(template: str) -> PlainTokens:
    tokenizer: Any = build_tokenizer()
    tokenizer.chat_template = template
    config: Any = SimpleNamespace(template_options={}, mask_token_id=tokenizer.mask_token_id)
    return PlainTokens(tokenizer, config)


STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "turns", "said"),
    [
        (STRICT, [SYSTEM, QUESTION, ANSWER], "cannot be rendered (no system); change the chat"),
        (STRICT, [QUESTION, QUESTION, ANSWER], "cannot be rendered (roles must alternate)"),
        ("{{ messages[2:][0:1][5].x if messages | length > 1 }}", [QUESTION, ANSWER] * 2, "cannot"),
        ("{{ 1 // (messages | length - 3) }}", [QUESTION, ANSWER] * 2, "cannot be rendered ("),
    ],
)
def test_every_chat_is_rendered_before_anything_is_learnt(tmp_path: Path, template, turns, said):
    path = tmp_path / "chats.jsonl"
    rows = [{"messages": t} for t in ([QUESTION, ANSWER], turns, [QUESTION, ANSWER], turns)]
    path.write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    model = plain(template + CHATML if template == STRICT else template)
    with pytest.raises(DopsdError) as found:
        check_chats(Source(path=str(path)), "k", model)
    first, second = [line for line in found.value.lines if said in line][:2]
    assert f"{path}:2: " in first + second and f"{path}:4: " in first + second
    text: Any = SimpleNamespace(encode=model.chat, tokens=model.text)
    with pytest.raises(DopsdError, match=r"c\.jsonl:7: "):  # as training does
        tokens_of(row(messages=turns), text)


def test_columns_keys_and_turns_that_nobody_reads_are_named_once(tmp_path: Path):
    path = tmp_path / "chats.jsonl"
    values = {"messages": [SYSTEM | {"name": "x"}, QUESTION, ANSWER], "source": "web", "id": ""}
    path.write_text(f"{json.dumps(values)}\n" * 2 + json.dumps(values | {"question": "dropped"}))
    template = CHATML.replace("in messages %}", "in messages if message.role != 'system' %}")
    answers, notes = check_chats(Source(path=str(path)), "k", plain(template))
    assert answers == ["a"] * 3
    columns, turns = (note.removeprefix(f"k: {path}: ") for note in notes)
    assert columns == "not read: source, question (1 of 3 rows), messages.name"
    assert turns == "the chat template leaves out system turns of 3 of 3 chats"


def test_an_answer_without_a_token_is_refused_and_no_text_is_of_another_dtype():
    nothing = torch.zeros(0, dtype=torch.long)
    text: Any = SimpleNamespace(encode=lambda chat: nothing, tokens=lambda answer: nothing)
    with pytest.raises(DopsdError, match=r"c.jsonl:7: no token for the answer 'a'"):
        tokens_of(row(**PAIR), text)


DATED = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y %f') }}{% endif %}"


@pytest.mark.parametrize(
    "form",
    [
        DATED,
        DATED.replace("'%d %b %Y %f'", '"%H:%M:%S.%f 2024"'),
        "{{ strftime_now(x) }}2024",
        "{{ strftime_now(format='%Y-%m-%d %f') }}",
        "{{ strftime_now ('%Y' ~ '-%f') }}",
        "{% set now = strftime_now %}{{ now('%Y %f') }}",
        "{{ (strftime_now('%Y') | int) + 0 }}{{ strftime_now(y if y else '%f') }}",
    ],
)
def test_a_template_that_writes_the_time_writes_the_same_always(form):
    model = plain("\n{% set x = '%f' %}" + form + CHATML)
    assert prompt_text(plain("\n" + CHATML).tokenizer, model.config, [QUESTION])[0] == "\n"
    first, second = [prompt_text(model.tokenizer, model.config, [QUESTION]) for _ in range(2)]
    assert first == second and "2024" in first and "000000" in first, first
    assert first[0] == "\n"  # as without the macro
    assert "prompts get 26 Jul 2024" in template_notes(model.tokenizer, model.config)[0]
    model.tokenizer.chat_template = without_clock(model.tokenizer.chat_template)  # of a base made
    assert prompt_text(model.tokenizer, model.config, [QUESTION]) == first
    assert template_notes(model.tokenizer, model.config) == []


THINKING = CHATML.replace(
    "\n{{ message.content }}",
    "\n{% if message.role == 'assistant' %}<think></think>{% endif %}{{ message.content }}",
)


@pytest.mark.parametrize(
    ("template", "notes"),
    [
        (CHATML, 0),
        (LLADA_TEMPLATE, 0),  # its header always follows
        (THINKING, 0),  # Qwen3's writes empty thoughts before an answer in the chat
        (CHATML.partition("{% if add_generation_prompt")[0], 1),
    ],
)
def test_a_template_without_a_generation_prompt_is_noted(template, notes):
    model = plain(template)
    found = template_notes(model.tokenizer, model.config)
    assert len(found) == notes
    assert all(r"answers begin without '<|im_start|>assistant\n'" in note for note in found)
