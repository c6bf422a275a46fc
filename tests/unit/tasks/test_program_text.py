"""Which text of an answer is the program, and which tests of a row test something."""

from __future__ import annotations

import json

import pytest

from dopsd.core.errors import DopsdError
from dopsd.tasks.common.sources import Row
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.rows import RowReader
from dopsd.tasks.custom.verifiers.program_text import program_of, run
from dopsd.tasks.custom.verifiers.row_tests import code_of, fault

ADD = "def add(a, b):\n    return a + b"
PYTHON = f"```python\n{ADD}\n```"
USED = "import math\ndef add(a, b):\n    return math.fsum([a, b])"
DOCUMENTED = 'def add(a, b):\n    """Add.\n\n    ```\n    >>> add(1, 2)\n    3\n    ```\n    """\n'
DOCUMENTED += "    return a + b"
INDENTED = "\n".join(f"    {line}" for line in USED.split("\n"))
LAYOUTS = {
    "alone": ADD,
    "fenced": f"Here it is:\n{PYTHON}\nIt adds.",
    "after a shell block": f"```bash\npip install x\n```\n{PYTHON}",
    "after an unlabelled shell block": f"```\npip install x\n```\n{PYTHON}",
    "after an example": f"Example:\n```\n>>> add(1, 2)\n3\n```\nSolution:\n{PYTHON}",
    "before a usage": f"{PYTHON}\nUse it:\n```python\nprint(add(1, 2) / 0)\n```",
    "before a usage that binds": f"{PYTHON}\n```python\nx = add(1, 2)\nassert x == 4\n```",
    "after a usage that binds": f"```python\nx = add(1, 2)\n```\n{PYTHON}",
    "before its output": f"{PYTHON}\n```\n3\n```",
    "in several blocks": f"```python\nimport math\n```\nThen\n```python\n{USED[12:]}\n```",
    "corrected": f"```python\ndef add(a, b):\n    return a - b\n```\nNo:\n{PYTHON}",
    "before its own tests": f"{PYTHON}\n```python\ndef test_add():\n    assert add(1, 2) == 3\n```",
    "in a list item": f"1. Write\n   ```python\n{INDENTED}\n   ```\n2. Done",
    "after a list mark": f"- ```python\n{INDENTED}\n  ```",
    "with a fence in its docstring": DOCUMENTED,
    "fenced, with a fence in its docstring": f"```python\n{DOCUMENTED}\n```\nIt adds.",
    "at a line's end": f"Solution: ```python\n{ADD}\n```",
    "closed at a line's end": f"```python\n{ADD}```",
    "between tildes": f"~~~python\n{ADD}\n~~~",
    "between tildes, cut": f"~~~python\n{ADD}",
    "cut": f"It is\n```python\n{ADD}\n",
    "cut within the next function": f"```python\n{ADD}\n\ndef more(a):\n    if a",
    "labelled py": f"```py\n{ADD}\n```",
    "labelled Python3": f"``` Python3 title=x\n{ADD}\n```",
    "labelled code": f"```code\n{ADD}\n```",
    "without a label": f"```\n{ADD}\n```",
    "in four backticks": f"````markdown\nText\n{PYTHON}\n````",
    "in a line": "Write ```add = lambda a, b: a + b``` and be done.",
    "with other line ends": f"Here:\r\n{PYTHON}\r\n".replace("\n", "\r\n").replace("\r\r", "\r"),
    "between prose": f"Here is the code. It doesn't fail:\n\n{ADD}\n\nIt adds (two numbers",
    "indented": f"Here:\n\n{INDENTED}\n\nIt adds.",
    "with tabs": f"Here:\n\n{INDENTED}\n\nIt adds.".replace("    ", "\t"),
    "after prompts": ">>> def add(a, b):\n...     return a + b\n...\n>>> add(1, 2)\n3",
    "after prompts in a block": "```pycon\n>>> def add(a, b):\n...     return a + b\n```",
    "prose that is Python": f"Example:\n>>> add(1, 2)\n3\n\n{ADD}",
    "between MBPP's marks": f"[BEGIN]\n{ADD}\n[DONE]",
    "after a word": f"Solution\n\n{ADD}",
    "lambda after a helper": "```\ndef h(x): return x\n```\n```\nadd = lambda a, b: h(a + b)\n```",
    "after a block without an end": f"```python\nimport math\n\n```python\n{USED[12:]}\n```",
    "copied with its label": f"python\n{ADD}",
    "after a broken block": f"```python\ndef add(a, b)\n```\nBetter:\n{PYTHON}",
    "only a usage fenced": f"{ADD}\n\nUse:\n```python\nadd(1, 2)\n```\n",
    "after a block that stays open": f"```bash\npip install x\n{PYTHON}",
    "with an exit": f"{ADD}\nimport sys\nsys.exit(0)",
    "with an exit in a block": f"{PYTHON}\n```python\ndef main():\n    exit()\nmain()\n```",
    "with a future": f"from __future__ import annotations\n{ADD}",
    "with a future in a later block": f"{PYTHON}\n```py\nfrom __future__ import division\n{ADD}```",
    "with a byte order mark": f"\ufeff{ADD}",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_right_program_is_found_in_any_layout(name: str, capfd: pytest.CaptureFixture[str]):
    run(LAYOUTS[name], "", "assert add(2, 3) == 5", b"passed")
    assert capfd.readouterr().out.endswith("passed")


def test_where_nothing_is_python_the_answer_itself_is_run():
    for text in ("I cannot", "def add(a, b)\n    return", "", "x" * 300_000 + PYTHON, "a\0b"):
        assert [cell.text for cell in program_of(text)] == [text]


def test_a_program_that_raises_does_not_reach_its_tests(capfd: pytest.CaptureFixture[str]):
    for program in (
        f"{ADD}\n1 / 0",
        f"```\nx = 5\n```\n```\n{ADD}\n1 / 0\n```",
        "add = max\n1 / 0",
    ):
        with pytest.raises(ZeroDivisionError):
            run(program, "", "add(2, 3)", b"passed")
    assert capfd.readouterr().out == ""


FENCES = "```python\nx y\n" * 9999
DEEP = "".join(f"{'`' * n}\n" for n in range(200, 3, -1))


@pytest.mark.parametrize(
    "text", ["(" * 9999, "-" * 99_999 + "1", "a" + ".b" * 50_000, "`" * 9999, FENCES, DEEP]
)
def test_a_text_that_python_cannot_nest_is_no_program(text: str):
    assert program_of(text)
    assert fault(text)


def test_code_before_a_program_may_be_the_head_of_its_function(capfd: pytest.CaptureFixture[str]):
    head = 'import math\ndef add(a, b):\n    """Add."""\n'
    later = "from __future__ import annotations\ndef add(a: math.x, b):\n    return a + b"
    for answer in ("```\n    return math.fsum([a, b])\n```", INDENTED, f"Here:\n{PYTHON}", later):
        run(answer, head, "assert add(2, 3) == 5", b"passed")
        assert capfd.readouterr().out == "passed"
    run(later[35:], "from __future__ import annotations", "add(2, 3)", b"passed")


LINES = ["assert f('a\\n') == 2", 'assert f("x, y") == "\'"']


@pytest.mark.parametrize(
    "cell", [json.dumps(LINES), str(LINES), str(LINES).replace(", 'assert", "\n 'assert")]
)
def test_a_list_of_tests_is_read_as_json_python_or_numpy_write_it(cell: str):
    assert code_of(cell) == "\n".join(LINES) and fault(cell) is None


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ('{"inputs": ["1"], "outputs": ["2"]}', "no assert"),
        ("pass", "no assert"),
        ("# add(1, 2) is 3", "no assert"),
        ("x = 1", "no assert"),
        ("add(1, 2) == 3", "no assert"),
        ("[1, 2]", "no assert"),
        ("['assert add(1, 2) == 3', 4]", "no assert"),
        ("assert (add(1, 2) == 3, 'wrong')", "no assert"),  # a tuple is true
        ("print(add(1, 2))", "no assert"),
        ("def check(f):\n    assert f(1, 2) == 3", "check is never called"),
        ("assert add(1, 2) = 3", r"no Python code \(line 1"),
        ("assert add(1, 2) == 3\0", "null byte"),
    ],
)
def test_a_row_whose_tests_test_nothing_is_refused_by_file_row_and_column(tests: str, words: str):
    with pytest.raises(DopsdError, match=rf"^f.csv:3: column checks .*{words}"):
        reader().extra(Row({"checks": tests}, "f.csv", 3))


def test_tests_that_can_fail_are_taken():
    for tests in (
        "def check(f):\n    assert f(1, 2) == 3\ncheck(add)",
        "if add(1, 2) != 3:\n    raise ValueError",
        "for a in range(3):\n    assert add(a, 0) == a",
        "add(1, 2) == 3 or fail()",
        "import unittest\nclass T(unittest.TestCase):\n    pass\nunittest.main()",
        "[check(x) for x in (1, 2)]",
    ):
        assert reader().extra(Row({"checks": tests}, "f", 1))["row"] == {"checks": tests}


def reader() -> RowReader:
    verifier = {"type": "python_tests", "tests": "checks"}
    section = {"type": "custom", "train": {"path": "x.jsonl"}, "verifier": verifier}
    return RowReader("data.x", CustomTaskConfig.model_validate(section))
