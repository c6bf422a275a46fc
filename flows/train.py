"""`prefect deployment run dopsd/train`: all stages from data to report and MLflow, as one flow.

DVC runs every stage in the worker's workspace, so `dvc repro` afterwards finds nothing to do.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from dopsd.config.loading import load_params
from dopsd.config.params import Params
from dopsd.core.errors import Code
from dopsd.core.fingerprint import checkout_digest
from dopsd.core.paths import RunKey
from dopsd.distributed import nodes
from dopsd.pipeline.run.request import RunRequest, check
from dopsd.training.pretraining.origin import ALLOWANCE
from dopsd.training.resume import OTHER_CODE
from flows import server, stages
from flows.artifacts import show_summary
from flows.checkpoint_evals import CheckpointEvalJob, Devices
from flows.machines import hold_back
from flows.running import begin, failed, stop_all
from flows.settings import Hardware, Method, OtherCode, Overrides, Preset, Profile, Task

LOOK_EVERY = 1.0  # seconds
THREADS = 64  # tasks at once; their processes wait for a device


@flow(
    name="dopsd",
    task_runner=ThreadPoolTaskRunner(max_workers=THREADS),  # type: ignore[arg-type]  # invariant in its futures
    on_failure=[hold_back],
)
def train(
    profile: Profile = "embedded",
    preset: Preset = "reference",
    hardware: Hardware = "1x80gb",
    task: Task | None = None,
    methods: list[Method] | None = None,
    seeds: list[Annotated[int, Field(ge=0)]] | None = None,
    max_updates: Annotated[int, Field(ge=1)] | None = None,
    overrides: Overrides | None = None,
    evaluate_while_training: bool | None = None,
    allow_retrain: bool = False,
    other_code: OtherCode = "stop",
    share: bool = False,
    code: str | None = None,
) -> list[str] | State[None]:
    """Post-train a diffusion language model by on-policy self-distillation, and measure the gain.

    Writes params.yaml, runs the stages of dvc.yaml that changed, and publishes to MLflow. After an
    interruption, a retry continues from the last checkpoint.

    Args:
        profile: Ready settings. `embedded` is 4x4 Sudoku on a CPU in minutes; the others
            are language models.
        preset: For profiles of language models: `reference` follows the published code, `paper`
            the paper's equations; `small` is `reference` on few problems.
        hardware: For profiles of language models: the hardware of this worker.
        task: One task, such as sudoku or gsm8k. Empty: that of the profile.
        methods: Methods to run, such as d_opsd and rft. Empty: those of the profile.
        seeds: Seeds to run. Empty: those of the profile.
        max_updates: Number of updates of every method (train.updates). Empty: that of the profile.
        overrides: Other keys of params.yaml by full name, with their values, such as
            {"train.learning_rate": 0.0005}.
        evaluate_while_training: Score checkpoints during training. Empty: only if training leaves a
            GPU free.
        allow_retrain: Train the embedded base again if it does not match these settings or their
            data. Off: the run stops.
        other_code: For a run that other code began: stop with a message, continue it, or start it
            anew.
        share: Send the results to DVC's remote instead of publishing them, and take from there what
            other machines have made. The flow dopsd-compare sets it.
        code: Digest of the code that must be here; other code fails the run. The flow dopsd-compare
            sets it.
    """
    request = RunRequest(
        profile, preset, hardware, task, methods, seeds, max_updates, overrides or {}
    )
    begin(get_run_logger())
    (stages.is_sharing.set if share else stages.is_sharing.clear)()
    try:
        require_code(code)
        return run_stages(request, evaluate_while_training, allow_retrain, other_code)
    except BaseException as error:
        stop_all()
        return failed(error)
    finally:
        stages.is_sharing.clear()


def require_code(digest: str | None) -> None:
    """Check that this workspace has the code that a comparison runs."""
    if digest and (digest_here := checkout_digest(Path.cwd())) != digest:
        raise Code.NOT_READY.error(
            f"code: this machine has other code ({digest_here}, the comparison {digest}); there:"
            " `git checkout params.yaml dvc.lock`, `git pull`, `make down`, `make up SERVER=...`"
        )


def require_spare(processes: int, devices: int) -> None:
    """Check that training leaves a GPU for evaluations."""
    if devices <= processes:
        raise Code.NO_GPU.error(
            f"evaluate_while_training: training uses all {devices} GPUs"
            f" (launch.processes {processes}); leave the parameter empty, or lower"
            " launch.processes"
        )


def run_stages(
    request: RunRequest,
    evaluate_while_training: bool | None,
    allow_retrain: bool = False,
    other_code: OtherCode = "stop",
) -> list[str]:
    """Run all stages of all runs of the matrix, and return the names of the runs.

    Args:
        evaluate_while_training: Score checkpoints during training; None: if a GPU is free.
        allow_retrain: Train the embedded base again if it does not match.
        other_code: What to do with a run that other code began.
    """
    if stages.is_sharing.is_set():
        stages.require_remote()
    devices = nodes.gpus()
    if evaluate_while_training and devices:
        require_spare(check(request, can_retrain=True).launch.processes, len(devices))
    done: object = stages.write_settings(request, allow_retrain)
    params = load_params()
    run_keys, processes = [run.key for run in params.runs], params.launch.processes
    training, spare = devices[:processes], devices[processes:]
    is_concurrent = bool(spare) if evaluate_while_training is None else evaluate_while_training
    env = {"CUDA_VISIBLE_DEVICES": ",".join(training)} if training else {}
    env |= {OTHER_CODE: other_code} if other_code != "stop" else {}
    bases = {}
    for name in params.matrix.tasks:
        done = stages.prepare(name, done)
        if name in params.pretrain.tasks:
            done = stages.pretrain(name, {ALLOWANCE: "1"} if allow_retrain else {}, done)
        if name in params.adapt.tasks:
            done = stages.adapt(name, env, done)
        bases[name] = stages.evaluate_base(name, done)
    reports = []
    for run_key in run_keys:
        if is_concurrent:
            evaluated = train_and_evaluate(
                run_key, env, Devices(spare), params.train.checkpoint_every, bases[run_key.task]
            )
        else:
            trained = stages.train(run_key, env, bases[run_key.task])
            evaluated = evaluate(
                run_key, updates_in(run_key.folder / "train"), Devices(devices), trained
            )
        done = stages.select(run_key, [future.result() for future in evaluated])
        reports.append(stages.report(run_key, test(run_key, params, done)))
    if stages.is_sharing.is_set():
        stages.share(run_keys, reports)
    elif params.tracking.enabled:
        stages.publish(run_keys, reports)
    show_summary(params)
    return [str(run_key) for run_key in run_keys]


def test(run_key: RunKey, params: Params, after: object) -> object:
    """Score the points of `evaluate.curve`, each in a task and cheap ones first, then test.

    Where machines share results, the test may be there already: it makes the points itself.
    """
    points = [name for name in params.test_order if name not in params.evaluate.protocols]
    if (
        points
        and not stages.is_sharing.is_set()
        and not stages.is_up_to_date(f"test@{run_key.stage}")
    ):
        for name in points:
            after = stages.point(name, run_key, after)
    return stages.test(run_key, after)


def evaluate(
    run_key: RunKey, updates: list[int], devices: Devices, after: object
) -> list[PrefectFuture[Any]]:
    """Submit a task for every checkpoint, shared out evenly over the devices."""
    if stages.is_up_to_date(f"evaluate@{run_key.stage}"):
        return [stages.evaluate_checkpoint.submit(update, None, after) for update in updates]
    n, log = len(devices.names), get_run_logger()
    jobs = [CheckpointEvalJob(run_key, updates[i::n], devices, log) for i in range(n)]
    return [
        stages.evaluate_checkpoint.submit(update, jobs[i % n], after)
        for i, update in enumerate(updates)
    ]


def updates_in(folder: Path) -> list[int]:
    """List the updates of complete checkpoints; one that is being written has a longer name."""
    return sorted(int(path.name[5:]) for path in folder.glob("step-??????"))


def train_and_evaluate(
    run_key: RunKey, env: dict[str, str], devices: Devices, every: int, after: object
) -> list[PrefectFuture[Any]]:
    """Submit training, and an evaluation of each checkpoint as it appears.

    While Prefect's server is away, no evaluation is submitted.
    """
    started, evaluations = time.time(), {}
    training: Any = stages.train.submit(run_key, env, after)  # a PrefectConcurrentFuture
    while not training.wrapped_future.done():  # `training.state` would ask the server
        time.sleep(LOOK_EVERY)
        for update in updates_in(scratch_since(started)) if server.is_reachable() else []:
            if update not in evaluations and update % every == 0:
                get_run_logger().info("checkpoint %d is saved", update)
                job = CheckpointEvalJob(run_key, [update], devices, get_run_logger())
                evaluations[update] = stages.evaluate_checkpoint.submit(update, job, after)
    done = training.result()
    missing = [
        update for update in updates_in(run_key.folder / "train") if update not in evaluations
    ]
    return [*evaluations.values(), *evaluate(run_key, missing, devices, done)]


def scratch_since(started: float) -> Path:
    """Return the folder of checkpoints of training that began after `started`.

    Until training has written its name, return a folder that does not exist.
    """
    state = Path("work/train.json")
    if not state.is_file() or state.stat().st_mtime < started:
        return Path("work/not-yet")
    return Path(json.loads(state.read_text(encoding="utf-8"))["scratch"] or "work/not-yet")
