"""Which text of an answer is the program, and which tests of a row test something."""

from __future__ import annotations

import json
import os
import sys

import pytest

from dopsd.core.errors import DopsdError
from dopsd.tasks.common.sources import Row
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.rows import RowReader
from dopsd.tasks.custom.verifiers.program_text import cell_of, program_of, run
from dopsd.tasks.custom.verifiers.row_tests import code_in, fault_of_tests

ADD = "def add(a, b):\n    return a + b"
PYTHON = f"```python\n{ADD}\n```"
USED = "import math\ndef add(a, b):\n    return math.fsum([a, b])"
DOCUMENTED = 'def add(a, b):\n    """Add.\n\n    ```\n    >>> add(1, 2)\n    3\n    ```\n    """\n'
DOCUMENTED += "    return a + b"
INDENTED = "\n".join(f"    {line}" for line in USED.split("\n"))
TESTS = "assert add(2, 3) == 5"
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
    "quoted": "\n".join(f"> {line}".rstrip() for line in f"{PYTHON}\n\nYes.".split("\n")),
    "after a draft that raises": f"```py\ndef add(a, b):\n    return c\nadd(1, 2)\n```\n{PYTHON}",
    "after one that reads": f"```\n{ADD}\nprint(add(int(input()), 1))\n```\nAlone:\n{PYTHON}",
    "after one that ends all": f"```\n{ADD}\nraise GeneratorExit\n```\n{PYTHON}",  # as a loop would
    "before a main function": f"{PYTHON}\n```\ndef main():\n    add(1, input())\nmain()\n```",
    "before pytest's tests": f"{PYTHON}\n```\nimport pytest_x\ndef test():\n    assert add\n```",
    "before an import of itself": f"{PYTHON}\n```\nfrom solution import add\nx = add(1, 2)\n```",
    "before its constant": f"```\n{ADD} + ZERO\n```\nwith\n```\nZERO = 0\n```",
    "after its constant": f"```\nZERO = 0\n```\nand\n```\n{ADD} + ZERO\n```",
    "over three blocks": f"```\n{ADD} + g()\n```\n```\ndef g(): return ZERO\n```\n"
    "```\nZERO = 0\n1 / 0\n```\n```\ndef f(): exit()\nf()\n```",
}


def ran(answer: str, before: str = "") -> None:
    """Run the tests of an addition; what traces this process goes on, which `run` ends."""
    source, sink = os.pipe()
    os.write(sink, b"passed")
    os.close(sink)
    trace = sys.gettrace()
    try:
        run(answer, before, TESTS, source)
    finally:
        sys.settrace(trace)
        os.close(source)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_right_program_is_found_in_its_layout(name: str, capfd: pytest.CaptureFixture[str]):
    ran(LAYOUTS[name])
    assert capfd.readouterr().out.endswith("passed")


def test_where_nothing_is_python_the_answer_itself_is_run():
    for text in ("I cannot", "def add(a, b)\n    return", "", "x" * 300_000 + PYTHON, "a\0b"):
        with pytest.raises((SyntaxError, NameError)):
            ran(text)


@pytest.mark.parametrize(
    "answer",
    [
        f"{PYTHON}\n```python\ndef add(a, b):\n    return a - b\n```",
        f"{PYTHON}\n```python\ndef add(a, b):\n    return a + c\n```",
        f"{PYTHON}\n```python\nadd = lambda a, b: f(a)\n```\n```\ndef f(a): return a\n```",
    ],
)
def test_a_draft_gives_a_wrong_program_no_second_chance(answer: str):
    with pytest.raises((AssertionError, NameError)):
        ran(answer)


def test_a_program_that_raises_does_not_reach_its_tests(capfd: pytest.CaptureFixture[str]):
    after_another = f"```\nx = 5\n```\n```\n{ADD}\n1 / 0\n```"
    for program in (f"{ADD}\n1 / 0", after_another, "add = max\n1 / 0"):
        with pytest.raises(ZeroDivisionError):
            ran(program)
    assert capfd.readouterr().out == ""


FENCES = "```python\nx y\n" * 9999
DEEP = "".join(f"{'`' * n}\n" for n in range(200, 3, -1))


@pytest.mark.parametrize(
    "text", ["(" * 9999, "-" * 99_999 + "1", "a" + ".b" * 50_000, "`" * 9999, FENCES, DEEP]
)
def test_a_text_that_python_cannot_nest_is_no_program(text: str):
    with pytest.raises(SyntaxError):
        program_of(text, "", cell_of(TESTS))
    assert fault_of_tests(text)


def test_code_before_a_program_may_be_the_head_of_its_function(capfd: pytest.CaptureFixture[str]):
    head = 'import math\ndef add(a, b):\n    """Add."""\n'
    later = "from __future__ import annotations\ndef add(a: math.x, b):\n    return a + b"
    for answer in ("```\n    return math.fsum([a, b])\n```", INDENTED, f"Here:\n{PYTHON}", later):
        ran(answer, head)
        assert capfd.readouterr().out == "passed"
    ran(later[35:], "from __future__ import annotations")


LINES = ["assert f('a\\n') == 2", 'assert f("x, y") == "\'"']


@pytest.mark.parametrize(
    "cell", [json.dumps(LINES), str(LINES), str(LINES).replace(", 'assert", "\n 'assert")]
)
def test_a_list_of_tests_is_read_as_json_python_or_numpy_write_it(cell: str):
    assert code_in(cell) == "\n".join(LINES) and fault_of_tests(cell) is None


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
        ("all([add(1, 2) == 3, add(2, 2) == 4])", "no assert"),
        ("not add(1, 2) == 3", "no assert"),
        ("math.isclose(add(1, 2), 3)", "no assert"),
        ("x = add(1, 2) == 3", "no assert"),
        ("import math\nx = math.isclose(add(1, 2), 3)", "no assert"),
        ("if False:\n    assert add(1, 2) == 3", "no assert"),
        ("if __name__ == '__main__':\n    assert add(1, 2) == 3", "no assert"),
        ("assert 1 == 1", "no assert"),
        ("for a in range(3):\n    add(a, 0) == a", "no assert"),
        ("def check(f):\n    return f(1, 2) == 3\ncheck(add)", "can fail, found"),
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
        "check(add)",  # of the code before the program
        "import numpy as np\nnp.testing.assert_allclose(add(1, 2), 3)",
        "def check(f):\n    def g():\n        check(f)\n        assert f(1)\n    g()\ncheck(add)",
        "with raises(TypeError):\n    add(1)",
        "try:\n    add(1)\nexcept TypeError:\n    pass\nelse:\n    raise ValueError",
        "match add(1, 2):\n    case 3: pass\n    case _: fail()",
    ):
        assert reader().extra(Row({"checks": tests}, "f", 1))["row"] == {"checks": tests}


def reader() -> RowReader:
    verifier = {"type": "python_tests", "tests": "checks"}
    section = {"type": "custom", "train": {"path": "x.jsonl"}, "verifier": verifier}
    return RowReader("data.x", CustomTaskConfig.model_validate(section))
