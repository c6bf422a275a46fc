"""`python server.py USER evaluates`: make and score problems of reasoning-gym, as JSON lines.

Imports nothing of dopsd: it runs as a program, also within the sandbox.
"""

import json
import os
import random
import resource
import sys
import time
import warnings
from contextlib import suppress
from fractions import Fraction
from functools import cache
from typing import Any

OF_TODAY = ("start_time", "end_time")  # metadata of time_intervals, which no scorer reads
EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")  # one of many answers
PROCESSES, SECONDS = 16, 10  # most that a scorer may use that evaluates an answer


def packed(value: Any) -> Any:  # noqa: ANN401  # any value of a problem
    """Return a value as JSON that `unpacked` reads: tuples, and keys that are no texts, stay."""
    if isinstance(value, tuple):
        return {"tuple": [packed(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[packed(key), packed(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [packed(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Fraction):
        return {"fraction": [value.numerator, value.denominator]}
    if callable(getattr(value, "item", None)):  # a number of NumPy
        return packed(value.item())
    raise TypeError(f"a value of type {type(value).__name__}, which is no JSON")


def unpacked(value: Any) -> Any:  # noqa: ANN401  # any value of a problem
    """Return the value that `packed` described."""
    if isinstance(value, list):
        return [unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    items = unpacked(items)
    if kind == "dict":
        return dict(items)
    return tuple(items) if kind == "tuple" else Fraction(*items)


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
    metadata, answer = entry["metadata"], entry["answer"]
    if dataset == "time_intervals":
        metadata = {name: value for name, value in metadata.items() if name not in OF_TODAY}
    examples = [metadata[name] for name in EXAMPLES if answer is None and metadata.get(name)]
    shown = examples[0] if examples else answer
    shown = shown if isinstance(shown, str | None) else json.dumps(shown)
    solution = metadata.get("answer_cot")
    row = {"dataset": dataset, "config": config}
    row["entry"] = packed(entry | {"question": None, "metadata": metadata})
    return {"question": entry["question"], "answer": shown, "solution": solution, "row": row}


def score(request: dict[str, Any]) -> float:
    """Return the library's score of an answer, from 0 to 1; 0 where its scorer fails."""
    row = request["row"]
    entry = unpacked(row["entry"]) | {"question": request["question"]}
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

    rows = []
    for name, (kind, _) in sorted(DATASETS.items()):
        row = {"dataset": name, "kind": kind.__module__.split(".")[1]}
        if name != "composite":
            began = time.monotonic()
            problems = [made(name, "{}", 1, 5, index) for index in range(3)]
            row |= {k: problems[0][k] for k in ("question", "answer")}
            row["seconds"] = (time.monotonic() - began) / len(problems)
        rows.append(row)
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
    answers = os.fdopen(os.dup(1), "w")
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
