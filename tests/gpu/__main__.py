"""`PYTHONPATH=tests python -m gpu WHAT`: measure LLaDA-8B's shape on a pretended GPU, as JSON.

WHAT is `update --states 14 [--checkpointing]`, `rollout --rows 64` or `collect --trajectories 4`;
several numbers may follow. `all` measures what the tests need, `check` tries the device itself.
`modelled` writes what `make gpu` compares with: benchmarks/gpu/modelled.json.
`python -m gpu run train` runs a command of dopsd with true values.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gpu import shim

MODELLED = Path(__file__).parents[2] / "benchmarks/gpu/modelled.json"
NUMBERS = {"update": "--states", "rollout": "--rows", "collect": "--trajectories"}


def parser() -> argparse.ArgumentParser:
    parsed = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    kinds = parsed.add_subparsers(dest="what", required=True)
    for what in NUMBERS:
        kind = kinds.add_parser(what)
        kind.add_argument("--layers", type=int, default=32)
        kind.add_argument("--checkpointing", action="store_true")
        kind.add_argument("--set", action="append", default=[], dest="changes")
        kind.add_argument(NUMBERS[what], type=int, nargs="+", required=True, dest="numbers")
    kinds.add_parser("all")
    kinds.add_parser("check")
    kinds.add_parser("modelled")
    kinds.add_parser("run").add_argument("words", nargs=argparse.REMAINDER)
    return parsed


def measure(arguments: argparse.Namespace) -> list[Any]:
    """Return the figures of LLaDA-8B's shape."""
    from gpu import attention, cuda_api

    cuda_api.announce()
    attention.use()
    from random_weights import settings

    from gpu import llada_8b, subject
    from gpu.device import Device

    if arguments.what in ("all", "modelled"):
        with Device(llada_8b.LIMIT) as device:
            found = llada_8b.everything(device)
        return [found if arguments.what == "all" else llada_8b.modelled(found)]
    checkpointing = f"train.gradient_checkpointing={str(arguments.checkpointing).lower()}"
    with Device(llada_8b.LIMIT) as device:
        params = settings(checkpointing, *arguments.changes)
        made = subject.make(device, params, arguments.layers)
        work = getattr(llada_8b, arguments.what)
        return [work(made, number) for number in arguments.numbers]


def main() -> int:
    arguments = parser().parse_args()
    shim.load()
    from gpu import cuda_api

    cuda_api.prepare()
    if arguments.what == "run":
        from gpu.command import run

        return run(arguments.words)
    if arguments.what == "check":
        from gpu import self_check

        found = [self_check.results()]
    else:
        found = measure(arguments)
    if arguments.what == "modelled":
        MODELLED.write_text(json.dumps(found[0], indent=1) + "\n")
        return 0
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


sys.exit(main())
