"""`dopsd adapt --task countdown`: turn an autoregressive model into the base.

The source is converted, a run of `sft` trains all weights, and the result is written to
`model.path` with a record of what it was made from.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.core.errors import Code, DopsdError
from dopsd.core.files import digest, object_in, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import ADAPTED
from dopsd.core.progress import log
from dopsd.pipeline.checkpoints.export import write_merged
from dopsd.tasks.registry import load_task
from dopsd.training.checkpoint import folders
from dopsd.training.pretraining.adapt import require_converted
from dopsd.training.run_identity import code_of, scratch_folder
from dopsd.training.run_settings import ADAPTING

if TYPE_CHECKING:
    from dopsd.config.params import Params
    from dopsd.training.run_settings import RunSettings


def begin(params: Params, task: str) -> RunSettings | None:
    """Convert the source if need be.

    Returns:
        The run that is to be trained; None if the base is there and is its result.

    Raises:
        DopsdError: if the task is not adapted to, the source cannot be read, or another folder
            stands where the base is to be written.
    """
    if task not in params.adapt.tasks:
        raise DopsdError(
            f"adapt: adapt.tasks {params.adapt.tasks} does not name {task}; set"
            f" adapt.tasks=[{task}], adapt.source and, for the result, model.path",
            code=Code.CONTRADICTION,
        )
    require_own(params)
    load_task(task, params.data.tasks[task]).load("train")  # before the conversion takes minutes
    require_converted(params.adapt)
    run, out = params.run(task, ADAPTING, params.adapt.seed), Path(params.model.path)
    if is_made(run, params.adapt.dtype, out):
        log(f"adapt: {out} is up to date")
        return None
    if out.exists():
        log(f"adapt: settings, data, code or files are not those of {out}: making it anew")
    return run


def require_own(params: Params) -> None:
    """Refuse to write the base where another model is.

    Raises:
        DopsdError: if the folder is there without the record of an adaptation.
    """
    out = Path(params.model.path)
    if out.exists() and not (out / ADAPTED).is_file():
        raise DopsdError(
            f"model.path: {out}: is there, and not made by `dopsd adapt`; name another folder for"
            " the adapted model, or remove this one",
            code=Code.OUTPUT_EXISTS,
        )


def finish(params: Params, run: RunSettings) -> None:
    """Write the trained model to `model.path`, in place of an earlier one."""
    out = Path(params.model.path)
    new = out.with_name(f".{out.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    write_merged(run.model, folders(scratch_folder(run))[-1], new, params.adapt.dtype)
    files = {path.name: sha256(path) for path in sorted(new.iterdir())}
    write_json(new / ADAPTED, recipe_of(run, params.adapt.dtype) | {"files": files})
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)
    log(f"adapt: {out} is the base")


def recipe_of(run: RunSettings, dtype: str) -> dict[str, Any]:
    """Return what decides the bytes of an adapted base."""
    code = digest(code_of(run.key.task, run.kind))
    return {"run": scratch_folder(run).name, "code": code, "dtype": dtype}


def is_made(run: RunSettings, dtype: str, out: Path) -> bool:
    """Return whether a folder is what this run makes, file by file."""
    record = object_in(out / ADAPTED)
    if any(record.get(key) != value for key, value in recipe_of(run, dtype).items()):
        return False
    files: dict[str, str] = record.get("files", {})
    paths = {out / name: found for name, found in files.items()}
    return bool(paths) and all(p.is_file() and sha256(p) == found for p, found in paths.items())
