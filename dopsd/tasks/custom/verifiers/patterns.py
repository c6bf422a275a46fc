"""Regular expressions in the settings of a task of your own."""

from __future__ import annotations

import regex

ANSWER = "{answer}"  # in a pattern: the row's answer
NAME = r"(?<!\\[pPN])\{[A-Za-z_]\w*\}"  # a word in braces, which is no quantifier and no \p{class}


def valid_pattern(pattern: str) -> str:
    """Return the pattern if it is a regular expression.

    Raises:
        ValueError: if it is not.
    """
    try:
        regex.compile(pattern.replace(ANSWER, "x"))
    except regex.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


def with_known_names(pattern: str) -> str:
    """Return the pattern if it has no other name in braces than the answer's.

    Raises:
        ValueError: if it has, since it would match only these very characters.
    """
    others = [name for name in regex.findall(NAME, pattern) if name != ANSWER]
    if others:
        raise ValueError(f"{others[0]} is unknown; only {ANSWER}, the row's answer, is filled in")
    return pattern
