"""Write the model card of a registered checkpoint: settings, accuracies and origin."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dopsd.core.files import read_json
from dopsd.core.fingerprint import sha256
from dopsd.models.files import base_files

if TYPE_CHECKING:
    from dopsd.evaluation.config import EvaluateConfig
    from dopsd.training.run_settings import RunSettings

WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class Origin:
    """Where a run's results came from."""

    data: dict[str, str]  # DVC's md5 of each split
    commit: str  # git commit of the code


def card(run: RunSettings, evaluate: EvaluateConfig, origin: Origin) -> str:
    """Return the card as Markdown, with the YAML header that model hubs read.

    Args:
        run: the run; all figures come from its results on disk.
        evaluate: section `evaluate`, with the protocols.
        origin: the run's data and code.
    """
    head = {"base_model": run.model.path, "library_name": "peft", "tags": tags(run)}
    return f"---\n{yaml.safe_dump(head, sort_keys=False).strip()}\n---\n\n" + body(
        run, evaluate, origin
    )


def tags(run: RunSettings) -> list[str]:
    """Return the tags of a run's card."""
    return ["dopsd", "diffusion-language-model", run.key.task, run.key.method]


def body(
    run: RunSettings, evaluate: EvaluateConfig, origin: Origin, kind: str = "A LoRA adapter"
) -> str:
    """Return the card without its header.

    Args:
        run: the run, as for `card`.
        evaluate: section `evaluate`.
        origin: the run's data and code.
        kind: what the card describes, the first words of its text.
    """
    task, method, seed = run.key.parts
    test_results = read_json(run.key.folder / "test" / "paired.json", "dopsd test")
    chosen = test_results["selected"]
    lines = [
        f"# {task}, {method}, seed {seed}",
        "",
        f"{kind} for `{run.model.path}`, checkpoint after update {chosen['update']} of"
        f" {run.train.updates},",
    ]
    lines += [
        (
            f"selected on {chosen['split']} ({100 * chosen['accuracy']:.1f}% of {chosen['n']}"
            " problems). Accuracy on test in %:"
        ),
        "",
    ]
    lines += [
        "| protocol | base | trained | difference, paired | problems |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(name, result) for name, result in test_results["protocols"].items()]
    lines += ["", "Intervals are 95% bootstrap intervals over problems. Protocols:", ""]
    lines += [f"* `{name}`: {_flat(p.model_dump())}" for name, p in evaluate.protocols.items()]
    lines += [
        "",
        "## Where it came from",
        "",
        *origin_lines(run, origin),
        "",
        "## Settings",
        "",
        "```yaml",
    ]
    settings = {
        name: vars(run)[name].model_dump(mode="json") for name in ("model", "sampling", "train")
    }
    settings |= {"method": {method: run.algorithm.model_dump(mode="json")}}
    return "\n".join([*lines, yaml.safe_dump(settings, sort_keys=False).strip(), "```"]) + "\n"


def _row(name: str, result: dict[str, Any]) -> str:
    sides = " | ".join(
        _percent(result[side]["accuracy"], result[side]["interval"]) for side in ("base", "best")
    )
    gap = _percent(result["paired"]["difference"], result["paired"]["interval"], "+")
    return f"| {name} | {sides} | {gap} | {result['base']['n']} |"


def _percent(value: float, interval: list[float], sign: str = "") -> str:
    low, high = interval
    return f"{100 * value:{sign}.1f} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def _flat(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value}" for key, value in settings.items() if value not in (None, "", False)
    )


def origin_lines(run: RunSettings, origin: Origin) -> list[str]:
    """Return a list in Markdown: digests of base and data, and the code's commit."""
    weights = [path for path in base_files(run.model) if path.suffix == WEIGHTS]
    lines = [f"* base weights: {_digest(path)}" for path in weights]
    lines += [f"* data, {split}: DVC md5 `{digest}`" for split, digest in origin.data.items()]
    return [*lines, f"* code: git commit `{origin.commit}`"]


def _digest(path: Path) -> str:
    return f"`{path.name}` sha256 `{sha256(path)}`"


def commit() -> str:
    """Return the current git commit, or "unknown" outside a repository."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return head.stdout.strip() or "unknown"


def data_digests(task: str) -> dict[str, str]:
    """Return DVC's md5 of each split of a task, from dvc.lock."""
    lock = Path("dvc.lock")
    stages = (yaml.safe_load(lock.read_text()) or {}).get("stages", {}) if lock.is_file() else {}
    outs = [
        out
        for name, stage in stages.items()
        if name.startswith("prepare")
        for out in stage.get("outs", [])
    ]
    outs = [out for out in outs if out["path"].endswith(".jsonl")]
    return {
        Path(out["path"]).stem: out["md5"]
        for out in outs
        if Path(out["path"]).parts[:2] == ("data", task)
    }
