"""`python server.py USER evaluates`: make and score problems of reasoning-gym, as JSON lines.

Imports nothing of dopsd: it runs as a program, also within the sandbox.
"""

import ast
import json
import os
import random
import resource
import sys
import time
import warnings
from contextlib import suppress
from functools import cache
from typing import Any

OF_TODAY = ("start_time", "end_time")  # metadata of time_intervals, which no scorer reads
EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")  # one of many answers
PROCESSES, SECONDS = 16, 10  # most that a scorer may use that evaluates an answer


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
    if dataset == "composite":
        defaults = {"weight": 1.0, "config": {}}
        values["datasets"] = [DatasetSpec(**defaults | part) for part in values.get("datasets", [])]
    return reasoning_gym.create_dataset(dataset, seed=seed, size=size, **values)


def made(dataset: str, config: str, seed: int, size: int, index: int) -> dict[str, Any]:
    """Return a problem: question, answer, solution, and the row that scoring needs."""
    random.seed(f"{seed} {index}")  # list_functions draws from the global generator
    entry = make(dataset, config, seed, size)[index]
    unread = OF_TODAY if dataset == "time_intervals" else ()
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
            for kind, limit in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_NPROC, PROCESSES)):
                resource.setrlimit(kind, (limit, limit))
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.write(sink, repr(score(request)).encode())
        os._exit(0)
    os.close(sink)
    os.waitpid(process, 0)
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
