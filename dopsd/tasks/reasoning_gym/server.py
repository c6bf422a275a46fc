"""`python server.py USER evaluates`: make and score problems of reasoning-gym, as JSON lines.

Imports nothing of dopsd: it runs as a program, also within the sandbox.
"""

import ast
import ctypes
import json
import os
import random
import re
import resource
import signal
import sys
import time
import warnings
from contextlib import suppress
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

OF_TODAY = ("start_time", "end_time")  # metadata of time_intervals, which no scorer reads
NOT_DUMPABLE = 4  # PR_SET_DUMPABLE of Linux' prctl
EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")  # one of many answers
LIMITS = {resource.RLIMIT_CPU: 10, resource.RLIMIT_NPROC: 16, resource.RLIMIT_NOFILE: 64}
LIMITS[resource.RLIMIT_FSIZE] = 0  # of a scorer that evaluates an answer; no file is written


def literal(value: Any) -> Any:  # noqa: ANN401  # any value of a problem
    """Return a value that Python reads from its text; fractions of gsm_symbolic as text."""
    try:
        ast.literal_eval(repr(value))
    except ValueError:
        return str(value)
    return value


@cache
def make(dataset: str, config: str, seed: int, size: int) -> Any:  # noqa: ANN401  # of the library
    """Return a dataset with its settings, as JSON."""
    import reasoning_gym
    from reasoning_gym.composite import DatasetSpec

    values = json.loads(config)
    for key, value in values.items():
        if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value):
            values[key] = date.fromisoformat(value)
    if dataset == "composite":
        defaults = {"weight": 1.0, "config": {}}
        values["datasets"] = [DatasetSpec(**defaults | part) for part in values.get("datasets", [])]
    try:
        return reasoning_gym.create_dataset(dataset, seed=seed, size=size, **values)
    except TypeError as error:
        known = reasoning_gym.factory.DATASETS[dataset][1].__dataclass_fields__
        keys = ", ".join(name for name in known if name not in {"seed", "size"})
        raise TypeError(f"{error}; config may have {keys}") from error


def made(dataset: str, config: str, seed: int, size: int, index: int) -> dict[str, Any]:
    """Return a problem: question, answer, solution, and the row that scoring needs."""
    random.seed(f"{seed} {index}")  # list_functions draws from the global generator
    entry = make(dataset, config, seed, size)[index]
    is_timed = entry["metadata"].get("source_dataset", dataset) == "time_intervals"
    unread = OF_TODAY if is_timed else ()
    metadata = {k: literal(v) for k, v in entry["metadata"].items() if k not in unread}
    answer = entry["answer"]
    examples = [metadata[name] for name in EXAMPLES if answer is None and metadata.get(name)]
    shown = examples[0] if examples else answer
    shown = shown if isinstance(shown, str | None) else json.dumps(shown)
    solution = metadata.get("answer_cot")
    kept = {"answer": answer, "metadata": metadata}
    row = {"dataset": dataset, "config": config, "entry": repr(kept)}
    return {"question": entry["question"], "answer": shown, "solution": solution, "row": row}


def score(request: dict[str, Any]) -> float:
    """Return the library's score of an answer, from 0 to 1; 0 where its scorer fails."""
    row = request["row"]
    entry = ast.literal_eval(row["entry"]) | {"question": request["question"]}
    dataset = make(row["dataset"], row["config"], 0, 100)
    try:
        value = float(dataset.score_answer(request["response"], entry))
    except Exception:  # of a scorer that some texts break
        return 0.0
    return min(max(value, 0.0), 1.0) if value == value else 0.0  # noqa: PLR0124  # NaN


def apart(request: dict[str, Any]) -> float:
    """Return the score that a process of its own finds: it may evaluate the answer."""
    make(request["row"]["dataset"], request["row"]["config"], 0, 100)
    source, sink = os.pipe()
    if not (process := os.fork()):
        with suppress(BaseException):
            for kind, limit in LIMITS.items():
                resource.setrlimit(kind, (limit, limit))
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(sink, 3)
            os.closerange(4, 1024)
            os.write(3, repr(score(request)).encode())
        os._exit(0)
    os.close(sink)
    os.waitpid(process, 0)
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # what the answer has left in the sandbox
    text = os.read(source, 64)
    os.close(source)
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0


def listed() -> list[dict[str, Any]]:
    """Return every dataset with an example, and the seconds of making one problem."""
    from reasoning_gym.factory import DATASETS

    rows = [{"dataset": "composite", "question": "", "answer": "", "seconds": 0.0}]
    for name in sorted(DATASETS.keys() - {"composite"}):
        began = time.monotonic()
        problem, *_ = [made(name, "{}", 1, 5, index) for index in range(3)]
        seconds = (time.monotonic() - began) / 3
        rows.append({"dataset": name, "seconds": seconds, **problem, "row": None})
    return rows


def answered(request: dict[str, Any], evaluates: bool) -> dict[str, Any]:
    """Return the answer to a request: datasets, a problem, or the score of an answer."""
    if "response" in request:
        return {"score": apart(request) if evaluates else score(request)}
    if "index" not in request:
        return {"rows": listed()}
    try:
        return made(*(request[name] for name in ("dataset", "config", "seed", "size", "index")))
    except Exception as error:  # of the dataset's settings
        return {"error": " ".join(str(error).split()) or type(error).__name__}


def main(user: int, evaluates: bool) -> None:
    """Answer the lines of standard input until it ends."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the library prints is no answer
    if evaluates:  # ended first where memory ends; closed to processes of the same user
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
        ctypes.CDLL(None).prctl(NOT_DUMPABLE, 0, 0, 0, 0)
    if user:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"id": request["id"]} | answered(request, evaluates)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "evaluates")
