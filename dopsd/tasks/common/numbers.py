r"""Numbers in texts: those that stand by themselves, and are no part of 1/2, 10^6, 6:30 or 3x.

The decimal mark is a setting and never guessed: the other mark may only group thousands.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache

THIN = "\u2009"  # groups thousands, as no-break spaces and LaTeX's \, do
SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": THIN, "\u202f": THIN})
LATEX = (  # a comma in a number, signs, and what separates groups of digits
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"(?<=\d)(?:\\[,;: ]|~)(?=\d{3})"), THIN),
    (
        re.compile(r"(?<![\w.,])(?:\d{1,3}(?: \d{3})+|\d+(?: 000)+)(?!\w)"),
        lambda found: found[0].replace(" ", "_"),
    ),
)
LETTER = r"A-Za-z0-9_\u00b2\u00b3\u00b9\u00bc-\u00be\u0370-\u03ff\u2070-\u209f\u2150-\u215f"
WORD = re.compile(  # a number with its sign, or what looks like one
    rf"([-+]?[$€£]?[-+]?)((?:[{LETTER}]|[.,'’](?=[{LETTER}])|{THIN}(?=\d{{3}}(?!\d))"
    r"|(?<=\d[eE])[-+](?=\d))+)"
)
COMMAND = r"\\(?:times|cdot|div|pm|mp|ast|over|b?mod|sqrt|[cdt]?frac|[dt]?binom|pi)(?![a-z])"
OPERATOR = r"[/×·÷⋅∙±√∕⁄]"
BEFORE = re.compile(  # ... and what makes it a part of an expression: 1/2, 2^5, 3 * 4, 5 - 3
    rf"(?:{OPERATOR}[ ]?|\^[ ]?\{{?|_\{{|[\w)\]}}]\*\*?|[\w)\]}}][ ]+\*\*?[ ]+|[-+]\s+|[—―]|\d:"
    rf"|\d[ ]:[ ]|\}}\{{|{COMMAND}\s*\{{?|\\sqrt\[|\][ ]?\{{|[0-9)]\(|\d,?\s+or\s+|\d[ ]?[xX][ ]"
    r"|[.,])\Z"
)
AFTER = re.compile(
    rf"[ ]?\^(?!\{{?\\circ)|[ ]?/[ ]?(?:[\d({{\\]|[A-Za-z]\b)|[ ]?(?!/){OPERATOR}|\*\*?[\w(\\]"
    r"|[ ]+\*\*?[ ]+[\w(\\]|[-+](?:[\d({\\$.]|[A-Za-z]\b)|[ ]+[-+][ ]+(?:[\d({\\$.]|[A-Za-z]\b)"
    rf"|:\d|[ ]:[ ]\d|\s?{COMMAND}|\(-?\d|,?\s+or\s+[-+$]?\d|[ ]?[xX][ ]?\d"
    r"|[—―]\d|[ ]\d+[/⁄]\d|[ ][\u00bc-\u00be\u2150-\u215f]"
)
OPERAND = re.compile(r"[\w)\]}%]\Z")  # a sign after it is an operator
NEAR = 24  # characters around a number that are looked at
LONGEST = 60  # characters of a number; a longer run of digits is noise


def plain(text: str) -> str:
    """Return a text with one form of each sign, and without LaTeX in its numbers."""
    text = text.translate(SIGNS)
    for pattern, replacement in LATEX:
        text = pattern.sub(replacement, text)
    return text


@cache
def _number(decimal: str) -> str:
    """Return the pattern of a number without its sign: groups of thousands, or none."""
    point, group = re.escape(decimal), re.escape(",."[decimal == ","])
    whole = rf"[1-9]\d{{0,2}}(?:(?:{group}\d{{3}})+|(?:{THIN}\d{{3}})+)|\d+"
    return rf"(?:(?:{whole})(?:{point}\d+)?|{point}\d+)(?:[eE][-+]?\d{{1,3}})?"


def only_number(text: str, decimal: str = ".") -> Decimal | None:
    """Return the value of a text that is wholly a number, also with a currency; None otherwise."""
    number = rf"(?:[-+]?[$€£]?|[$€£][-+])({_number(decimal)})(?:\s?[$€£])?\.?"
    text = plain(text.strip())
    found = re.fullmatch(number, text, re.ASCII)
    if found is None or len(text) > LONGEST:
        return None
    digits = found[1].replace(",."[decimal == ","], "").replace(THIN, "").replace(decimal, ".")
    return Decimal(f"{'-' if '-' in text[: found.start(1)] else ''}{digits}")


def numbers(text: str, decimal: str = ".") -> list[Decimal]:
    """Return the numbers that stand by themselves in a text, in order.

    Args:
        text: any text.
        decimal: the decimal mark, . or a comma; the other one may group thousands.
    """
    text = plain(text)
    found = []
    for word in WORD.finditer(text):
        sign, before = word[1], text[max(0, word.start() - NEAR) : word.start()]
        is_operator = sign[:1] in ("-", "+") and OPERAND.search(before)
        if is_operator or BEFORE.search(before) or AFTER.match(text, word.end()):
            continue
        if (number := only_number(word[0], decimal)) is not None:
            found.append(number)
    return found
