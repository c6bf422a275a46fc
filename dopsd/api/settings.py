"""Settings of a run, and its task, from a profile or a params.yaml."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dopsd.algorithms.common.config import BETWEEN
from dopsd.algorithms.registry import unknown_method
from dopsd.config.loading import checked, read_yaml
from dopsd.config.params_file import with_changes
from dopsd.config.profiles import EMBEDDED, listed, names, resolve
from dopsd.core.errors import Code, unknown
from dopsd.tasks.common.task import Task
from dopsd.tasks.registry import load_task as load_registered_task
from dopsd.training.run_settings import RunSettings


def run_settings(
    source: str | Path = EMBEDDED,
    changes: Mapping[str, object] | None = None,
    task: str | None = None,
    method: str | None = None,
    seed: int | None = None,
) -> RunSettings:
    """Return the settings of one training run.

    Args:
        source: a profile (`embedded`, `llada-8b-gsm8k`, ...), or the path of a params.yaml.
        changes: values by dotted key of params.yaml, put over those of the source.
        task: name of the task; None: the first of `matrix.tasks`.
        method: name of the algorithm or variant; None: the first of `matrix.methods`.
        seed: seed of the run; None: the first of `matrix.seeds`.

    Raises:
        DopsdError: if a key, a value or a name is unknown; one line for each.

    Example:
        >>> import dopsd
        >>> run = dopsd.run_settings("embedded", {"train.updates": 4})
        >>> run.train.updates, run.sampling.gen_length, str(run.key)
        (4, 40, 'sudoku/d_opsd/0')
    """
    pairs = [f"{key}={_json(key, value)}" for key, value in (changes or {}).items()]
    where = f"{source} with changes" if changes else source
    params = checked(with_changes(_read(source), pairs), where)
    matrix, tasks = params.matrix, params.tasks
    if task is not None and task not in tasks:
        raise Code.UNKNOWN_NAME.error(unknown(f"task {task}", tasks))
    if method is not None and method not in params.methods:
        methods = [name for name in params.methods if BETWEEN not in name]
        raise Code.UNKNOWN_NAME.error(unknown_method("method", method, methods))
    if seed is not None and (not isinstance(seed, int) or seed < 0):
        raise Code.ARGUMENT.error(f"seed {seed!r}: expected a whole number of 0 or more")
    first_seed = matrix.seeds[0] if seed is None else seed
    return params.run(task or matrix.tasks[0], method or matrix.methods[0], first_seed)


def _json(key: str, value: object) -> str:
    try:
        return json.dumps(str(value) if isinstance(value, Path) else value)
    except (TypeError, ValueError) as error:
        raise Code.CHANGE.error(f"{key}: expected a value that YAML can hold ({error})") from error


def _read(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise Code.NO_SETTINGS_FILE.error(
                f"{path}: no such file; name a params.yaml or a profile"
            )
        return read_yaml(path)
    if str(source) not in names():
        raise Code.PROFILE.error(
            unknown(f"settings {source}", names(), f"{listed()}, or the path of a .yaml")
        )
    return resolve(str(source))


def load_task(run: RunSettings) -> Task:
    """Return the task of a run.

    Args:
        run: settings of the run; section `data.<task>` decides.

    Returns:
        A task: `build()` makes the problems of all splits, `ask(text)` makes a problem of a text,
        `verify(problem, text)` scores an answer.

    Example:
        >>> import dopsd
        >>> task = dopsd.load_task(dopsd.run_settings("embedded"))
        >>> problem = task.ask("0410020420430020")
        >>> task.verify(problem, f"<answer>{problem.answer}</answer>").score
        1.0
    """
    return load_registered_task(run.key.task, run.data)
