"""Tasks: one for each DVC stage, and one for each checkpoint that is evaluated beforehand."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE, CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

from dopsd.config.params_file import way_back
from dopsd.core.environment import RESTORE_ONLY
from dopsd.core.errors import Code, DopsdError
from dopsd.core.paths import MLFLOW_PAGES, RunKey
from dopsd.pipeline.dvc.command import ask_dvc, remote_problem
from dopsd.pipeline.dvc.disk_room import require_room
from dopsd.pipeline.dvc.writer_lock import WriterLock
from dopsd.pipeline.run import request as run_request
from dopsd.pipeline.run.request import RunRequest
from dopsd.tracking.client import TRAINING_MODE
from dopsd.training.pretraining.origin import allowance
from flows.artifacts import SERVER_ERRORS, ProgressBar, show_checkpoints, show_result
from flows.checkpoint_evals import CheckpointEvalJob
from flows.running import DOPSD, DVC, CommandFailed, run

is_sharing = threading.Event()  # set while a flow shares its results with other machines


def may_help(_task: object, _run: TaskRun, state: State[Any]) -> bool:
    """Tell whether a retry may help: after a kill or a network error, but not a wrong setting."""
    try:
        state.result()
    except CommandFailed as error:
        return not error.is_mistake
    except Exception as error:
        return isinstance(error, SERVER_ERRORS)
    return False


Done = dict[str, Any] | State[Any]  # what a task returns


class TaskOptions(TypedDict):
    """Options of a task that Prefect retries."""

    retries: int
    retry_delay_seconds: list[float]
    retry_condition_fn: Callable[[Any, TaskRun, State[Any]], bool]
    cache_policy: CachePolicy


RETRIED: TaskOptions = {
    "retries": 2,
    "retry_delay_seconds": [10, 60],
    "retry_condition_fn": may_help,
    "cache_policy": NO_CACHE,
}


@task(name="settings", task_run_name="settings", cache_policy=NO_CACHE)
def write_settings(request: RunRequest, can_retrain: bool = False) -> dict[str, Any]:
    """Write params.yaml for this run; what is refused leaves the file as it is."""
    log = get_run_logger()
    try:
        # without the lock, a stage of another writer would read these settings as its own
        with WriterLock("settings", tell=log.warning):
            require_room(run_request.check(request, can_retrain or bool(allowance())))
            changed = run_request.write(request)
    except DopsdError as error:
        lines = [line.removeprefix("--set: ") for line in str(error).splitlines()]
        message = "refused, nothing was started: " + "; ".join(lines)
        raise DopsdError(message, code=error.code) from None
    for line in (changed or ["params.yaml: nothing to change"]) + way_back(run_request.PARAMS):
        log.info(line)
    return {"stage": "settings", "changed": len(changed)}


def _repro(stage: str, key: str, env: Mapping[str, str] | None = None) -> Done:
    """Run one DVC stage as the workspace's only writer; the stages before it must have run.

    Where machines share results, DVC looks for them in its remote first.

    Returns:
        The stage; the state Cached if DVC found it up to date.
    """
    bar = ProgressBar(stage.partition("@")[0], key)
    shared = ("--pull",) if is_sharing.is_set() else ()
    try:
        lines = run(stage, (*DOPSD, "repro", *shared, "-s", stage), get_run_logger(), env, bar)
    finally:
        bar.end()
    bar.finish()
    if not any(line.startswith("Running stage") for line in lines):
        return Completed(name="Cached", message="up to date")
    return {"stage": stage}


@task(name="prepare", task_run_name="prepare {name}", **RETRIED)
def prepare(name: str, after: object) -> Done:
    """Write the problems of every split (DVC stage `prepare`)."""
    return _repro(f"prepare@{name}", name)


@task(name="pretrain", task_run_name="pretrain {name}", **RETRIED)
def pretrain(name: str, env: Mapping[str, str], after: object) -> Done:
    """Train the embedded base (DVC stage `pretrain`)."""
    return _repro(f"pretrain@{name}", name, env)


@task(name="adapt", task_run_name="adapt {name}", **RETRIED)
def adapt(name: str, env: Mapping[str, str], after: object) -> Done:
    """Turn an autoregressive model into the base (DVC stage `adapt`)."""
    return _repro(f"adapt@{name}", name, env)


@task(name="base", task_run_name="base {name}", **RETRIED)
def evaluate_base(name: str, after: object) -> Done:
    """Score the base on the selection split (DVC stage `evaluate_base`)."""
    return _repro(f"evaluate_base@{name}", name)


@task(name="train", task_run_name="train {run_key}", **RETRIED)
def train(run_key: RunKey, env: Mapping[str, str], after: object) -> Done:
    """Post-train one run (DVC stage `train`); a retry continues from the last checkpoint."""
    return _repro(f"train@{run_key.stage}", run_key.key, env)


@task(name="evaluate", task_run_name="evaluate {update}", **RETRIED)
def evaluate_checkpoint(update: int, job: CheckpointEvalJob | None, after: object) -> State[Any]:
    """Score a checkpoint on the selection split into work/eval/, where the DVC stage finds it.

    Args:
        job: Process that evaluates it; None if its evaluation is up to date.
    """
    if job is None:
        return Completed(name="Cached", message="this checkpoint's evaluation is up to date")
    return Completed(message=f"update {update}: {job.wait(update)}")


def is_up_to_date(stage: str) -> bool:
    """Tell whether DVC has nothing to do for a stage."""
    process = ask_dvc("status", "--json", stage)
    return process.returncode == 0 and json.loads(process.stdout or "{}") == {}


@task(name="select", task_run_name="select {run_key}", **RETRIED)
def select(run_key: RunKey, after: object) -> Done:
    """Collect the evaluations (DVC stage `evaluate`) and take the best checkpoint (`select`)."""
    _repro(f"evaluate@{run_key.stage}", run_key.key)
    done = _repro(f"select@{run_key.stage}", run_key.key)
    show_checkpoints(run_key)
    return done


@task(name="test", task_run_name="test {run_key}", **RETRIED)
def test(run_key: RunKey, after: object) -> Done:
    """Score base and best checkpoint once on test, paired by problem (DVC stage `test`)."""
    return _repro(f"test@{run_key.stage}", run_key.key)


@task(name="point", task_run_name="{name} {run_key}", **RETRIED)
def point(name: str, run_key: RunKey, after: object) -> dict[str, str]:
    """Score base and best checkpoint at one point of `evaluate.curve`, where `test` finds it."""
    words = (*DOPSD, "test", *run_key.words, "--point", name)
    lines = run(f"point {name}", words, get_run_logger())
    return {"point": name, "found": next((x for x in lines if f"test: {name}: " in x), "")}


@task(name="report", task_run_name="report {run_key}", **RETRIED)
def report(run_key: RunKey, after: object) -> Done:
    """Draw the figures (DVC stage `report`), and show the result."""
    done = _repro(f"report@{run_key.stage}", run_key.key)
    show_result(run_key, {})
    return done


def require_remote() -> None:
    """Check that DVC has a default remote that shares results."""
    if why := remote_problem(Path.cwd()):
        raise Code.NOT_READY.error(why)


@task(name="share", task_run_name="share", **RETRIED)
def share(run_keys: list[RunKey], after: object) -> Done:
    """Send the runs' results to DVC's remote, with what DVC needs to find them (its run cache)."""
    names = [
        f"{stage}@{run_key.stage}"
        for run_key in run_keys
        for stage in ("train", "evaluate", "select", "test", "report")
    ]
    for task_name in dict.fromkeys(run_key.task for run_key in run_keys):
        names += [f"prepare@{task_name}", f"evaluate_base@{task_name}"]
    run(
        "share",
        (*DVC, "--wait-for-lock", "push", "--quiet", "--run-cache", *names),
        get_run_logger(),
    )
    return {"stage": "share", "runs": [str(run_key) for run_key in run_keys]}


@task(name="collect", task_run_name="collect {name}", **RETRIED)
def collect(run_keys: list[RunKey], name: str, after: object) -> Done:
    """Take the runs' results from DVC's remote; nothing is computed here."""
    tasks = dict.fromkeys(run_key.task for run_key in run_keys)
    names = [f"evaluate_base@{task_name}" for task_name in tasks]
    names += [f"report@{run_key.stage}" for run_key in run_keys]
    run("collect", (*DOPSD, "repro", "--pull", *names), get_run_logger(), {RESTORE_ONLY: "1"})
    for run_key in run_keys:
        show_checkpoints(run_key)
        show_result(run_key, {})
    return {"stage": "collect", "runs": [str(run_key) for run_key in run_keys]}


@task(name="publish", task_run_name="publish", **RETRIED)
def publish(run_keys: list[RunKey], after: object) -> dict[str, Any]:
    """Copy runs, checkpoints and champion to MLflow, and show the results with links."""
    run("publish", (*DOPSD, "publish"), get_run_logger())
    pages = json.loads(MLFLOW_PAGES.read_text(encoding="utf-8"))
    for run_key in run_keys:
        show_result(run_key, links(pages, run_key))
    return {"stage": "publish", "runs": [str(run_key) for run_key in run_keys]}


def links(pages: dict[str, Any], run_key: RunKey) -> dict[str, str]:
    """Return the pages of a run in the MLflow UI; none if no server shows the runs."""
    page, run_id = pages.get("page"), pages["runs"].get(str(run_key))
    if not page or not run_id:
        return {}
    experiment = f"{page}/#/experiments/{pages['experiment']}"
    run_page = f"{experiment}/runs/{run_id}?{TRAINING_MODE}"
    report_page = (
        f"{experiment}/runs/{run_id}/artifactPath/report/{run_key.page.name}?{TRAINING_MODE}"
    )
    return {
        "run": run_page,
        **({"report": report_page} if run_key.page.is_file() else {}),
        "comparison": pages["comparison"][run_key.task],
    }
