"""Write the report of a run as one HTML file: reports/<task>-<method>-<seed>.html.

It is no output of DVC, because it shows seconds and devices. `dopsd report`, `dopsd summary`,
`dopsd compare` and `dopsd publish` write it where it is missing or its inputs have changed.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from dopsd.algorithms.registry import ALGORITHMS, how
from dopsd.analysis.html_report.facts import Description, RunFacts, Settings
from dopsd.analysis.html_report.page import digest_of, is_fresh, write_page
from dopsd.analysis.html_report.run_page import run_page
from dopsd.analysis.results import Finished
from dopsd.config.consistency import task_files
from dopsd.config.params import Params
from dopsd.config.params_file import flat
from dopsd.core.errors import DopsdError
from dopsd.core.extras import advice
from dopsd.core.files import WORK, object_in, read_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import RunKey
from dopsd.core.progress import log
from dopsd.core.registry import first_line
from dopsd.core.tables import read_table
from dopsd.evaluation.curve import curve_of
from dopsd.models.adapter_files import checkpoint_names
from dopsd.models.checkpoint_files import base_files, parameters
from dopsd.pipeline.results.ablate import variant_of_run
from dopsd.pipeline.results.repeat import (
    ABSENT,
    nearest_profile,
    repeat_commands,
    repeat_text,
    rows,
)
from dopsd.tasks.common.storage import DATA
from dopsd.tasks.registry import is_graded, package_of
from dopsd.tracking.glossary import TRAINING
from dopsd.training.machine import MACHINE
from dopsd.training.run_identity import identify, read_identity, settings_of
from dopsd.training.run_settings import RunSettings

SPLITS = ("train", "validation", "test")
BASE_KEYS = ("pretrain.", "data.")  # what an embedded base is made from
UNDESCRIBED = "not described in the method's `config.py`"
# of results that are damaged, or of a release that wrote other ones
UNREADABLE = (DopsdError, OSError, LookupError, TypeError, ValueError, TemplateError)
SHOWN_KEYS = 8  # differing keys in a warning


def refresh(params: Params, keys: Sequence[RunKey], command: str) -> dict[str, Path]:
    """Write the reports that are missing or out of date.

    A report that cannot be written is logged, since the command has other results to show.
    """
    pages: dict[str, Path] = {}
    if find_spec("bokeh") is None:
        log(f"{command}: no reports: bokeh is not installed; {advice('bokeh')}")
        return pages
    for key in keys:
        try:
            pages[str(key)] = _write(params, key)
        except UNREADABLE as error:
            is_plain = isinstance(error, DopsdError | OSError)
            reason = error if is_plain else f"its results cannot be read ({error!r})"
            log(f"{command}: no report of {key}: {reason}")
    return pages


def _write(params: Params, key: RunKey) -> Path:
    """Write a run's report unless its inputs are those of the report on disk; return its path."""
    facts = gather(params, key)
    digest = digest_of(asdict(facts))
    if not is_fresh(key.page, digest):
        write_page(key.page, run_page(facts, digest))
    return key.page


def gather(params: Params, key: RunKey) -> RunFacts:
    """Return all that a run's report shows."""
    run, folder = params.run(*key.parts), key.folder
    totals = read_json(folder / "train.json", "dopsd train")
    scratch = WORK / totals["fingerprint"]
    machine = object_in(scratch / MACHINE).get("parts", [])
    training = read_table(folder / "train.csv")
    return RunFacts(
        key=key,
        description=_description(run, totals),
        settings=_settings(params, run, totals, machine),
        tested=read_json(folder / "test" / "paired.json", "dopsd test"),
        curve=curve_of(folder),
        training=training,
        costs=Finished(*key.parts).costs(),
        totals=totals,
        trajectory=read_json(folder / "test" / "trajectory.json", "dopsd test"),
        answers=object_in(folder / "test" / "answers.json").get("answers"),
        machine=machine,
        digests=_digests(key, totals, read_identity(scratch)),
        metrics=_explained(run.kind, training),
    )


def _explained(kind: str, training: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return unit and meaning of every metric in the rows; a plug-in may describe none."""
    metrics = TRAINING | ALGORITHMS.metrics(kind)
    described = {name: (m.unit, m.plain or m.meaning) for name, m in metrics.items()}
    logged = sorted({name for row in training for name in row} - described.keys())
    return described | dict.fromkeys(logged, ("", UNDESCRIBED))


def _description(run: RunSettings, totals: dict[str, Any]) -> Description:
    has_partial_scores, key = is_graded(run.key.task, run.data), run.key
    variant = variant_of_run(run, totals["fingerprint"])
    best = key.folder / "best"
    files = {split: DATA / key.task / f"{split}.jsonl" for split in SPLITS}
    return Description(
        task=first_line(package_of(key.task)),
        is_graded=has_partial_scores,
        problems={
            split: sum(1 for _ in path.open(encoding="utf-8"))
            for split, path in files.items()
            if path.is_file()
        },
        method=how(run.kind, variant),
        base=run.model.path,
        parameters=parameters(base_files(run.model)),
        trained=parameters(best / name for name in checkpoint_names(best)),
        solutions=_shared_solutions(files["test"]) if has_partial_scores else 0,
        start=totals.get("started_from", ""),
        variant=variant,
    )


def _shared_solutions(path: Path) -> int:
    """Return the number of different solutions in a split's file; 0 if no problems share one."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    number = len({str(json.loads(line)["answer"]) for line in lines})
    return number if number < len(lines) else 0


def _settings(
    params: Params, run: RunSettings, totals: dict[str, Any], machine: list[dict[str, Any]]
) -> Settings:
    record = read_identity(WORK / totals["fingerprint"])
    is_same = _has_settings_of(run, totals)
    values = _with_ends(record["settings"], record["ends"]) if record else {}
    values = values or (_with_ends(*settings_of(run)) if is_same else {})
    profile, changes = nearest_profile(params, run.key) if is_same else ("", [])
    commit = machine[-1]["commit"] if machine else None
    clean_commit = commit if commit and not commit.endswith("+") else None
    return Settings(
        values={name: repeat_text(value) for name, value in flat(values).items()},
        planned_updates=values.get("train", {}).get("updates"),
        profile=profile,
        differences=rows(changes),
        commands=repeat_commands(run.key, profile, changes, clean_commit) if is_same else [],
        files=_files(params, run.key.task) if is_same else [],
        is_of_other_base=any(name.startswith(BASE_KEYS) for name, *_ in changes),
        stale=staleness(run, totals),
    )


def _files(params: Params, task: str) -> list[tuple[str, str, str]]:
    """Return key, path and SHA-256 of the local files that the task's section names."""
    files = {key: Path(name) for key, name in task_files(params, task).items()}
    return [(key, str(path), sha256(path)) for key, path in files.items() if path.is_file()]


def _has_settings_of(run: RunSettings, totals: dict[str, Any]) -> bool:
    """Return whether params.yaml and the data are those of a finished run."""
    with suppress(DopsdError):  # without the data nobody can tell
        return identify(run).has_made(totals)
    return False


def _with_ends(decisive: dict[str, Any], ends: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with those that decide its end in section train."""
    return {**decisive, "train": {**decisive["train"], **ends}}


def staleness(run: RunSettings, totals: dict[str, Any]) -> str:
    """Return why a finished run is not that of params.yaml and this code; empty if it is."""
    try:
        return "" if identify(run).is_current(totals) else _difference(run, totals)
    except DopsdError as error:  # its data is not here
        return f"It cannot be checked: {error}."


def _difference(run: RunSettings, totals: dict[str, Any]) -> str:
    if identify(run).has_made(totals):
        return "Other code trained this run. `dopsd repro` asks what to do with it."
    record = read_identity(WORK / totals["fingerprint"])
    before = flat(_with_ends(record["settings"], record["ends"])) if record else {}
    after = flat(_with_ends(*settings_of(run)))
    keys = sorted(before.keys() | after.keys()) if record else []
    names = [key for key in keys if before.get(key, ABSENT) != after.get(key, ABSENT)]
    texts = [
        f"`{name}` {repeat_text(before.get(name, ABSENT))} in this run,"
        f" {repeat_text(after.get(name, ABSENT))} now"
        for name in names[:SHOWN_KEYS]
    ]
    more = [f"and {len(names) - SHOWN_KEYS} more"] if len(names) > SHOWN_KEYS else []
    differ = (
        f"settings than this run: {', '.join([*texts, *more])}" if names else "settings or data"
    )
    return f"params.yaml now has other {differ}. `dopsd repro` trains again."


def _digests(key: RunKey, totals: dict[str, Any], record: dict[str, Any]) -> dict[str, str]:
    """Return the digests of code, data and weights, by name."""
    digests = {"training code": totals["code"]}
    if totals["first_code"] != totals["code"]:
        digests["training code of the first update"] = totals["first_code"]
    digests |= {f"{name} (SHA-256)": value for name, value in record.get("inputs", {}).items()}
    selection = read_json(key.folder / "best" / "select.json", "dopsd select")
    return digests | {
        "weights of the selected checkpoint (SHA-256)": selection["digest"],
        "settings and inputs of training": totals["fingerprint"],
    }
