"""Chats to learn from: rows {question, response} or {messages}, and what a template refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code, DopsdError
from dopsd.models.text import prompt_text
from dopsd.models.tokenizer import rendering
from dopsd.tasks.common.sources import EMPTY, Row, encodable, text_of, unread

if TYPE_CHECKING:
    from torch import Tensor

    from dopsd.models.policy import Text
    from dopsd.models.text import PlainTokens
    from dopsd.tasks.common.config import Source

Chat = list[dict[str, str]]
ROLES = ("system", "user", "assistant")
SYSTEM = ("system_prompt", "system")  # columns of a system turn
PAIR = ("question", "response")
# keys of rows and messages that would change what is learnt
UNLEARNT = (
    *("reasoning_content", "reasoning", "thinking", "tool_calls", "function_call"),
    *("tools", "functions", "images", "audio"),
)
NOTHING = ("", "[]", "{}", "null", "none", "false")  # as texts of CSV files


def chat_of(row: Row) -> tuple[Chat, str]:
    """Return the chat and the answer of a row {question, response} or {messages}.

    A text in column system_prompt or system is the chat's first turn.
    """
    _refuse_unlearnt(row, row.values, "")
    if row.values.get("messages") in EMPTY:
        chat, answer = _asked(row)
    else:
        *chat, last = _messages(row)
        answer = last["content"]
    name = next((n for n in SYSTEM if str(row.values.get(n) or "").strip()), None)
    if name and chat[0]["role"] == "system":
        raise _fault(row, f"column {name} and a system turn in messages; keep one of them")
    first = [{"role": "system", "content": text_of(row, name)}] if name else []
    return first + chat, answer


def _asked(row: Row) -> tuple[Chat, str]:
    """Return the question as a chat, and the response."""
    if not row.values.keys() >= {*PAIR}:
        raise _fault(
            row,
            f"expected columns {' and '.join(PAIR)}, or messages; columns found:"
            f" {', '.join(row.values) or 'none'}; mend the row",
        )
    return [{"role": "user", "content": text_of(row, "question")}], text_of(row, "response")


def _messages(row: Row) -> Chat:
    """Return the messages of a row."""
    messages: Any = row.values["messages"]
    peek = getattr(row.values, "unnoted", row.values)
    if all(peek.get(name) not in EMPTY for name in PAIR):
        raise _fault(row, f"messages, and also {' and '.join(PAIR)}; keep one of them")
    if not isinstance(messages, list):
        kind = type(messages).__name__
        raise _fault(row, f"expected messages as a list of {{role, content}}, found {kind}")
    chat = [_message(row, f"messages[{n}]", message) for n, message in enumerate(messages)]
    if len(chat) < 2 or chat[-1]["role"] != "assistant":  # noqa: PLR2004  # a question and its answer
        last = f"messages[{len(chat) - 1}] is the {chat[-1]['role']}'s" if chat else "none"
        raise _fault(
            row, f"expected messages that end with the assistant's answer to a turn, found: {last}"
        )
    _refuse_weight(row, messages[-1], f"messages[{len(chat) - 1}].")
    return chat


def _message(row: Row, place: str, message: Any) -> dict[str, str]:  # noqa: ANN401  # any JSON value
    """Return a message of a chat; `place` names it in the row."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        found = message.get("role") if isinstance(message, dict) else message
        raise _fault(
            row,
            f"{place}: expected a role of {', '.join(ROLES)}, found {found!r:.40}; remove the row",
        )
    _refuse_unlearnt(row, message, f"{place}.")
    content = message.get("content")
    if not isinstance(content, str):
        raise _fault(row, f"{place}.content: expected a text, found {content!r:.40}")
    if not content.strip():
        raise _fault(row, f"{place} ({message['role']}) is blank; fill it, or remove the row")
    return {"role": message["role"], "content": encodable(row, "messages", content)}


def _refuse_unlearnt(row: Row, values: Mapping[str, Any], where: str) -> None:
    """Refuse keys that would change what is learnt, unless they say nothing."""
    for key in UNLEARNT:
        value = values.get(key)
        if value and str(value).strip().lower() not in NOTHING:
            raise _fault(
                row, f"{where}{key} is not learnt, found {str(value)[:40]}; remove it, or the row"
            )
    if not where:
        _refuse_weight(row, values, where)


def _refuse_weight(row: Row, values: Mapping[str, Any], where: str) -> None:
    """Refuse a weight other than 1 of a row, or of the message that is learnt."""
    weight = values.get("weight")
    if weight not in (None, "") and str(weight).lower() != "true" and not _is_one(str(weight)):
        raise _fault(row, f"{where}weight: only 1 is learnt, found {weight}; remove it, or the row")


def _is_one(text: str) -> bool:
    with suppress(ValueError):
        return float(text) == 1.0
    return False


def _fault(row: Row, message: str) -> DopsdError:
    return Code.SOURCE_ROW.error(f"{row.place}: {message}")


def _refusing(row: Row) -> Any:  # noqa: ANN401  # a context manager
    """Turn what the chat template refuses of a row in this context into one line."""
    return rendering(row.place, "change the chat, or remove the row", Code.SOURCE_ROW)


def tokens_of(row: Row, text: Text) -> tuple[Tensor, Tensor]:
    """Return the tokens of a row's chat [P] and of its answer [n]."""
    chat, answer = chat_of(row)
    with _refusing(row):
        prompt = text.encode(chat)
    if not len(tokens := text.tokens(answer)):
        raise _fault(row, f"no token for the answer {answer[:40]!r}; remove the row")
    return prompt, tokens


def check_chats(source: Source, key: str, plain: PlainTokens) -> tuple[list[str], list[str]]:
    """Render every chat of a local file, and return the answers and notes.

    Args:
        plain: tokenizer and config of the model that learns.
    """
    answers: list[str] = []
    lost, others = Counter[str](), dict[str, None]()

    def learn(row: Row) -> None:
        chat, answer = chat_of(row)
        with _refusing(row):
            text = prompt_text(plain.tokenizer, plain.config, chat)
        lost.update({m["role"] for m in chat if m["content"].strip() not in text})
        for message in row.values.get("messages") or ():
            others.update(dict.fromkeys(message.keys() - {"role", "content", "weight", *UNLEARNT}))
        answers.append(answer)

    names = unread(source, key, learn) + [f"messages.{name}" for name in sorted(others)]
    notes = [f"{key}: {source.path}: not read: {', '.join(names)}"] if names else []
    notes += [
        f"{key}: {source.path}: the chat template leaves out {role} turns of {count} of"
        f" {len(answers)} chats"
        for role, count in sorted(lost.items())
    ]
    return answers, notes
