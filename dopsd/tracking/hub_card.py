"""Write the README.md of a model on the Hugging Face hub: header, results, how to load it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCardData
from markupsafe import escape

from dopsd.core.files import read_json
from dopsd.tasks.common.config import Source
from dopsd.tracking.model_card import (
    CardOrigin,
    base_digests,
    data_digests,
    joined,
    kind,
    parts,
    tags,
    title,
    trained_commit,
)

if TYPE_CHECKING:
    from dopsd.evaluation.config import EvaluateConfig
    from dopsd.training.run_settings import RunSettings

ADAPTER_CODE = """import dopsd
from huggingface_hub import snapshot_download

policy = dopsd.load_policy({folder}, adapter=snapshot_download("{repo}"))"""
PEFT_CODE = """import {module}  # the model's own classes; no code is downloaded
from peft import PeftModel
from transformers import AutoModelForMaskedLM

base = AutoModelForMaskedLM.from_pretrained("{base}")
model = PeftModel.from_pretrained(base, "{repo}")"""
MERGED_CODE = """import {module}  # the model's own classes; no code is downloaded
from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained("{repo}")
tokenizer = AutoTokenizer.from_pretrained("{repo}")"""
SCRIPTS = re.compile("(<script.*?</script>)", re.DOTALL)
NO_GENERATE = "* The model fills in masks and has no `generate`: sample with `dopsd.sample`."


@dataclass(frozen=True)
class Release:
    """What a card says beside the run's results."""

    repo: str  # the repository, `user/name`
    is_merged: bool  # base and adapter are one model
    module: str  # the Python module that registers the architecture with transformers
    # the base's name on the hub; None: it is described by digests alone
    base_model: str | None = None
    license: str | None = None  # the licence's name as the hub knows it; None: left out
    rounding: str = ""  # of merged weights, one sentence
    # the checkpoint holds all weights; `is_merged` is true too: it is one model
    is_whole: bool = False


def hub_card(
    release: Release, run: RunSettings, evaluate: EvaluateConfig, has_results: bool
) -> str:
    """Return README.md.

    Args:
        release: the repository, and what is in it.
        run: the run; all figures come from its results on disk.
        evaluate: section `evaluate`, with the protocols.
        has_results: False: the weights are not those that the run tested.
    """
    results = _eval_results(run) if has_results else None
    text = _tested(release, run, evaluate) if has_results else _untested(release, run)
    first = title(run) if has_results else f"# {run.key.task}, a checkpoint without results"
    card = f"{_head(release, run, results)}\n\n{first}\n\n{joined(text)}"
    return _without_local_paths(card, release, run)


def _tested(release: Release, run: RunSettings, evaluate: EvaluateConfig) -> dict[str, list[str]]:
    """Return the card of the run's selected checkpoint, with how to load it from the hub."""
    origin = CardOrigin(data_digests(run.key.task), trained_commit(run.key), release.repo)
    text = parts(run, evaluate, origin, release.is_merged)
    text["How to use it"] = _loading(release, run)
    text["Limits"].append(NO_GENERATE)
    if release.is_merged:
        text[""] += ["", release.rounding]
    return text


def _untested(release: Release, run: RunSettings) -> dict[str, list[str]]:
    """Return the card of weights that no test belongs to, and whose settings are unknown."""
    digests = [f"* {name}: {digest}" for name, digest in base_digests(run).items()]
    return {
        "": [
            f"{kind(release.is_merged, run.model.path, release.is_whole)}. It is not the checkpoint"
            " that a run selected and tested, so this card has no results."
            f" {release.rounding}".rstrip()
        ],
        "How to use it": _loading(release, run),
        "Base": digests,
        "Limits": ["* Nothing about this checkpoint was measured.", NO_GENERATE],
    }


def _head(release: Release, run: RunSettings, results: list[EvalResult] | None) -> str:
    """Return the YAML header, by the hub's own client."""
    head = ModelCardData(
        base_model=release.base_model,
        library_name="transformers" if release.is_merged else "peft",
        license=release.license,
        tags=tags(run) if results else tags(run)[:-1],  # without results the method is unknown
        datasets=(results and hub_datasets(run)) or None,
        metrics=["accuracy"] if results else None,
        model_name=run.key.stage if results else None,
        eval_results=results,
    )
    return f"---\n{head.to_yaml()}\n---"


def hub_datasets(run: RunSettings) -> list[str]:
    """Return the names of the hub's datasets that the run was trained on."""
    sources = [*vars(run.data).items(), *vars(run.algorithm).items()]
    names = [
        source.path
        for name, source in sources
        if isinstance(source, Source) and name != "test" and not Path(source.path).suffix
    ]
    return sorted({name for name in names if not Path(name).exists()})


def _eval_results(run: RunSettings) -> list[EvalResult]:
    tested = read_json(run.key.folder / "test" / "paired.json", "dopsd test")["protocols"]
    task, source = run.key.task, vars(run.data).get("test")
    is_on_hub = isinstance(source, Source) and not Path(source.path).suffix
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=source.path if is_on_hub and source else task,
            dataset_name=task,
            dataset_split="test",
            metric_type="accuracy",
            metric_name=f"accuracy, protocol {name}, 95% interval {_interval(result['best'])}",
            metric_value=round(result["best"]["accuracy"], 4),
        )
        for name, result in tested.items()
    ]


def _interval(result: dict[str, Any]) -> str:
    low, high = result["interval"]
    return f"[{low:.4f}, {high:.4f}]"


def _loading(release: Release, run: RunSettings) -> list[str]:
    base = release.base_model or run.model.path
    folder = f'snapshot_download("{base}")' if release.base_model else f'"{base}"'
    codes = [MERGED_CODE] if release.is_merged else [ADAPTER_CODE, PEFT_CODE]
    blocks = [
        code.format(base=base, folder=folder, repo=release.repo, module=release.module)
        for code in codes
    ]
    lines = [
        "Install dopsd, which implements [d-OPSD](https://arxiv.org/abs/2606.18195), from its"
        " repository."
    ]
    return lines + [line for block in blocks for line in ("", "```python", block, "```")]


def _without_local_paths(text: str, release: Release, run: RunSettings) -> str:
    """Name the base as others know it, and not where it is on this machine."""
    path = Path(run.model.path)
    shown = release.base_model or (path.name if path.is_absolute() else run.model.path)
    for quoted in ("`{}`", "path: {}\n", '"{}"'):
        text = text.replace(quoted.format(path), quoted.format(shown))
    return _without_home(text)


def shared_page(page: str, run: RunSettings) -> str:
    """Return a run's report without paths of this machine; its scripts have none."""
    texts = SCRIPTS.split(page)  # every second one is a script
    for path in _absolute_paths(run):
        shown = str(escape(Path(path).name))
        texts[::2] = [text.replace(str(escape(path)), shown) for text in texts[::2]]
    return "".join(
        text if is_script else _without_home(text)
        for text, is_script in zip(texts, cycle((False, True)), strict=False)
    )


def _absolute_paths(run: RunSettings) -> list[str]:
    """Return the absolute paths in a run's settings, longest first, and the current folder."""
    sections = (run.model, run.data, run.train, run.algorithm, run.launch)
    pending: list[Any] = [section.model_dump(mode="json") for section in sections]
    paths = {str(Path.cwd())}
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list):
            pending += value.values() if isinstance(value, dict) else value
        elif isinstance(value, str) and Path(value).is_absolute() and Path(value).name:
            paths.add(value)
    return sorted(paths, key=len, reverse=True)


def _without_home(text: str) -> str:
    home = Path.home()
    return text.replace(str(home), "~") if home.name else text  # `/` in some containers
