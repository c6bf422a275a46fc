"""Verifier `python_tests`: programs are scored in the sandbox, and hostile ones do no harm."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from waiting import until

from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.task import CustomTask
from dopsd.tasks.custom.verifiers import python_tests
from dopsd.tasks.custom.verifiers.config import PythonTestsConfig
from dopsd.tasks.custom.verifiers.python_tests import PythonTests, missing_sandbox, run_program
from dopsd.tasks.registry import load_task

FAULT = missing_sandbox()
needs_sandbox = pytest.mark.skipif(FAULT is not None, reason=f"needs bubblewrap: {FAULT}")
ADD = "def add(a, b):\n    return a + b"
TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"


def verifier(**changes: object) -> PythonTests:
    return PythonTests("data.x.verifier", PythonTestsConfig(**{"seconds": 20} | changes))


def scored(answer: str, prompt: str = "", **changes: object) -> float:
    cells = {"tests": TESTS, "prompt": prompt}
    problem = Problem("x-1", "Add two numbers.", ADD, extra={"row": cells})
    return verifier(**changes).score(problem, answer)


@needs_sandbox
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ADD, 1.0),
        (f"Here it is:\n```python\n{ADD}\n```\nIt adds.", 1.0),
        ("add = max", 0.0),  # a wrong program
        ("def add(a, b)\n    return a + b", 0.0),  # no Python
        ("import sys\nsys.exit(0)", 0.0),  # ends before the tests, as if all were well
        ("import os\nos._exit(0)", 0.0),
        (ADD + "\nprint('passed ' + '0' * 32)\nraise SystemExit", 0.0),
        ("", 0.0),
    ],
)
def test_a_program_scores_if_it_runs_to_the_end_of_the_tests(answer: str, expected: float):
    assert scored(answer) == expected


@needs_sandbox
def test_code_of_a_column_stands_before_the_program():
    body = "def add(a, b):\n    return math.floor(a + b)"
    assert scored(body) == 0.0
    assert scored(body, "import math", before="prompt") == 1.0


HOSTILE = {
    "fork": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "output": "while True:\n    print('x' * 1000)",
    "loop": "while True:\n    pass",
    "sleep": "import time\ntime.sleep(100)",
    "memory": "x = bytearray(10**10)",
    "socket": "import socket\nsocket.create_connection(('{address}', {port}), 2)",
    "write": "open('{outside}', 'w')",
    "system": "open('/usr/made', 'w')",
    "disk": "[open(f'/tmp/{{i}}', 'wb').write(bytes(2**20)) for i in range(100)]",
    "read": "open('{secret}').read()",
    "environment": "import os\nassert os.environ.get('SECRET')",
    "kill": "import os\nos.kill({pid}, 0)",
    "left": "import subprocess as s\ns.Popen(['sleep', '{mark}'], start_new_session=True)\n1 / 0",
}


@needs_sandbox
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_scores_nothing_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    memory_mb = 200 + [*HOSTILE].index(name)  # by it the sandbox is known among others
    mark = str(memory_mb * 2**20)
    monkeypatch.setenv("SECRET", "x")
    (tmp_path / "secret").write_text("x")
    tmp_path.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        places = {"outside": tmp_path / "made", "secret": tmp_path / "secret"}
        words = {"address": address, "port": port, "pid": os.getpid(), "mark": mark} | places
        output, status, _ = run_program(HOSTILE[name].format(**words), 2, memory_mb)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert status != 0 and output.startswith(b"started\n") and len(output) <= 2**20
    assert {path.name for path in tmp_path.iterdir()} == {"secret"}
    assert not Path("/usr/made").exists()
    until(lambda: not [words for words in commands() if mark in words])


def commands() -> list[list[str]]:
    """Words of the command lines of all processes of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text().split("\0"))
        except OSError:
            continue  # it ended
    return found


@needs_sandbox
def test_a_task_of_programs_reads_its_rows_and_scores_generations(tmp_path: Path):
    rows = [{"question": "Add.", "answer": ADD, "tests": TESTS}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {
        "type": "custom",
        "train": {"path": str(tmp_path / "rows.jsonl")},
        "answer_format": [{"tag": "answer"}, {"text": "whole"}],
        "verifier": {"type": "python_tests"},
    }
    task = load_task("mine", CustomTaskConfig.model_validate(section))
    assert isinstance(task, CustomTask)
    ((_, problem),) = task.read("train")
    assert task.verify(problem, f"<answer>\n{ADD}\n</answer>").score == 1.0
    assert task.verify(problem, "<answer>add = min</answer>").score == 0.0
    with pytest.raises(DopsdError, match="no tests"):
        task.score(Problem("y", "?", "x"), ADD)


def test_without_a_sandbox_nothing_is_run(monkeypatch: pytest.MonkeyPatch):
    missing_sandbox.cache_clear()
    monkeypatch.setattr(python_tests.shutil, "which", lambda _: None)
    with pytest.raises(DopsdError, match="bubblewrap") as found:
        verifier()
    assert len(str(found.value).splitlines()) == 1
    missing_sandbox.cache_clear()
