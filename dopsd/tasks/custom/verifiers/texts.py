"""Verifiers of short texts: `exact`, `choice` and `regex`."""

import re
import unicodedata
from decimal import Context, Decimal, DecimalException
from itertools import groupby

import regex

from dopsd.core.types import Problem
from dopsd.tasks.common.formats import ANSWER, matches
from dopsd.tasks.common.numbers import UNSEEN, numbers, only_number
from dopsd.tasks.custom.verifiers.config import (
    ChoiceConfig,
    ExactConfig,
    NumberConfig,
    RegexConfig,
)

PUNCTUATION = regex.compile(  # group 1 stays: between digits, and the sign or point before them
    r"((?<=\d)\p{P}(?=\d)|(?<!\w)\p{Pd}?\.?(?=\d))|\p{P}"
)
RAISED = ("<super>", "<sub>", "<fraction>")  # characters that NFKC would make digits: 10² is no 102


def folded(text: str) -> str:
    """Return a text in NFKC, but for raised and lowered characters and fractions.

    Characters that nobody sees, such as zero-width spaces and soft hyphens, are dropped.
    """
    runs = groupby(UNSEEN.sub("", text), lambda c: unicodedata.decomposition(c).startswith(RAISED))
    return "".join(
        "".join(run) if is_raised else unicodedata.normalize("NFKC", "".join(run))
        for is_raised, run in runs
    )


class Exact:
    """Right if both texts are equal after the same normalisation."""

    def __init__(self, config: ExactConfig) -> None:
        self.config = config

    def normal(self, text: str) -> str:
        """Return the normal form of a text."""
        c = self.config
        text = folded(text) if c.unicode == "nfkc" else text
        text = text.casefold() if c.ignore_case else text
        text = PUNCTUATION.sub(r"\1", text) if c.ignore_punctuation else text
        if c.white_space == "keep":
            return text
        return (" " if c.white_space == "collapse" else "").join(text.split())

    def fault(self, answer: str) -> str | None:
        """Require an answer that the normalisation does not empty."""
        return None if self.normal(answer) else "a text that the normalisation does not empty"

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 for the same text, else 0."""
        return float(self.normal(answer) == self.normal(problem.answer))


# a letter may stand beside Chinese, Japanese and Korean, which separate no words; WRONG denies it
CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
BEGIN, END = rf"(?<!['°])(?<![^\W{CJK}])", rf"(?!')(?![^\W{CJK}])"
WRONG = "(?:不(?:[对對是]|正[确確]|可能|符合)|错|錯|ではな|では?あり|じゃな|아니|아닙|틀)"


class Choice:
    """Right if the answer names the same letter."""

    def __init__(self, config: ChoiceConfig) -> None:
        self.letters = config.letters
        letters = f"[{config.letters}{config.letters.lower()}]"
        self.quoted = re.compile(rf"(?<![^\W{CJK}])[\"'_`“]({letters})[\"'_`”](?![^\W{CJK}])")
        one = rf"[(\[*]{{0,4}}{letters}[)\].:*]{{0,4}}{END}"  # bounded: `((((` takes no time
        second = rf"[)\].:*]*\s*(?:[,/&]|\b(?:or|and)\b)\s*{one}(?!\s+[a-z])"  # `B or C`
        article = rf"(?!\s+(?!(?:or|and)\s+{one})[a-z])"  # `A dog`, but not `A or B`
        upper = rf"(?:[{config.letters}](?<![AI])|[{config.letters}]{article})"
        self.denied = re.compile(
            r"(?i:(?:\b(?:not|cannot|never|nor|neither|except|than|instead of)|n't)\s+(?:be\s+)?"
            r"(?:(?:think|believe)\s+(?:that\s+)?(?:it|this|the (?:correct )?answer)(?: is|'s)\s+)?"
            rf"(?:(?:the\s+)?(?:option|answer|choice|letter)\s+)?){one}(?!\s+[a-z]+\s+[a-z])"
            rf"|{BEGIN}{one}\s+(?i:is|was)(?i:n't|\s+(?:not|never|wrong|incorrect|false)\b)"
            rf"|[不非没除][会能应該该]?[是选選对了]?\s*{one}|{BEGIN}{one}\s*(?:选项|選項)?[是が가이은는]?\s*{WRONG}"
        )
        self.patterns = [
            re.compile(rf"\s*[(\[*]*({letters})[)\].:*]*\s*"),  # the letter alone
            re.compile(  # `b) some words`
                rf"\s*[(\[*]*({letters})(?!{second})(?!(?s:.*)\b(?:or|and)\s+{letters}[)\].:])"
                rf"(?![)\].:*]+\s*{one}\s*\Z)"
                r"[)\].:*]+\s[^()\[\]]*"
            ),
        ]
        self.searches = [
            re.compile(
                r"(?:\b(?i:answer)|答案|答え|정답|답)(?: is|[是为為选選は은는])?\s*(?::\s*)?"
                rf"[(\[*]*({letters}){END}(?!\s+[a-z])"
                rf"(?!{second})"
            ),
            re.compile(rf"[(\[]({letters})[)\]]"),
            re.compile(rf"{BEGIN}({upper}){END}"),
        ]
        said = rf"[\s*]*(?i:(?:the\s+)?(?:correct\s+|final\s+)?){self.searches[0].pattern}"
        self.gold = [*self.patterns, re.compile(rf"{said}[)\].:*]*\s*")]

    def letter(self, text: str) -> str | None:
        """Return the letter that a text names, in upper case.

        Letters that the text denies (`not A`, `A is wrong`) do not count. The rules, in order: the
        letter alone, also in brackets; the letter with a bracket or stop and words after it; the
        letter after `answer`; one in brackets; an upper-case letter that stands alone. A rule by
        which the text names two letters gives none.
        """
        text = self._claims(text)
        for pattern in self.patterns:
            if match := pattern.fullmatch(text):
                return match[1].upper()
        for search in self.searches:
            letters = {match.upper() for match in search.findall(text)}
            if letters:
                return letters.pop() if len(letters) == 1 else None
        return None

    def _claims(self, text: str) -> str:
        """Return a text in plain characters, without quotes around letters and what it denies."""
        text = folded(text).replace("\u2018", "'").replace("\u2019", "'")
        return self.denied.sub(" ", self.quoted.sub(r" \1 ", text))

    def fault(self, answer: str) -> str | None:
        """Require a letter, and no text of an option in which one stands: `Vitamin C`."""
        text = self._claims(answer)
        if any(pattern.fullmatch(text) for pattern in self.gold):
            return None
        letters = ", ".join(self.letters)
        return f"one of the letters {letters} alone, in brackets or before `)`, `.` or `:`"

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 for the same letter, else 0."""
        letter = self.letter(answer)
        return float(letter is not None and letter == self.letter(problem.answer))


class Pattern:
    """Right if the whole answer matches the pattern, with the row's answer in it."""

    def __init__(self, config: RegexConfig) -> None:
        self.pattern = config.pattern

    def fault(self, answer: str) -> str | None:
        """Accept any answer."""
        return None

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 for a match, else 0."""
        pattern = self.pattern.replace(ANSWER, regex.escape(problem.answer, special_only=True))
        return float(matches(pattern, answer))


EXACTLY = Context(prec=200)  # digits of a difference


class Number:
    """Right if the answer is the same number; decimals are compared exactly."""

    def __init__(self, config: NumberConfig) -> None:
        self.absolute = Decimal(str(config.tolerance))
        self.relative = Decimal(str(config.relative_tolerance))
        self.which = {"first": 0, "last": -1}[config.which]
        self.decimal = config.decimal

    def value(self, text: str) -> Decimal | None:
        """Return the number that counts in a text; None without one."""
        values = numbers(text, self.decimal)
        return values[self.which] if values else None

    def fault(self, answer: str) -> str | None:
        """Require one number and nothing else."""
        if only_number(answer, self.decimal) is not None:
            return None
        example = {".": "-1,000.5", ",": "-1.000,5"}[self.decimal]
        return f"one number alone, with the decimal mark {self.decimal!r} as in {example},"

    def score(self, problem: Problem, answer: str) -> float:
        """Return 1 for the same number, else 0."""
        found, gold = self.value(answer), only_number(problem.answer, self.decimal)
        if found is None or gold is None:
            return 0.0
        try:
            difference = abs(EXACTLY.subtract(found, gold))
            allowed = max(self.absolute, EXACTLY.multiply(self.relative, abs(gold)))
        except DecimalException:
            return 0.0
        return float(difference <= allowed)
