"""The results that a run with other settings replaces: kept one step back, and brought back.

DVC's cache has the files of every finished stage, and dvc.lock says which. So its entries are
enough: `keep` saves them when training begins, and `restore` puts them back.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from dopsd.config import params_file
from dopsd.config.loading import read_yaml
from dopsd.config.profiles import HARDWARE, PRESET
from dopsd.core.errors import Code
from dopsd.core.files import WORK, read_json, write_atomically
from dopsd.core.paths import RunKey
from dopsd.core.statistics import percent
from dopsd.pipeline.dvc.command import LOCKFILE, ask_dvc
from dopsd.pipeline.recipes import PARAMS

PREVIOUS = WORK / "previous"
STAGES = ("train", "evaluate", "select", "test")  # in their order
Entries = dict[str, dict[str, Any]]  # of dvc.lock, by the name of a stage


def previous_folder(key: RunKey) -> Path:
    """Return where the previous results of a run are kept."""
    return PREVIOUS / key.task / key.method / str(key.seed)


def is_kept(key: RunKey) -> bool:
    """Return whether a run has previous results that are not today's."""
    name, path = f"train@{key.stage}", previous_folder(key) / LOCKFILE
    today = _entries(key).get(name, {})
    return path.is_file() and read_yaml(path)[name]["outs"] != today.get("outs")


def keep(key: RunKey) -> str:
    """Keep the results of a finished run that changed, and return a line that says so, or ''."""
    entries = _entries(key)
    if not entries or not _differences(entries[f"train@{key.stage}"]["params"]):
        return ""
    _write(key, entries, _scores(key).read_text(encoding="utf-8"))
    return (
        f"replaces {key}, {_accuracy(key)}% on test; `dopsd summary --previous` still shows it, and"
        f" `dopsd restore {key}` brings it back"
    )


def restore(key: RunKey) -> list[str]:
    """Put the previous results of a run, and their settings, in place of today's.

    Today's are then the previous ones.
    """
    if not is_kept(key):
        raise Code.NO_RESULTS.error(f"restore: {key}: there are no previous results")
    from dopsd.pipeline.dvc.writer_lock import WriterLock  # needs the extra `pipeline`

    with WriterLock("restore"):
        saved, today = read_yaml(previous_folder(key) / LOCKFILE), _entries(key)
        before = _scores(key).read_text(encoding="utf-8") if today else ""
        lock, old = read_yaml(LOCKFILE), LOCKFILE.read_text(encoding="utf-8")
        lock["stages"] |= saved
        write_atomically(LOCKFILE, yaml.safe_dump(lock, sort_keys=False))
        made = ask_dvc("checkout", "--force", *saved)
        if made.returncode:
            write_atomically(LOCKFILE, old)
            ask_dvc("checkout", "--force", *saved)
            raise Code.NO_RESULTS.error(
                f"restore: {key}: DVC's cache lacks these results: {made.stderr.strip()}; train"
                " again with the settings that `dopsd summary --previous` prints"
            )
        _remove_foreign_checkpoints(key)
        sections = [entry["params"].get(str(PARAMS), {}) for entry in saved.values()]
        changes = [f"{name}={json.dumps(s[name])}" for s in sections for name in s]
        changed = params_file.params(None, PRESET, HARDWARE, changes, PARAMS)
        if today:
            _write(key, today, before)
    return [f"{key}: {_accuracy(key)}% on test again", *changed]


def changed_settings(key: RunKey) -> list[str]:
    """Return the settings of the previous results that params.yaml has otherwise now."""
    entry = read_yaml(previous_folder(key) / LOCKFILE)[f"train@{key.stage}"]
    return _differences({str(PARAMS): entry["params"][str(PARAMS)]})


def _entries(key: RunKey) -> Entries:
    """Return dvc.lock's entries of a run that is tested, if they are of one run; else none."""
    if not key.is_tested or not LOCKFILE.is_file():
        return {}
    stages = read_yaml(LOCKFILE).get("stages", {})
    entries = {name: stages.get(name) for name in (f"{stage}@{key.stage}" for stage in STAGES)}
    if not all(entries.values()) or not _fit(entries, entries):
        return {}
    report = {name: stages[name] for name in [f"report@{key.stage}"] if name in stages}
    return entries | (report if _fit(report, entries) else {})


def _remove_foreign_checkpoints(key: RunKey) -> None:
    """Remove the checkpoints of other results, which DVC leaves where they are."""
    from dopsd.models.adapter_files import run_checkpoints

    folder = key.folder / "train"
    for path in {*folder.glob("step-*")}.difference(run_checkpoints(folder)):
        shutil.rmtree(path)


def _fit(users: Entries, makers: Entries) -> bool:
    """Return whether stages have used what the others have made."""
    made = {out["path"]: out["md5"] for entry in makers.values() for out in entry["outs"]}
    used = [(dep["path"], dep["md5"]) for entry in users.values() for dep in entry["deps"]]
    return all(made.get(path, md5) == md5 for path, md5 in used)


def _differences(params: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each value of these files, by dotted names, that is another one now."""
    lines = []
    for file, values in params.items():
        now = read_yaml(Path(file))
        for name, value in values.items():
            found: Any = now
            for part in name.split("."):
                found = found.get(part) if isinstance(found, dict) else None
            lines += params_file.differences({name: found}, {name: value})
    return lines


def _write(key: RunKey, entries: Entries, scores: str) -> None:
    previous_folder(key).mkdir(parents=True, exist_ok=True)
    write_atomically(previous_folder(key) / "paired.json", scores)
    write_atomically(previous_folder(key) / LOCKFILE, yaml.safe_dump(entries, sort_keys=False))


def _scores(key: RunKey) -> Path:
    return key.folder / "test" / "paired.json"


def _accuracy(key: RunKey) -> str:
    tested = read_json(_scores(key), "dopsd test")
    return percent(tested["protocols"][tested["selected"]["protocol"]]["best"]["accuracy"])
