"""`PYTHONPATH=tests python -m gpu WHAT`: measure LLaDA-8B's shape on a pretended GPU, as JSON.

WHAT is `update --states 14 [--checkpointing]`, `rollout --rows 64` or `collect --trajectories 4`;
several numbers may follow. `python -m gpu run train` runs a command of dopsd with true values.
"""

from __future__ import annotations

import argparse
import json
import sys

from gpu import shim


def parser() -> argparse.ArgumentParser:
    parsed = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    kinds = parsed.add_subparsers(dest="what", required=True)
    numbers = {"update": "--states", "rollout": "--rows", "collect": "--trajectories"}
    for what, number in numbers.items():
        kind = kinds.add_parser(what)
        kind.add_argument(number, type=int, nargs="+", required=True, dest="numbers")
        kind.add_argument("--layers", type=int, default=32)
        kind.add_argument("--checkpointing", action="store_true")
        kind.add_argument("--set", action="append", default=[], dest="changes")
    kinds.add_parser("run").add_argument("words", nargs=argparse.REMAINDER)
    return parsed


def main() -> int:
    arguments = parser().parse_args()
    shim.load()
    from gpu import cuda_api

    cuda_api.prepare()
    if arguments.what == "run":
        from gpu.command import run

        return run(arguments.words)
    cuda_api.announce()
    from gpu import attention, llada_8b
    from gpu.device import Device

    attention.use()
    checkpointing = f"train.gradient_checkpointing={str(arguments.checkpointing).lower()}"
    with Device(llada_8b.LIMIT) as device:
        params = llada_8b.settings(checkpointing, *arguments.changes)
        subject = llada_8b.make(device, params, arguments.layers)
        measure = {
            "update": llada_8b.update,
            "rollout": llada_8b.rollout,
            "collect": llada_8b.collect,
        }[arguments.what]
        results = [measure(subject, number) for number in arguments.numbers]
    sys.stdout.write(json.dumps(results, indent=1) + "\n")
    return 0


sys.exit(main())
