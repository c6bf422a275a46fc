"""`dopsd adapt --task countdown`: turn an autoregressive model into the base.

The source is converted, a run of `sft` trains all weights, perhaps one of `d_opsd` continues it
with the source as teacher, and the result is written to `model.path` with a record of what it was
made from.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.algorithms.common.chats import chat_of, check_chats
from dopsd.algorithms.common.solutions import taught_solution
from dopsd.core.errors import Code
from dopsd.core.files import digest, object_in, write_json
from dopsd.core.fingerprint import sha256
from dopsd.core.paths import ADAPTED, RunKey
from dopsd.core.progress import log
from dopsd.models.a2d.convert import converted_parts, read_source
from dopsd.models.text import PlainTokens
from dopsd.models.tokenizer import template_notes
from dopsd.pipeline.checkpoints.export import write_merged
from dopsd.tasks.common.sources import each, read_rows
from dopsd.tasks.common.storage import data_files
from dopsd.tasks.registry import load_task
from dopsd.training.checkpoint import drop_state, folders, update_of
from dopsd.training.pretraining.adapt import (
    converted_folder,
    form_of,
    last_checkpoint,
    require_converted,
)
from dopsd.training.resume import is_done
from dopsd.training.run_identity import code_of, identify, settings_of
from dopsd.training.run_settings import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from dopsd.config.params import Params


def begin(params: Params, task: str) -> list[RunKey]:
    """Convert the source if need be.

    Returns:
        The runs that are to be trained, in order; none if the base is there and is their result.

    Raises:
        DopsdError: if the task is not adapted to, the source cannot be read, or another folder
            stands where the base is to be written.
    """
    if task not in params.adapt.tasks:
        raise Code.CONTRADICTION.error(
            f"adapt: adapt.tasks {params.adapt.tasks} does not name {task}; set"
            f" adapt.tasks=[{task}], adapt.source and, for the result, model.path"
        )
    require_own(params)
    source = read_source(Path(params.adapt.source or ""))  # its path before the data are made
    problems = load_task(task, params.data.tasks[task]).load("train")
    runs = [params.run(task, name, params.adapt.seed) for name in params.adapt.phases]
    if faults := [f for run in runs if (f := run.reason_against_problems(len(problems)))]:
        raise Code.MISFIT.error(faults[0])  # before the conversion takes minutes
    _refuse_misfits(params, source.raw["max_position_embeddings"])
    require_converted(params.adapt)
    out = Path(params.model.path)
    if is_made(params, task):
        _tidy(params, task)
        log(f"adapt: {out} is up to date")
        return []
    if out.exists():
        log(f"adapt: {out} is of other {_other_settings(params, task)}: making it anew")
    return [run.key for run in runs]


def require_own(params: Params) -> None:
    """Refuse to write the base where another model is, or one that was changed by hand."""
    out = Path(params.model.path)
    files: dict[str, str] = object_in(out / ADAPTED).get("files", {})
    added = sorted({path.name for path in out.glob("*")} - files.keys() - {ADAPTED})
    edited = [n for n, old in files.items() if not (out / n).is_file() or sha256(out / n) != old]
    if files and (added or edited):
        raise Code.OUTPUT_EXISTS.error(
            f"model.path: {out}: {(added + edited)[0]} is not as `dopsd adapt` wrote it; to use it"
            " so, set adapt.tasks=[]; else name another folder, or remove this one to have it made"
            " again"
        )
    if out.exists() and not (out / ADAPTED).is_file():
        raise Code.OUTPUT_EXISTS.error(
            f"model.path: {out}: is there, and not made by `dopsd adapt`; name another folder for"
            " the adapted model, or remove this one"
        )


def check(params: Params, task: str) -> list[str]:
    """Refuse what `begin` would refuse, without converting; return what a user may not expect.

    Raises:
        DopsdError: if the source cannot be adapted, or another folder stands where the base is to
            be written.
    """
    require_own(params)
    config, tokenizer = converted_parts(Path(params.adapt.source or ""), form_of(params.adapt))
    place, learn, responses = params.adapt.source, params.adapt.learn, list[str]()
    notes = [f"adapt.source: {place}: {note}" for note in template_notes(tokenizer, config)]
    if learn.traces and learn.traces.is_file:
        plain = PlainTokens(tokenizer, config)
        responses, said = check_chats(learn.traces, "adapt.learn.traces", plain)
        notes += said
    _refuse_misfits(params, config.max_sequence_length, responses)
    notes += _too_long(params, tokenizer, responses, "responses", "left out")
    out = Path(params.model.path)
    is_prepared = data_files(task, "train")[0].is_file()
    if out.exists() and not (is_prepared and converted_folder(params.adapt).is_dir()):
        first = f"adapt` has converted {params.adapt.source}" if is_prepared else "prepare` has run"
        notes.append(
            f"whether {out} is of these settings is known when `dopsd {first}; if not, it is made"
            " anew"
        )
    elif out.exists():
        other = _other_settings(params, task)
        anew = f"other {other}: `dopsd adapt` makes it anew"
        notes.append(
            f"{out} is of {anew if other else 'these settings and of the problems on disk'}"
        )
    if params.adapt.learn.traces or not is_prepared:
        return notes
    made = load_task(task, params.data.tasks[task])
    texts = [taught_solution(made, problem, "sft") for problem in made.load("train")]
    return notes + _too_long(params, tokenizer, texts, "solutions", "cut, with their answers")


def _too_long(
    params: Params, tokenizer: Callable[..., Any], texts: list[str], what: str, loss: str
) -> list[str]:
    """Return a note of how many texts have more tokens than an answer that is learnt."""
    if not texts:
        return []
    length = params.adapt.learn.length or params.sampling.gen_length
    sizes = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    if not (cut := sum(size > length for size in sizes)):
        return []
    end = ", and nothing is left to learn" if (cut, loss) == (len(sizes), "left out") else ""
    return [
        f"adapt.learn: {cut} of {len(sizes)} {what} have more than {length} tokens"
        f" (sampling.gen_length, or adapt.learn.length) and are {loss}{end}; the longest has"
        f" {max(sizes)}"
    ]


def _refuse_misfits(params: Params, most: int, responses: list[str] | None = None) -> None:
    """Refuse a file of chats without rows or with wrong ones, and answers without a prompt."""
    learn = params.adapt.learn
    source = learn.traces if learn.traces and learn.traces.is_file else None
    if source and responses is None:
        rows = each(read_rows(source, "adapt.learn.traces"), chat_of)
        responses = [response for _, (_, response) in rows]
    if source and not responses:
        text = f"adapt.learn.traces: {source.path}: has no rows"
        raise Code.TOO_FEW_PROBLEMS.error(text)
    if (length := learn.length or params.sampling.gen_length) >= most:
        key = "adapt.learn.length" if learn.length else "sampling.gen_length"
        raise Code.MISFIT.error(
            f"{key}: {length} tokens leave no room for a prompt in the model's {most}; lower it"
        )


def announce(params: Params, key: RunKey) -> None:
    """Say which phase begins, or that it has ended before."""
    phases, run = params.adapt.phases, params.run(*key.parts)
    state = (
        "trained before" if is_done(identify(run)) else f"{run.train.updates} updates of {run.kind}"
    )
    name = PHASES[key.method]
    log(f"adapt: phase {phases.index(key.method) + 1} of {len(phases)}, {name}: {state}")


def finish(params: Params, task: str) -> None:
    """Write the trained model to `model.path`, in place of an earlier one."""
    run = params.run(task, params.adapt.phases[-1], params.adapt.seed)
    out = Path(params.model.path)
    new = out.with_name(f".{out.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    last = folders(identify(run).folder)[-1]  # a phase may end early
    write_merged(run.model, last, new, params.adapt.dtype)
    files = {path.name: sha256(path) for path in sorted(new.iterdir())}
    write_json(new / ADAPTED, recipe_of(params, task) | {"files": files})
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    new.rename(out)
    _tidy(params, task)
    log(f"adapt: {out} is the base, after {update_of(last)} updates of {run.kind}")


def _tidy(params: Params, task: str) -> None:
    """Remove the base that was replaced, and optimizer states that only a longer run would use."""
    out = Path(params.model.path)
    shutil.rmtree(out.with_name(f".{out.name}.old"), ignore_errors=True)
    for name in params.adapt.phases:
        run = params.run(task, name, params.adapt.seed)
        if not last_checkpoint(run).is_dir():
            break  # trained elsewhere, or ended early: continued again, it ends where it did
        if "updates" in settings_of(run)[0]["train"]:  # of this length alone
            drop_state(identify(run).folder)


def recipe_of(params: Params, task: str) -> dict[str, Any]:
    """Return what decides the bytes of an adapted base, also where its runs are gone."""
    first, *later = [params.run(task, name, params.adapt.seed) for name in params.adapt.phases]
    one = identify(first)
    recipe = {"run": one.folder.name, "code": digest(one.code)}
    later_ones = [(settings_of(run), code_of(task, run.kind)) for run in later]
    recipe |= {"distill": digest(later_ones)} if later else {}
    return recipe | {"dtype": params.adapt.dtype}


def _other_settings(params: Params, task: str) -> str:
    """Return in words what of a base's record is not that of the settings; empty if nothing is."""
    record, recipe = object_in(Path(params.model.path) / ADAPTED), recipe_of(params, task)
    names = {"run": "settings or data", "distill": "adapt.distill"}
    keys = sorted(recipe.keys() | record.keys() - {"files"})
    return " and ".join(names.get(k, k) for k in keys if recipe.get(k) != record.get(k))


def is_made(params: Params, task: str) -> bool:
    """Return whether `model.path` is what these settings make; `require_own` checks its files."""
    record = object_in(Path(params.model.path) / ADAPTED)
    if not record.get("files") or not all(map(Path.is_file, data_files(task, "train"))):
        return False
    return record == recipe_of(params, task) | {"files": record["files"]}
