"""The toy project of the tests: params.yaml shrunk, with the data and the base that it makes.

tests/toy holds both, so that no test has to pretrain; `make toy` makes them again. dopsd takes the
base as its own, for base/sudoku/pretrain.json says that these settings and this data made it.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from small_settings import ROOT as ROOT
from small_settings import small_settings

from dopsd.algorithms.common.config import AlgorithmConfig, IteratedGroupConfig
from dopsd.algorithms.registry import ALGORITHMS
from dopsd.algorithms.trace_rl.config import TraceRlConfig
from dopsd.cli.main import main
from dopsd.config import loading
from dopsd.pipeline.stages.prepare import PREPARED

TOY = ROOT / "tests" / "toy"


def methods_with(kind: type[AlgorithmConfig]) -> list[str]:
    """Names of the algorithms whose settings are of a kind."""
    return [name for name in ALGORITHMS.names if issubclass(ALGORITHMS.config_class(name), kind)]


def small_params(**changes: object) -> dict:
    """params.yaml shrunk until a run takes seconds; changes have __ for the dot of a key."""
    raw = small_settings()
    raw["method"]["rft"] |= {"attempts": 2, "keep_threshold": 0.0}
    raw["method"]["vrpo"] |= {"attempts": 3, "draws": 2}
    for name in methods_with(IteratedGroupConfig):
        raw["method"].setdefault(name, {}).update(group_size=2, iterations=2)
    for name in methods_with(TraceRlConfig):
        raw["method"].setdefault(name, {}).update(group_size=2, updates_per_pass=2)
    raw["method"]["just_grpo"] |= {
        "group_size": 3,
        "train": {"prompts_per_collect": 2, "warmup_updates": None, "grad_clip": None},
    }
    raw["train"] |= {"updates": 4, "prompts_per_collect": 2, "checkpoint_every": 2}
    raw["tracking"]["enabled"] = False
    for key, value in changes.items():
        *path, last = key.split("__")
        section = raw
        for part in path:
            section = section.setdefault(part, {})  # of an algorithm that params.yaml does not name
        section[last] = value
    return raw


def small_yaml(**changes: object) -> str:
    """params.yaml as text; this process need not parse it again in pure Python."""
    text = yaml.dump(small_params(**changes), Dumper=yaml.CSafeDumper)
    written[text] = yaml.load(text, Loader=yaml.CSafeLoader)
    return text


def quickly(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser that knows what `small_yaml` wrote."""
    return lambda text: written[text] if text in written else parse(text)


written: dict[str, Any] = {}
loading._parsed = quickly(loading._parsed)


def make(folder: Path) -> None:
    """Run the stages prepare and pretrain in a new folder, on one thread as tests run."""
    before, threads = Path.cwd(), torch.get_num_threads()
    folder.mkdir(parents=True)
    os.chdir(folder)
    torch.set_num_threads(1)
    try:
        Path("params.yaml").write_text(small_yaml())
        for stage in ("prepare", "pretrain"):
            if main([stage]):
                raise SystemExit(f"{stage} failed")
        shutil.rmtree("work")
        Path("data/sudoku", PREPARED).unlink()  # of settings that follow the root's too
        Path("params.yaml").unlink()  # it follows the params.yaml of the root
    finally:
        os.chdir(before)
        torch.set_num_threads(threads)


if __name__ == "__main__":
    shutil.rmtree(TOY, ignore_errors=True)
    make(TOY)
