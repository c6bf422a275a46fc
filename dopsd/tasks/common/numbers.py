r"""Numbers in texts: those that stand by themselves, and are no part of 1/2, 10^6, 6:30 or 3x.

The decimal mark is a setting and never guessed: the other mark may only group thousands.
"""

import re
import unicodedata
from decimal import Decimal
from functools import cache

import regex

THIN = "\u2009"  # groups thousands, as no-break spaces and LaTeX's \, do
UNSEEN = regex.compile(r"(?![\u2061-\u2064\U000e0000-\U000e007f])\p{Cf}")  # zero-width space, ...
WIDE_COMMA = re.compile(r"(?<=[０-９])，(?=[０-９])|(?<=\d)，(?=\d{3}(?!\d))")
# forms of ASCII: small, full-width but for the comma of Chinese texts, and mathematical ones
FORMS = ((0xFE52, 0xFE6C), (0xFF01, 0xFF0C), (0xFF0D, 0xFFEF), (0x1D400, 0x1D800))
SIGNS = {c: unicodedata.normalize("NFKC", chr(c)) for form in FORMS for c in range(*form)}
SIGNS |= dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\u02d7\u2796"), "-")
SIGNS |= dict.fromkeys(map(ord, "\u00a0\u202f"), THIN)
LATEX = (  # a comma in a number, signs, and what separates groups of digits
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"(?<=\d)(?:\\[,;: ]|~)(?=\d{3})"), THIN),
    (
        re.compile(r"(?<![\w.,])(?:\d{1,3}(?: \d{3})+|\d+(?: 000)+)(?!\w)"),
        lambda found: found[0].replace(" ", "_"),
    ),
    (re.compile(r"\\(?:text\w*|mathrm|mbox)\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:lor|vee)(?![a-z])"), " or "),
)
LETTER = r"A-Za-z0-9_\u00b2\u00b3\u00b9\u00bc-\u00be\u0370-\u03ff\u2070-\u209f\u2150-\u215f"
WORD = re.compile(  # a number with its sign, or what looks like one
    rf"([-+]?[$€£]?[-+]?)((?:[{LETTER}]|[.,'’](?=[{LETTER}])|{THIN}(?=\d{{3}}(?!\d))"
    r"|(?<=\d[eE])[-+](?=\d))+)"
)
COMMAND = r"\\(?:times|cdot|div|pm|mp|ast|over|b?mod|sqrt|[cdt]?frac|[dt]?binom|pi)(?![a-z])"
OPERATOR = r"[/×·÷⋅∙±√∕⁄\u2061-\u2064]"
OR = r"[$*)}\]]{0,3},?(?:\s+(?i:or)\s+|\s*或\s*)[$*({\[]{0,3}"
SCALE = r"(?:(?i:hundred|thousand|million|billion|trillion|dozen|lakh|crore)|[百千]?[万萬亿億])"
SUM = r"(?i:plus|minus|times|divided by)"  # between numbers
BEFORE = re.compile(  # ... and what makes it a part of an expression: 1/2, 2^5, 3 * 4, 5 - 3
    rf"(?:{OPERATOR}[ ]?|\^[ ]?\{{?|_\{{|[\w)\]}}]\*\*?|[\w)\]}}][ ]+\*\*?[ ]+|[-+]\s+|[—―]|\d:"
    rf"|\d[ ]:[ ]|\}}\{{|{COMMAND}\s*\{{?|\\sqrt\[|\][ ]?\{{|[0-9)]\(|\d{OR}|\d[ ]?[xX][ ]"
    rf"|(?i:\b(?:minus|negative))[\s*_({{]{{1,6}}|[负負]|\d\s+{SUM}\s+|{SCALE}\s+(?i:and\s+)?|[\d.,])\Z"
)
AFTER = re.compile(
    rf"[ ]?\^(?!\{{?\\circ)|[ ]?/[ ]?(?:[\d({{\\]|[A-Za-z]\b)|[ ]?(?!/){OPERATOR}|\*\*?[\w(\\]"
    r"|[ ]+\*\*?[ ]+[\w(\\]|[-+](?:[\d({\\$.]|[A-Za-z]\b)|[ ]+[-+][ ]+(?:[\d({\\$.]|[A-Za-z]\b)"
    rf"|:\d|[ ]:[ ]\d|\s?{COMMAND}|\(-?\d|{OR}[-+$]?\d|[ ]?[xX][ ]?\d|\s+{SUM}\s+[-+$(]?\d|\d"
    rf"|[—―]\d|[ ]\d+[/⁄]\d|[ ][\u00bc-\u00be\u2150-\u215f]|[ {THIN}-]{{0,3}}{SCALE}"
)
OPERAND = re.compile(r"[\w)\]}%]\Z")  # a sign after it is an operator
NEAR = 24  # characters around a number that are looked at
LONGEST = 60  # characters of a number; a longer run of digits is noise


def _plain(text: str) -> str:
    """Return a text with one form of each digit and sign, and without LaTeX in its numbers."""
    text = WIDE_COMMA.sub(",", UNSEEN.sub("", text)).translate(SIGNS)
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
    text = _plain(text.strip())
    found = re.fullmatch(number, text, re.ASCII)
    if found is None or len(text) > LONGEST:
        return None
    digits = found[1].replace(",."[decimal == ","], "").replace(THIN, "").replace(decimal, ".")
    return Decimal(f"{'-' if '-' in text[: found.start(1)] else ''}{digits}")


def numbers(text: str, decimal: str = ".") -> list[Decimal]:
    """Return the numbers that stand by themselves in a text, in order.

    Args:
        decimal: the decimal mark, . or a comma; the other one may group thousands.
    """
    text = _plain(text)
    found = []
    for word in WORD.finditer(text):
        sign, before = word[1], text[max(0, word.start() - NEAR) : word.start()]
        is_operator = sign[:1] in ("-", "+") and OPERAND.search(before)
        if is_operator or BEFORE.search(before) or AFTER.match(text, word.end()):
            continue
        if (number := only_number(word[0], decimal)) is not None:
            found.append(number)
    return found
