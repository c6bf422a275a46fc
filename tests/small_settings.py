"""params.yaml shrunk until a stage takes little more than its imports; imports nothing heavy."""

from pathlib import Path
from typing import Any

from dopsd.config.profiles.layers import embedded

ROOT = Path(__file__).parents[1]
SHORT_RUN = {  # of the shipped base and its training problems, by key
    "data.sudoku.validation": 12,
    "data.sudoku.test": 12,
    "train.updates": 2,
    "train.checkpoint_every": 1,
    "train.prompts_per_collect": 2,
    "method.d_opsd.attempts": 2,
    "method.d_opsd.keep_threshold": 0.0,
    "evaluate.bootstrap": 100,
}


def small_settings() -> dict[str, Any]:
    """Return what settings of the toy project and of fault trials share: all tasks and methods."""
    raw = embedded()
    sizes = {"train": 64, "validation": 12, "test": 12}
    for task in ("sudoku", "chains"):
        raw["data"][task] |= sizes
    raw["data"]["sudoku"]["seed"] = 3
    raw["data"]["countdown"] |= {"generate": 64, "validation": 12, "generate_test": 12}
    for task in ("countdown", "chains"):  # the toy base serves all tasks
        raw["data"][task] |= {"model": None, "pretrain": None}
    raw["pretrain"] |= {"d_model": 32, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 64}
    raw["pretrain"] |= {"updates": 200, "batch_size": 16}
    raw["method"]["d_opsd"] |= {"attempts": 3, "keep_threshold": 0.0, "updates_per_trajectory": 3}
    for method in raw["method"].values():  # sizes are those of section train
        sizes = {"updates", "prompts_per_collect", "lora"} & method["train"].keys()
        method["train"] |= dict.fromkeys(sizes)
    raw["train"]["lora"] |= {"r": 4, "alpha": 4}
    raw["evaluate"]["bootstrap"] = 100
    return raw
