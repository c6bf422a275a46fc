"""A real Ctrl-C in a real process: one line and exit status 130, whatever is loading.

`python -X importtime` prints a line when a module has loaded, so no moment depends on the machine's
speed. Before the first line of dopsd runs, a Ctrl-C is Python's own to handle.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT
from forks import BOUND

pytestmark = pytest.mark.full

LINE = "dopsd: interrupted; the same command continues (D501)\n"


def started(*words: str, **options: object) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, *words], env=env, **options)


def interrupted_at(module: str, *words: str) -> tuple[int, str]:
    """Send SIGINT once the module has loaded; return exit status and standard error."""
    process = started("-X", "importtime", "-m", "dopsd", *words)
    watchdog = threading.Timer(BOUND, process.kill)
    watchdog.start()
    for line in process.stderr:
        if line.startswith("import time:") and line.rpartition("|")[2].strip() == module:
            process.send_signal(signal.SIGINT)
            break
    printed = [line for line in process.stderr if not line.startswith("import time:")]
    watchdog.cancel()
    return process.wait(), "".join(printed)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("difflib", ["summary"]),  # the first module after the handler is in place
        ("datetime", ["--help"]),  # within pydantic's extension, which panics at an exception
        ("pydantic", ["summary"]),
        ("torch._C", ["sample"]),
        ("torch.nn.functional", ["train"]),
        ("accelerate.utils.imports", ["train"]),
    ],
)
def test_ctrl_c_while_modules_load_is_one_line(project: Path, module: str, words: list[str]):
    assert interrupted_at(module, *words) == (130, LINE)


def test_ctrl_c_while_a_command_works_is_one_line(project: Path):
    fifo = project / "waits.jsonl"
    os.mkfifo(fifo)  # reading it does not end
    process = started("-m", "dopsd", "score", "--task", "gsm8k", str(fifo))
    writer = os.open(fifo, os.O_WRONLY)  # opens once the command reads
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=BOUND)[1] == LINE and process.returncode == 130
    os.close(writer)


def test_a_ctrl_c_in_a_callback_ends_the_command():
    """Python prints an exception of a finalizer and goes on; a Ctrl-C must not be lost so."""
    code = """
import os, signal, sys
import dopsd.__main__ as started
class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
def work():
    thing = Interrupted()
    del thing
    print("went on")
    return 0
started._run = work
sys.exit(started.main())
"""
    ended = started("-c", code, stdout=subprocess.PIPE)
    assert ended.communicate() == ("", LINE) and ended.returncode == 130
