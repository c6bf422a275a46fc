r"""Compare LaTeX answers by the normalisation of the MATH benchmark (Hendrycks et al. 2021).

It knows spellings, not mathematics: 1/2 equals \frac{1}{2}, but 2/4 does not. Every step is a
single pass, linear in the text.
"""

from __future__ import annotations

import re

DROPPED = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")
UNIT = "\\text{ "
WHOLE = r"-?(?:0|[1-9][0-9]*)"


class Unreadable(ValueError):
    """A text without a normal form; such answers are compared as written."""


def is_same(answer: str, gold: str) -> bool:
    """Return whether two answers have the same normal form."""
    try:
        return normal(answer) == normal(gold)
    except Unreadable:
        return answer == gold


NAME_LENGTH = 2  # characters of a name before `=`, at most


def normal(text: str) -> str:
    r"""Return the normal form of an answer.

    Raises:
        Unreadable: if the text names units twice, or ends in a bare \sqrt or \frac.
    """
    text = _plain(text)
    if not text:
        return text
    text = re.sub(r"^\.", "0.", text.replace(" .", " 0.").replace("{.", "{0."))
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= NAME_LENGTH:
        text = value
    text = _fractions(_roots(text).replace(" ", ""))
    return _ratio(r"\frac{1}{2}" if text == "0.5" else text)


def _plain(text: str) -> str:
    """Drop layout, degrees, currency, percent signs and units; make double backslashes single."""
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for token in DROPPED:
        text = text.replace(token, "")
    before, _, after = text.partition(UNIT)
    if UNIT in after:
        raise Unreadable(text[:80])
    return before.replace("\\%", "").replace("%", "")


def _roots(text: str) -> str:
    r"""Write \sqrt3 as \sqrt{3}."""
    if text.endswith("\\sqrt"):
        raise Unreadable(text[:80])
    return re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text)


def _fractions(text: str) -> str:
    r"""Write \frac12 as \frac{1}{2}, and \frac1{72} as \frac{1}{72}."""
    if text.endswith("\\frac"):
        raise Unreadable(text[:80])
    return re.sub(r"\\frac([^{])(?:([^{])|(?=\{))", _braced_fraction, text)


def _braced_fraction(match: re.Match[str]) -> str:
    denominator = f"{{{match[2]}}}" if match[2] else ""
    return f"\\frac{{{match[1]}}}{denominator}"


def _ratio(text: str) -> str:
    r"""Write 3/4 as \frac{3}{4}, for two integers in their shortest form."""
    match = re.fullmatch(f"({WHOLE})/({WHOLE})", text)
    return rf"\frac{{{match[1]}}}{{{match[2]}}}" if match else text
