"""Regular expressions with a time limit: a pattern may backtrack for ever on a model's answer."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any

import regex

from dopsd.core.progress import log

SECONDS = 1.0  # time limit of a search
FLAGS = regex.V0  # the syntax of the standard library's module re


@cache
def _compiled(pattern: str) -> Any:  # noqa: ANN401  # the library is not typed
    return regex.compile(pattern, FLAGS)


def matches(pattern: str, text: str) -> bool:
    """Return whether a whole text matches; False after SECONDS."""
    try:
        return _compiled(pattern).fullmatch(text, timeout=SECONDS) is not None
    except TimeoutError:
        _note(pattern)
        return False


def search(pattern: str, text: str) -> bool:
    """Return whether a text contains a match; False after SECONDS."""
    try:
        return _compiled(pattern).search(text, timeout=SECONDS) is not None
    except TimeoutError:
        _note(pattern)
        return False


def last_match(text: str, pattern: str) -> str | None:
    """Return group 1 of the last match, or the match where there are no groups.

    Returns:
        The text; None without a match, and after SECONDS.
    """
    try:
        matched = next(
            iter(deque(_compiled(pattern).finditer(text, timeout=SECONDS), maxlen=1)), None
        )
    except TimeoutError:
        _note(pattern)
        return None
    if matched is None:
        return None
    answer: str | None = matched[1] if matched.re.groups else matched[0]
    return answer


@cache
def _note(pattern: str) -> None:
    log(
        f"pattern {pattern[:80]}: no result in {SECONDS:.0f} s on one answer, which counts as no"
        " match; avoid nested repetitions such as (a+)+"
    )
