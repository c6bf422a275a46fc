"""`PYTHONPATH=tests python -m gpu run train` runs a command of dopsd on a pretended GPU."""

from __future__ import annotations

import json
import sys

from gpu import shim


def main(words: list[str]) -> int:
    shim.load()
    from gpu import cuda_api

    cuda_api.prepare()
    if words[0] == "run":
        from gpu.command import run

        return run(words[1:])
    from gpu import self_check

    sys.stdout.write(json.dumps(self_check.results(), indent=1) + "\n")
    return 0


sys.exit(main(sys.argv[1:]))
