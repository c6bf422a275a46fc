"""Verifiers of tasks that params.yaml defines, by hand-computed cases."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem
from dopsd.tasks.common.formats import AnswerFormat, extract, written
from dopsd.tasks.custom.task import Verifier, make_verifier
from dopsd.tasks.custom.verifiers.config import NumberConfig, VerifierConfig
from dopsd.tasks.custom.verifiers.texts import Number

SECTION: TypeAdapter[Any] = TypeAdapter(VerifierConfig)


def verifier(**section: object) -> Verifier:
    return make_verifier("data.x.verifier", SECTION.validate_python(section))


def score(gold: str, answer: str, **section: object) -> float:
    return verifier(**section).score(Problem("x-1", "q", gold), answer)


@pytest.mark.parametrize(
    ("gold", "answer", "switches", "wanted"),
    [
        ("New York", " New \n York ", {}, 1),
        ("New York", "new york", {}, 0),
        ("New York", "new york", {"ignore_case": True}, 1),
        ("Straße", "STRASSE", {"ignore_case": True}, 1),
        ("1234", "12 34", {}, 0),
        ("1234", "12 34", {"white_space": "drop"}, 1),
        ("a  b", "a b", {"white_space": "keep"}, 0),
        ("don't", "dont", {"ignore_punctuation": True}, 1),
        ("caf\u00e9", "cafe\u0301", {}, 1),
        ("caf\u00e9", "cafe\u0301", {"unicode": "keep"}, 0),
        ("\uff21\ufb01 cafe\u0301", "Afi caf\u00e9", {}, 1),
        ("102", "10\u00b2", {}, 0),
        ("H2O", "H\u2082O", {}, 0),
        ("10\u00b2", "10\u00b2", {}, 1),
        ("-5", "5", {"ignore_punctuation": True}, 0),
        ("3.5", "35", {"ignore_punctuation": True}, 0),
        ("1,5", "15", {"ignore_punctuation": True}, 0),
        (".5", "5", {"ignore_punctuation": True}, 0),
        ("1/2", "12", {"ignore_punctuation": True}, 0),
        ("6:30", "630", {"ignore_punctuation": True}, 0),
        ("-5", '"(-5)."', {"ignore_punctuation": True}, 1),
        ("covid-19, 5", "Covid19 (5)", {"ignore_punctuation": True, "ignore_case": True}, 1),
        ("\u200bNew\u00ad York\ufeff", "New York", {}, 1),  # characters that nobody sees
        ("New York", "New\u200b York", {"unicode": "keep"}, 0),
        ("\U0001f3f4\U000e0067\U000e007f", "\U0001f3f4", {}, 0),  # the tags of a flag count
    ],
)
def test_exact_compares_after_its_switches(gold, answer, switches, wanted):
    assert score(gold, answer, type="exact", **switches) == wanted


@pytest.mark.parametrize(
    ("gold", "answer", "switches", "wanted"),
    [
        ("1000", "1,000", {}, 1),
        ("1000", "$1,000.00 in all", {}, 1),
        ("3", "3.0", {}, 1),
        ("-3", "\u22123", {}, 1),
        ("3", "x3", {}, 0),  # part of a name
        ("2", "5-3 = 2", {}, 1),
        ("5", "5-3 = 2", {}, 0),
        ("2", "5-3 = 2", {"which": "first"}, 1),
        ("9007199254740993", "9007199254740992", {}, 0),  # equal as floats
        ("0.3", "0.30000000000000004", {}, 0),
        ("0.3", "0.30000000000000004", {"tolerance": 1e-9}, 1),
        ("100", "101", {"relative_tolerance": 0.01}, 1),
        ("100", "101.1", {"relative_tolerance": 0.01}, 0),
        ("1500", "1.5e3", {}, 1),
        ("1", "1e999", {"tolerance": 1.0}, 0),
        ("1", "nan", {}, 0),
        ("1", "1" * 100, {}, 0),
        ("1", "\u0661", {}, 0),  # an Arabic digit
    ],
)
def test_number_compares_values(gold, answer, switches, wanted):
    assert score(gold, answer, type="number", **switches) == wanted


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        *(("1/2", None), (r"\frac{1}{2}", None), (r"\dfrac12", None), ("10^6", None)),
        *(("6:30", None), ("3,5", None), ("1,00,000", None), ("12.345.678", None)),
        *((r"2^{10}", None), (r"3\times 4", None), ("3 * 4", None), ("2**5", None), ("3x", None)),
        *((r"\sqrt{16}", None), (r"2\pi", None), ("10²", None), ("1½", None), ("0x10", None)),
        *(("5 - 3", None), ("5-3", None), ("x - 5", None), ("- 5", None), ("\u20145", None)),
        *(("±5", None), ("x^2 = 4 or 3", None), ("2024-05-01", None), ("1/2/2024", None)),
        *(("1_000", None), ("1 000", None)),
        *(("0,125", None), ("1'000", None), ("1.000,5", None), ("...5", None), ("(1,2)", None)),
        *(("5 1/2", None), ("5 \u00bd", None), ("3\u20145", None), ("7, or 8", None)),
        *((r"-\$5", "-5"), ("$-5", "-5"), ("\u22125", "-5"), (r"1{,}000", "1000")),
        *((r"1\,000\,000", "1000000"), ("1\u202f000", "1000"), ("12,345.5", "12345.5")),
        *(("It is **5**.", "5"), (r"\text{5} apples", "5"), ("5%", "5"), ("5 km/h", "5")),
        *((r"90^\circ", "90"), ("x = 5", "5"), ("x=-5", "-5"), ("Answer: 5", "5"), ("(5)", "5")),
        *(("3 + 4 = 7", "7"), ("3/4 of 8 is 6", "6"), ("$5/hour", "5"), ("a 5-day trip", "5")),
        *(("\u7b54\u6848\u662f5\u3002", "5"), ("5 apples, 3 pears", "3"), ("5!", "5")),
        *((f"{sign}5", "-5") for sign in "\uff0d\ufe63\u2010\u2011\u2012\u02d7\u2796"),
        *(("\uff14\uff12", "42"), ("\U0001d7d2\U0001d7d0", "42"), ("\uff08\uff15\uff09", "5")),
        *(("\uff0d\uff11\uff0e\uff15", "-1.5"), ("\uff11\uff0c\uff10\uff10\uff10", "1000")),
        ("5\uff0c3\u4e2a", "3"),
        *(("4\u200b2", "42"), ("2\u20623", None), ("5\u0664", None), ("\u06645", None)),
        *((f"5 {word}", None) for word in ("million", "Thousand", "dozen", "crore", "\u4ebf")),
        *(("5-million", None), (r"5\text{ million}", None), ("a thousand and 5", None)),
        *(("minus 5", None), ("Negative **5**", None), ("8 minus 5", None), ("8 plus 5", None)),
        *(("minus $5", None), ("\u8d1f5", None), ("5 times a day", "5"), ("5 millimetres", "5")),
        *((r"4 \text{ or } 7", None), (r"4\text{or}7", None), ("$4$ or $7$", None)),
        *(("**4** or **7**", None), ("4 OR 7", None), ("4\u62167", None), (r"4 \lor 7", None)),
        *((r"5\text{km}", "5"), (r"$5\text{ km}$", "5"), (r"x_{\text{max}} = 5", "5")),
    ],
)
def test_a_part_of_an_expression_is_no_number(answer, value):
    found = Number(NumberConfig()).value(answer)
    assert (None if found is None else str(found)) == value


@pytest.mark.parametrize("gold", ["3,5", "- 5", "0x10", "\u20145", "1,00,000", "5 km", "1/2"])
def test_a_gold_answer_is_wholly_a_number_by_its_decimal_mark(gold):
    assert verifier(type="number").fault(gold) is not None


def test_a_decimal_comma_is_a_setting_and_holds_for_both_sides():
    comma = {"type": "number", "decimal": ","}
    for gold, answer, wanted in (
        *(("3,5", "3,50", 1), ("3,5", "3.5", 0), ("3,5", "3", 0), ("1.000,5", "1000,5 €", 1)),
        *(("1.000", "1000", 1), ("1000", "1.000.000", 0), ("-2,5", "x = -2,5.", 1)),
    ):
        assert verifier(**comma).fault(gold) is None
        assert score(gold, answer, **comma) == wanted
    assert "decimal mark ',' as in -1.000,5" in (verifier(**comma).fault("3.5") or "")


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("b.", "B"),
        ("Answer: b.", "B"),
        ("**B**", "B"),
        ("B) Paris", "B"),
        ("The answer is B because A is wrong.", "B"),
        ("The answer is B.", "B"),
        ("A dog barks, so it is B", "B"),
        ("(A) or (B)", None),
        ("A and B", None),
        ("The answer is A or B", None),
        ("Answer: A, B", None),
        ("The answer is A/B.", None),
        ("Answer: (A) or (B)", None),
        ("B. Paris or C. Rome", None),
        ("The answer is not A", None),
        ("It isn\u2019t B.", None),
        ("Neither A nor B", None),
        ("Option B is wrong", None),
        ("B is not correct", None),
        ("All except C", None),
        ("I don't think it is C", None),
        ("B. C.", None),
        ("Not A but B", "B"),
        ("C, not D", "C"),
        ("The answer is B because C is wrong.", "B"),
        ("B) red and a cat", "B"),
        ("(C), and I am sure", "C"),
        ("E", None),
        ("Because", None),
        ("\u7b54\u6848\u662fB", "B"),  # Chinese: the answer is B
        ("\u9009b", None),
        ("\u9009B\uff0c\u56e0\u4e3aC\u9519\u8bef", "B"),  # choose B, since C is wrong
        ("\u7b54\u6848\uff1a\uff08\uff22\uff09", "B"),
        ("\u7b54\u6848\u4e0d\u662fB", None),  # the answer is not B
        ("\u4e0d\u9009A\uff0c\u9009B", "B"),  # not A, choose B
        ("\u9009B\u4e0d\u9009A", "B"),
        ("\u7b54\u6848\u662f\u2018B\u2019", "B"),
        ("A\u6216B", None),  # A or B
        ("\u7b54\u3048\u306fB\u3067\u3059", "B"),  # Japanese
        ("B\u3067\u306f\u306a\u3044", None),  # is not B
        ("\ub2f5\uc740 B\uc785\ub2c8\ub2e4", "B"),  # Korean
        ("\uff22", "B"),
        ("\u24b7", "B"),
        ("'b'", "B"),
        ("\u2018B\u2019", "B"),
        ("\u201cb\u201d", "B"),
        ("_B_", "B"),
        ("`B`", "B"),
        ("The answer is 'B'.", "B"),
        ("'A' is tempting, but I take 'B'", "B"),
        ("'A' and 'B'", None),
        ("snake_B_case", None),
        ("B's", None),
        ("C\u00d4TE", None),
        ("20 \u2103", None),
        ("", None),
    ],
)
def test_choice_reads_the_letter(answer, letter):
    scores = {gold: score(gold, answer, type="choice") for gold in "ABCD"}
    assert scores == {gold: float(gold == letter) for gold in "ABCD"}


ALONE = ["B", "b", "(B)", "B.", "b)", "**B**", "'B'", "B) Paris", "\uff22", "Answer: B"]
ALONE += ["answer: (b).", "The correct answer is B.", "\u7b54\u6848\uff1a\uff08\uff22\uff09"]
NOT_ALONE = ["Vitamin C", "Plan B", "A dog (B)", "Hepatitis B.", "E", "A or B"]
NOT_ALONE += ["Option B is wrong", "The answer is B vitamins", "grade A beef"]


@pytest.mark.parametrize("gold", [*ALONE, *NOT_ALONE])
def test_choice_takes_a_letter_and_no_text_of_an_option_as_the_row_s_answer(gold):
    fault, is_sound = verifier(type="choice").fault(gold), gold in ALONE
    assert (fault is None) == is_sound
    assert is_sound or (fault or "").startswith("one of the letters A, B, C, D alone")


def test_regex_takes_the_answer_literally_and_ends_where_it_would_backtrack_for_ever(capsys):
    pattern = r"(?i)about {answer} (km|miles)"
    assert score("3.5", "About 3.5 km", type="regex", pattern=pattern) == 1
    assert score("3.5", "about 3x5 km", type="regex", pattern=pattern) == 0
    assert score("3.5", "about 3.5 km or so", type="regex", pattern=pattern) == 0
    started = time.monotonic()
    assert score("x", "a" * 60 + "b", type="regex", pattern="(a|aa)+$") == 0
    assert time.monotonic() - started < 300
    assert "no result in 1 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gold", "answer", "wanted"),
    [
        (r"\frac{1}{2}", "0.5", 1),
        ("x^2+2x+1", "(x+1)^2", 1),
        ("(1,2)", "(2,1)", 0),
        ("[0,1)", "[0,1]", 0),
        ("3", "", 0),
        ("3", "}{", 0),
    ],
)
def test_math_compares_expressions(mathematics: Verifier, gold, answer, wanted):
    assert mathematics.score(Problem("x-1", "q", gold), answer) == wanted


@pytest.fixture(scope="module")
def mathematics() -> Verifier:
    pytest.importorskip("math_verify")
    return verifier(type="math", seconds=100)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"type": "string", "pattern": "^(a|aa)+$"}},
    "required": ["n"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with data/external."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/external").mkdir(parents=True)
    return tmp_path / "data/external"


@pytest.mark.parametrize(
    ("answer", "is_fit", "is_equal"),
    [
        ('{"n": 1}', 1, 1),
        ('{"n": 1.0}', 1, 1),
        ('{"n": 2}', 1, 0),
        ('{"n": 2, "n": 1}', 0, 0),
        ('{"n": true}', 0, 0),
        ('{"n": NaN}', 0, 0),
        ('{"n": 1,}', 0, 0),
        ("[" * 100_000, 0, 0),
        ("", 0, 0),
        ('{"n": 1, "s": "' + "a" * 60 + 'b"}', 0, 0),
    ],
)
def test_json_schema_checks_the_form_and_the_value(here: Path, answer, is_fit, is_equal):
    (here / "s.json").write_text(json.dumps(SCHEMA))
    section = {"type": "json_schema", "schema_file": "data/external/s.json"}
    assert score('{"n": 1}', answer, **section, equals_answer=False) == is_fit
    assert score('{"n": 1}', answer, **section) == is_equal


@pytest.mark.parametrize(
    ("gold", "answer", "wanted"),
    [
        ('{"n": 9007199254740993.0}', '{"n": 9007199254740992.0}', 0),
        ('{"n": 9007199254740993}', '{"n": 9007199254740993.0}', 1),
        ("[0.1]", "[0.1000000000000000055]", 0),
        ("[1e999]", "[1e998]", 0),
        ("[1.50, 1e2]", "[1.5, 100]", 1),
        ('[1, true, "2"]', '[1.0, true, "2"]', 1),
        ('[1, true, "2"]', '[1, 1, "2"]', 0),
        ('[1, true, "2"]', "[1, true, 2]", 0),
        ("[1]", "[1e99999999999999999999]", 0),
        ("[" * 900 + "]" * 900, "[" * 900 + "]" * 900, 0),  # too deep to compare
    ],
)
def test_json_numbers_are_compared_exactly(gold: str, answer: str, wanted: int):
    assert score(gold, answer, type="json_schema") == wanted


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("{", "not a JSON schema"),
        ('{"type": "nothing"}', "not a JSON schema"),
        ('{"$ref": "http://127.0.0.1:9/x.json"}', "may refer only to its own parts"),
        ('{"properties": {"n": {"$ref": "#/$defs/m"}}}', "may refer only to its own parts"),
        ('{"items": {"$ref": "#no-such-anchor"}}', "may refer only to its own parts"),
        ('{"$ref": "#/x", "x": {"$ref": "#/y"}, "y": {"$ref": 5}}', "5: no such part"),
        ('{"items": {"patternProperties": {"^(a|aa)+$": {}}}}', "propertyNames"),
        ('{"$ref": "#/mine/x", "mine": {"x": {"patternProperties": {}}}}', "propertyNames"),
    ],
)
def test_a_schema_that_cannot_be_used_is_one_line(here: Path, content, said):
    if content is not None:
        (here / "s.json").write_text(content)
    with pytest.raises(DopsdError, match=r"data\.x\.verifier\.schema_file") as caught:
        verifier(type="json_schema", schema_file="data/external/s.json")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_schema_may_refer_to_its_parts_and_name_a_property_as_a_keyword(here: Path):
    part = {"$id": "urn:part", "$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    names = {"propertyNames": {"pattern": "^(a|aa)+$"}, "properties": {"patternProperties": part}}
    schema = {"properties": {"$ref": names}, "items": {"$ref": "#"}}
    (here / "s.json").write_text(json.dumps(schema))
    section = {"type": "json_schema", "schema_file": "data/external/s.json", "equals_answer": False}
    for answer, is_fit in (('{"a": 1}', 1), ('{"b": 1}', 0), (json.dumps({60 * "a" + "b": 1}), 0)):
        assert score("1", f'[{{"$ref": {answer}}}]', **section) == is_fit


@pytest.mark.parametrize("start", [["python", "-u"], ["bash", "-e"], []])
def test_a_program_is_a_script_of_the_project_or_starts_one(here: Path, start, monkeypatch):
    rehearsal, absolute = here.parents[1] / "work/rehearse/x", str(here / "s.py")
    (rehearsal / "data/external").mkdir(parents=True)
    other = here.parents[1] / "other"
    other.mkdir()
    (here.parents[1] / "params.yaml").touch()
    for folder, script in ((here.parents[1], "data/external/s.py"), (rehearsal, absolute)):
        monkeypatch.chdir(folder)
        (folder / "data/external/s.py").touch()
        program = [*start, script, "--level", "2"]
        section = SECTION.validate_python({"type": "command", "program": program})
        assert section.files == {f"program.{len(start)}": script}
    monkeypatch.chdir(other)  # whose DVC does not watch that file
    with pytest.raises(ValidationError, match="in data/external/"):
        SECTION.validate_python({"type": "json_schema", "schema_file": str(here / "s.json")})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"type": "numbr"}, "did you mean number?"),
        ({}, "type None: unknown"),
        ({"type": "number", "tolerence": 1}, "did you mean tolerance?"),
        ({"type": "regex", "pattern": "("}, "not a regular expression"),
        ({"type": "regex", "pattern": r"\p{Lu}[1-4]{12}{row}"}, "{row} is unknown; only {answer}"),
        ({"type": "choice", "letters": "abc"}, "2 to 26 different capital letters"),
        ({"type": "command", "program": ["python", "score.py"]}, "in data/external/"),
        ({"type": "command", "program": ["python", "data/external/../x"]}, "in data/external/"),
        ({"type": "command", "program": ["python", "/x/data/external/s.py"]}, "in data/external/"),
        ({"type": "command", "program": ["sh", "-c", ":", "data/external/x"]}, "in data/external/"),
        ({"type": "command", "program": ["python", "-m", "x", "data/external/x"]}, "found 'x'"),
        ({"type": "command", "program": ["no-such", "data/external/x"]}, "no such program"),
        ({"type": "json_schema", "schema_file": "/etc/passwd"}, "in data/external/"),
    ],
)
def test_a_wrong_section_is_one_error(section, said):
    with pytest.raises(ValidationError) as caught:
        SECTION.validate_python(section)
    (fault,) = caught.value.errors()
    assert said in fault["msg"]


def test_a_program_with_line_ends_of_windows_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = Path("data/external/score.py")
    script.parent.mkdir(parents=True)
    script.write_bytes(b"#!/usr/bin/env python3\r\nprint()\r\n")
    with pytest.raises(ValidationError, match="save it with Unix line ends"):
        SECTION.validate_python({"type": "command", "program": [str(script)]})


@pytest.mark.parametrize(
    ("text", "formats", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", [{"boxed": "last"}], "2"),
        (r"\boxed{1} then \boxed{2}", [{"boxed": "first"}], "1"),
        (r"\boxed{\frac{1}{2}}", [{"boxed": "last"}], r"\frac{1}{2}"),
        ("<answer> 7 </answer>", [{"tag": "answer"}], "7"),
        ("<answer> 7", [{"tag": "answer"}], None),
        ("so\n#### 7\nbye", [{"after": "####"}], "7"),
        ("#### 7", [{"boxed": "last"}, {"after": "####"}], "7"),
        ("x=1, x=22", [{"regex": r"x=(\d+)"}], "22"),
        ("x=1, x=22", [{"regex": r"x=\d+"}], "x=22"),
        ("a" * 60 + "b", [{"regex": "^(a|aa)+$"}], None),
        ("one\ntwo\n \n", [{"text": "last_line"}], "two"),
        (" one ", [{"text": "whole"}], "one"),
        ("", [{"text": "last_line"}, {"text": "whole"}], None),
    ],
)
def test_the_first_format_that_occurs_gives_the_answer(text, formats, answer):
    chosen = [AnswerFormat(**one) for one in formats]
    assert extract(text, chosen) == answer


@pytest.mark.parametrize(
    "one", [{"boxed": "last"}, {"tag": "a"}, {"after": "=>"}, {"text": "whole"}]
)
def test_a_written_answer_is_found_again(one):
    answer_format = AnswerFormat(**one)
    assert extract(f"{written('4 5', answer_format)}", [answer_format]) == "4 5"
