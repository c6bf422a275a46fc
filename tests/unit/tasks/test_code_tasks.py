"""Verifier `python_tests`: programs are scored in the sandbox, and hostile ones do no harm."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from waiting import until

from dopsd.core.errors import DopsdError
from dopsd.core.types import Problem
from dopsd.tasks.common import sandbox
from dopsd.tasks.common.sandbox import missing_sandbox, run_program
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.task import CustomTask
from dopsd.tasks.custom.verifiers.config import PythonTestsConfig
from dopsd.tasks.custom.verifiers.python_tests import PythonTests
from dopsd.tasks.registry import is_graded, load_task

FAULT = missing_sandbox()
needs_sandbox = pytest.mark.skipif(FAULT is not None, reason=f"needs bubblewrap: {FAULT}")
ADD = "def add(a, b):\n    return a + b"
TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"


def verifier(**changes: object) -> PythonTests:
    return PythonTests("data.x.verifier", PythonTestsConfig(**{"seconds": 60} | changes))


def scored(answer: str, prompt: str = "", tests: str = TESTS, **changes: object) -> float:
    cells = {"tests": tests, "prompt": prompt}
    problem = Problem("x-1", "Add two numbers.", ADD, extra={"row": cells})
    return verifier(**changes).score(problem, answer)


@needs_sandbox
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ADD, 1.0),
        (f"Here it is:\n```python\n{ADD}\n```\nIt adds.", 1.0),
        (f"```Python3\n{ADD}\n```\nIt adds.".replace("\n", "\r\n"), 1.0),
        ("add = max", 0.0),  # a wrong program
        ("def add(a, b)\n    return a + b", 0.0),  # no Python
        ("import sys\nsys.exit(0)", 0.0),  # ends before the tests, as if all were well
        ("import os\nos._exit(0)", 0.0),
        (ADD + "\nprint('passed ' + '0' * 32)\nos._exit(0)", 0.0),
        (ADD + "\nimport os\nos._exit(0)", 0.0),
        (ADD + "\nexit(0)", 1.0),  # the tests run all the same
        ("def add(a, b):\n    raise SystemExit", 0.0),  # ends the tests
        ("import sys, threading\nthreading.Thread(target=sys.exit).start()", 0.0),
        (f"```bash\npip install x\n```\n1. Write\n   ```python\n{ADD}\n```", 1.0),
        ("-" * 99_999 + "1", 0.0),
        ("", 0.0),
        (ADD + "\nif __name__ == '__main__':\n    print(add(int(input()), 1))", 1.0),
        ("from __future__ import annotations\n" + ADD, 1.0),
        ("import dataclasses\n@dataclasses.dataclass\nclass A:\n    a: 'int'\n" + ADD, 1.0),
        ("def add(a, b):\n    return 0\nif 0:\\", 0.0),  # swallows no line of the tests
    ],
)
def test_a_program_scores_if_it_runs_to_the_end_of_the_tests(answer: str, expected: float):
    assert scored(answer) == expected


CHEATS = {
    "exec": "import builtins\nbuiltins.exec = lambda *a: None",
    "exec of the scorer": "import __main__\n__main__.exec = lambda *a: None",
    "builtins": "import builtins\nbuiltins.all = lambda x: True",
    "builtins of its own": "__builtins__ = {'all': lambda x: True}",
    "os": "import os\nos.read = lambda *a: b'x'\nos.write = lambda *a: os._exit(0)",
    "suppress": "import contextlib\ncontextlib.suppress.__exit__ = lambda *a: True",
    "trace": "import sys\ndef skip(frame, event, arg):\n"
    "    if event == 'line' and frame.f_code.co_filename == 'tests':\n"
    "        frame.f_lineno = 3\n    return skip\nsys.settrace(skip)",
    "profile": "import sys\ndef skip(frame, event, arg):\n"
    "    if event == 'line': frame.f_lineno = 3\n    return skip\ndef begin(frame, event, arg):\n"
    "    if frame.f_code.co_filename == 'tests':\n"
    "        sys.settrace(skip)\n        frame.f_trace = skip\nsys.setprofile(begin)",
    "hook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)",
    "frame": "import sys, os\nframe = sys._getframe(1)\nwhile frame:\n"
    "    for value in frame.f_locals.values():\n"
    "        if isinstance(value, bytes): os.write(1, value)\n"
    "    frame = frame.f_back\nos._exit(0)",
    "file": "import os, re\ntext = open('/tmp/program.py').read()\n"
    "os.write(1, ' '.join(re.findall('passed [0-9a-f]+', text)).encode())\nos._exit(0)",
}


@needs_sandbox
@pytest.mark.parametrize("name", CHEATS)
def test_what_a_program_replaces_neither_skips_its_tests_nor_shows_the_secret(name: str):
    tests = "wrong = ValueError\nif not all([add(2, 3) == 5]): raise wrong\nx = 1"
    assert scored(f"{CHEATS[name]}\ndef add(a, b):\n    return 0", tests=tests) == 0.0


@needs_sandbox
def test_code_of_a_column_stands_before_the_program():
    body = "def add(a, b):\n    return math.floor(a + b)"
    assert scored(body) == 0.0
    assert scored(body, "import math", before="prompt") == 1.0
    future = f"from __future__ import annotations\n{body}"
    assert scored(future, "import math", before="prompt") == 1.0


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
    "shm": "[open(f'/dev/shm/{{i}}', 'wb').write(bytes(2**20)) for i in range(100)]",
    "root": "open('/made', 'w')",
    "device": "open('/dev/made', 'w')",
    "read": "open('{secret}').read()",
    "environment": "import os\nassert 'SECRET' in os.environ",
    "environment of others": "assert b'SECRET' in open('/proc/1/environ', 'rb').read()",
    "input of others": "assert open('/proc/1/fd/0', 'rb').read()",  # has the secret
    "kill": "import os\nos.kill({pid}, 0)",
    "System V": "import ctypes\nassert ctypes.CDLL(None).shmget(0, 2**30, 0o1600) >= 0",
    "left": "import subprocess as s\ns.Popen(['sleep', '{mark}'], start_new_session=True)\n1 / 0",
}
RUNNER = """
import json, sys
from dopsd.tasks.common.sandbox import run_program
output, status, fault = run_program(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
print(json.dumps([len(output), status, fault]))
"""
AS_USER = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "/usr/bin/python3", "-c"]


def cannot_be_a_user() -> str:
    """Why this machine's tests cannot become an ordinary user; empty if they can."""
    if os.geteuid() or not all(map(shutil.which, ("setpriv", "/usr/bin/python3"))):
        return "needs root, setpriv and Debian's Python"
    words = [*AS_USER, RUNNER, "", "20", "256"]
    ran = subprocess.run(words, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    return "" if ran.stdout == '[0, 0, ""]\n' else f"not as a user: {ran.stdout}{ran.stderr[-200:]}"


@needs_sandbox
@pytest.mark.parametrize("who", ["me", pytest.param("an ordinary user", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_scores_nothing_and_leaves_nothing(name, who, tmp_path, monkeypatch):
    if who != "me" and (why := cannot_be_a_user()):
        pytest.skip(why)
    memory_mb = 200 + [*HOSTILE].index(name) + 50 * (who != "me")  # tells the sandbox from others
    mark = str(memory_mb * 2**20)
    monkeypatch.setenv("SECRET", "x")
    (tmp_path / "secret").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        places = {"outside": tmp_path / "made", "secret": tmp_path / "secret"}
        words = {"address": address, "port": port, "pid": os.getpid(), "mark": mark} | places
        program = HOSTILE[name].format(**words)
        if who == "me":
            output, status, fault = run_program(program, 2, memory_mb)
            size = len(output)
        else:
            environment = {"PYTHONPATH": str(ROOT), "SECRET": "x"}
            ran = [*AS_USER, RUNNER, program, "2", str(memory_mb)]
            size, status, fault = json.loads(subprocess.check_output(ran, env=environment))
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (status != 0, fault) == (True, "") and size <= 2**20
    assert {path.name for path in tmp_path.iterdir()} == {"secret"}
    assert not Path("/usr/made").exists()
    until(lambda: not [words for words in commands() if mark in words])


@needs_sandbox
def test_a_program_is_marked_for_the_kernel_to_end_first():
    said = "import os\nos.write(1, open('/proc/self/oom_score_adj', 'rb').read())"
    assert run_program(said, 20, 256) == (b"1000\n", 0, "")


@needs_sandbox
def test_what_a_program_does_to_its_output_neither_stops_the_scorer_nor_costs_a_point():
    for first in ("print('x', end='')", "print = None", "import sys\nsys.stdout = None"):
        assert scored(f"{ADD}\n{first}") == 1.0
    for first in ("import os\nos.ftruncate(1, 0)", "import os\nos.close(1)"):
        assert scored(f"{first}\n1 / 0") == 0.0


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
    rows = [{"question": "Add.", "answer": ADD, "tests": TESTS.splitlines(), "first": ""}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {"type": "custom", "train": {"path": str(tmp_path / "rows.jsonl")}}
    section["answer_format"] = [{"tag": "answer"}, {"text": "whole"}]
    section["verifier"] = {"type": "python_tests", "before": "first"}
    task = load_task("mine", CustomTaskConfig.model_validate(section))
    assert isinstance(task, CustomTask)
    ((_, problem),) = task.read("train")
    assert task.verify(problem, f"<answer>\n{ADD}\n</answer>").score == 1.0
    assert task.verify(problem, "<answer>add = min</answer>").score == 0.0
    with pytest.raises(DopsdError, match="no tests"):
        task.score(Problem("y", "?", "x"), ADD)


def test_without_a_sandbox_nothing_is_run(monkeypatch: pytest.MonkeyPatch):
    missing_sandbox.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    with pytest.raises(DopsdError, match="bubblewrap") as found:
        verifier()
    assert len(str(found.value).splitlines()) == 1
    section = {"type": "custom", "train": {"path": "x.jsonl"}, "verifier": {"type": "python_tests"}}
    config = CustomTaskConfig.model_validate(section)
    assert not is_graded("mine", config)  # a report asks no more
    with pytest.raises(DopsdError, match="bubblewrap"):
        load_task("mine", config)
    missing_sandbox.cache_clear()
