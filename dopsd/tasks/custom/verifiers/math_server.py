"""`python math_server.py SECONDS`: score JSON lines with math-verify, as a `command` verifier does.

Imports nothing of dopsd: it runs as a program.
"""

import json
import logging
import sys


def score(answer: str, response: str, seconds: int) -> float:
    """Return 1 if both expressions are equal, else 0.

    Args:
        answer: the row's answer, in LaTeX or as people type it.
        seconds: time limit of each of the library's three steps.
    """
    from math_verify import parse, verify

    gold, value = (
        parse(f"\\boxed{{{text}}}", parsing_timeout=seconds) for text in (answer, response)
    )
    return float(bool(gold and value) and verify(gold, value, timeout_seconds=seconds))


def main(seconds: int) -> None:
    """Answer the lines of standard input until it ends."""
    logging.disable(logging.ERROR)  # a line for each expression that is not one
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        result = score(request["answer"], request["response"], seconds)
        answers.write(json.dumps({"id": request["id"], "score": result}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
