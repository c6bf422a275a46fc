"""Write the model card of a registered checkpoint, and the description of a registered model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dopsd.algorithms.registry import ALGORITHMS, how, label, variant_of
from dopsd.core.files import WORK, object_in, read_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import RunKey
from dopsd.core.registry import first_line
from dopsd.core.statistics import gap, percent, within
from dopsd.models.backends import in_words
from dopsd.models.checkpoint_files import base_files
from dopsd.tasks.common.storage import DATA
from dopsd.tasks.registry import package_of
from dopsd.training.machine import MACHINE

if TYPE_CHECKING:
    from dopsd.evaluation.config import EvaluateConfig
    from dopsd.training.run_settings import RunSettings

WEIGHTS = ".safetensors"
USES = {"train": "training", "validation": "validation", "test": "the test, once at the end"}
SIDES = ("base", "best")
SECTIONS = ("model", "sampling", "train")  # of the settings in the card


def description(name: str, task: str, base: str) -> str:
    """Return the text of a registered model: what its versions are and how to use them."""
    return "\n".join(
        [
            f"Checkpoints of the diffusion language model `{base}`, trained on the task"
            f" `{task}` ({about(package_of(task))}).",
            "",
            "Each version is the selected checkpoint of one run. Its page says method, accuracy"
            " with intervals, data, settings and limits. The alias `champion` marks the version"
            " with the highest accuracy on the selection split.",
            "",
            "## How to use it",
            "",
            *_commands(f"models:/{name}@champion"),
        ]
    )


def card(run: RunSettings, evaluate: EvaluateConfig, origin: CardOrigin) -> str:
    """Return the card as Markdown, with a YAML header; the arguments are those of `parts`."""
    return "\n".join(_header(run)) + joined(parts(run, evaluate, origin))


def parts(
    run: RunSettings, evaluate: EvaluateConfig, origin: CardOrigin, is_merged: bool = False
) -> dict[str, list[str]]:
    """Return the lines of a card by heading.

    Args:
        run: the run; all figures come from its results on disk.
        evaluate: section `evaluate`, with the protocols.
        origin: the run's data and code, and the checkpoint's address.
        is_merged: the card is of base and adapter as one model.
    """
    tested = read_json(run.key.folder / "test" / "paired.json", "dopsd test")
    is_whole = run.train.adapter is None
    return {
        "": _summary(run, tested, kind(is_merged, run.model.path, is_whole)),
        "Result": _result(tested, evaluate),
        "How to use it": _commands(origin.address, "" if is_whole else " --merged"),
        "Data": _data(run, tested["selected"]["split"], origin),
        "Training": _training(run, origin),
        "Limits": _limits(run, tested["selected"], is_merged or is_whole),
        "All settings": _settings(run),
    }


def joined(parts: dict[str, list[str]]) -> str:
    """Return the Markdown text of parts by heading; the first one may have none."""
    lines = [line for title, part in parts.items() for line in _part(title, part)]
    return "\n".join(lines).rstrip() + "\n"


def _part(title: str, lines: list[str]) -> list[str]:
    return [*([f"## {title}", ""] if title else []), *lines, ""]


def _header(run: RunSettings) -> list[str]:
    library = "peft" if run.train.adapter else "transformers"
    head = {"base_model": run.model.path, "library_name": library, "tags": tags(run)}
    return ["---", yaml.safe_dump(head, sort_keys=False).strip(), "---", "", title(run), "", ""]


def title(run: RunSettings) -> str:
    """Return the first line of a card."""
    return f"# {run.key.task}, {method_name(run)}, seed {run.key.seed}"


def tags(run: RunSettings) -> list[str]:
    """Return the tags of a card, as model hubs show them."""
    return ["dopsd", "diffusion-language-model", run.key.task, run.key.method]


def kind(is_merged: bool, base: str, is_whole: bool) -> str:
    """Return what a model is: an adapter for a base, both as one model, or all weights."""
    what = "Base and LoRA adapter as one model, made from" if is_merged else "A LoRA adapter for"
    what = "All weights, trained from" if is_whole else what
    return f"{what} the diffusion language model `{base}`"


def _summary(run: RunSettings, tested: dict[str, Any], what: str) -> list[str]:
    return [
        f"{what}, for the task `{run.key.task}` ({about(package_of(run.key.task))}). It was trained"
        f" by `{method_name(run)}` ({about_method(run)}); this is the checkpoint"
        f" after update {tested['selected']['update']} of {run.train.updates}."
    ]


def _result(tested: dict[str, Any], evaluate: EvaluateConfig) -> list[str]:
    result = tested["protocols"][tested["selected"]["protocol"]]
    best, base, paired = result["best"], result["base"], result["paired"]
    (low, high), (gap_low, gap_high) = best["interval"], paired["interval"]
    return [
        f"**{percent(best['accuracy'])}% accuracy on {base['n']} test problems**, between"
        f" {percent(low)}% and {percent(high)}% with 95% confidence. The base has"
        f" {percent(base['accuracy'])}%. On the same problems the trained model differs by"
        f" {percent(paired['difference'], '+')} percentage points, between {percent(gap_low, '+')}"
        f" and {percent(gap_high, '+')}: {_verdict(gap_low, gap_high)}.",
        "",
        "In percent, by protocol, with 95% intervals over problems in brackets:",
        "",
        *(_row(name, protocol) for name, protocol in tested["protocols"].items()),
        "",
        f"Measured on: {in_words(best.get('measured_on', []))}.",
        "",
        "Settings of the protocols:",
        "",
        *(
            f"* `{name}`: {_flat(protocol.model_dump())}"
            for name, protocol in evaluate.protocols.items()
            if name in tested["protocols"]
        ),
    ]


def _verdict(low: float, high: float) -> str:
    """Return in words what the interval of a paired difference says."""
    if low > 0:
        return "it is better than the base on such problems"
    if high < 0:
        return "it is worse than the base on such problems"
    return "these problems show no difference to the base"


def _row(name: str, result: dict[str, Any]) -> str:
    """Return the result of a protocol as an item of a list: MLflow's tables have no space."""
    base, best = (within(result[side]["accuracy"], result[side]["interval"]) for side in SIDES)
    difference = gap(result["paired"]["difference"], result["paired"]["interval"])
    return f"* `{name}`: trained {best}, base {base}, paired difference {difference}"


def _commands(address: str, merged: str = " --merged") -> list[str]:
    return [
        "```bash",
        f"mlflow artifacts download -u {address} -d adapter",
        "dopsd sample --adapter adapter      # watch an answer being denoised",
        "dopsd evaluate --adapter adapter    # score it on the validation split",
        f"dopsd export{merged} --adapter adapter --out merged    # a model for plain transformers",
        "```",
        "",
        "Run them in the project's folder: `params.yaml` names the base and the task.",
    ]


def _data(run: RunSettings, split_that_selected: str, origin: CardOrigin) -> list[str]:
    lines = []
    for split in sorted(origin.data, key=[*USES, *origin.data].index):
        path = DATA / run.key.task / f"{split}.jsonl"
        problems = (
            len(path.read_text(encoding="utf-8").splitlines())
            if path.is_file()
            else "unknown number of"
        )
        use = USES.get(split, split) + (" and selection" if split == split_that_selected else "")
        lines.append(f"* {split}: {problems} problems, for {use}; DVC md5 `{origin.data[split]}`")
    return lines or ["DVC has no record of the data."]


def _training(run: RunSettings, origin: CardOrigin) -> list[str]:
    train = run.train
    rows = {
        "method": f"`{method_name(run)}`, {about_method(run)}",
        "updates": train.updates,
        "prompts per collect": train.prompts_per_collect,
        "learning rate": train.learning_rate,
        "LoRA": _flat(train.lora.model_dump()) if train.adapter else "none: all weights trained",
        **({"started from": f"`{train.start_from}`"} if train.start_from else {}),
        "answer length": f"{run.sampling.gen_length} tokens",
        "code": _code(origin.commit),
    }
    rows |= base_digests(run)
    return [f"* {name}: {value}" for name, value in rows.items()]


def _code(commit: str | None) -> str:
    """Return the git commit of the code, in words."""
    if commit is None:
        return "not recorded"
    changes = ", with changes that were not committed" if commit.endswith("+") else ""
    return f"git commit `{commit.removesuffix('+')}`{changes}"


def base_digests(run: RunSettings) -> dict[str, str]:
    """Return the digest of each weight file of the base, as Markdown."""
    weights = [path for path in base_files(run.model) if path.suffix == WEIGHTS]
    return {f"base, {path.name}": f"sha256 `{sha256(path)}`" for path in weights}


def _limits(run: RunSettings, selected: dict[str, Any], is_merged: bool) -> list[str]:
    how = (
        "* The test set itself selected this checkpoint: its test accuracy is too high."
        if selected["split"] == "test"
        else f"* The checkpoint was selected on {selected['split']}"
        f" ({percent(selected['accuracy'])}% of {selected['n']} problems). That figure is the"
        " highest of several, so the test accuracy is the one to quote."
    )
    return [
        how,
        "* The result is of one seed. Its intervals count problems, not other seeds.",
        f"* The model was trained and tested on `{run.key.task}` alone. Other prompts, other"
        " lengths of answers and the safety of answers are untested.",
        f"* {'' if is_merged else 'It fits only the base above. '}Licences of base and data apply.",
    ]


def _settings(run: RunSettings) -> list[str]:
    settings = {name: vars(run)[name].model_dump(mode="json") for name in SECTIONS}
    settings |= {"method": {run.key.method: run.algorithm.model_dump(mode="json")}}
    return ["```yaml", yaml.safe_dump(settings, sort_keys=False).strip(), "```"]


def _flat(settings: dict[str, Any]) -> str:
    words = {key: value for key, value in settings.items() if isinstance(value, list)}
    texts = settings | {key: " and ".join(value) for key, value in words.items()}
    return ", ".join(
        f"{key} {text}" for key, text in texts.items() if text not in (None, "", False)
    )


@dataclass(frozen=True)
class CardOrigin:
    """Where a run's results came from, and where its checkpoint is."""

    data: dict[str, str]  # DVC's md5 of each split
    commit: str | None  # git commit of the code, with `+` if files differed; None: not recorded
    address: str  # of the checkpoint, such as models:/m-1234


def trained_commit(key: RunKey) -> str | None:
    """Return the commit that trained a run, `+` if files differed; None if none is known."""
    fingerprint = read_json(key.folder / "train.json", "dopsd train")["fingerprint"]
    parts = object_in(WORK / fingerprint / MACHINE).get("parts", [])
    recorded: str | None = parts[-1].get("commit") if parts else None
    return recorded


def data_digests(task: str) -> dict[str, str]:
    """Return DVC's md5 of each split of a task, from dvc.lock."""
    lock = Path("dvc.lock")
    stages = (
        (yaml.safe_load(lock.read_text(encoding="utf-8")) or {}).get("stages", {})
        if lock.is_file()
        else {}
    )
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


def about(package: str) -> str:
    """Return what a task or an algorithm is: the first line of its package, without full stop."""
    return first_line(package).rstrip(".") or package.rpartition(".")[2]


def variant(run: RunSettings) -> str:
    """Return the name of the method that the run's settings are; empty: the algorithm's."""
    return variant_of(run.kind, run.algorithm)


def method_name(run: RunSettings) -> str:
    """Return the name of the run's method: `espo (GDSD)`."""
    return label(run.key.method, variant(run))


def about_method(run: RunSettings) -> str:
    """Return what the run's method is, without full stop."""
    name = variant(run)
    return how(run.kind, name).rstrip(".") if name else about(ALGORITHMS.packages[run.kind])
