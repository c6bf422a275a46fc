"""Many checkpoints, runs, scorings and rows: what is lost, how long commands take, how it grows.

    python benchmarks/load.py [PART ...] [--sizes N ...] [--postgres]

All parts without a name, each at its own sizes; each size is twice the one before. A part fails if
something is lost, or there twice. Projects have the tests' toy base.

checkpoints: one run with a checkpoint after every update is trained, evaluated and published.
history: commands on results in a project of many finished runs. One run (two updates) is trained
and tested, and copied for the other seeds.
flows: Prefect's server with many runs, as `make up` serves a checkout: `dopsd attach`, the server's
lists, its memory; on sqlite, or with `--postgres`. Each run has ten task runs, 50 log lines and a
progress artifact, as a short `dopsd/train` leaves. Then one run with 1000 evaluations, and a queue
longer than a page of the server.
scores: many `dopsd score` at once in one folder, with a rule of ours and with math-verify's
program. Each process scores a file of 500 generations and writes its verdicts; a second round
writes all verdicts to one file.
dataset: an own task with many rows (4x4 puzzles, which the toy base reads).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

ROOT = Path(__file__).parents[1]
FOUND_IN = [str(ROOT), str(ROOT / "tests")]
sys.path[:0] = FOUND_IN
DOPSD = (sys.executable, "-m", "dopsd")
LOOK_EVERY = 0.05  # seconds between two looks at a command's memory
QUIET = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
}
# in a process of its own: torch would count as memory of every command that this one starts
MAKE = """
import shutil, sys, yaml
from toy_project import TOY, small_params
shutil.copytree(TOY, ".", dirs_exist_ok=True)
changes = yaml.safe_load(sys.argv[1])
open("params.yaml", "w").write(yaml.safe_dump(small_params(**changes)))
"""
# as a run of that seed leaves it: train.json names settings and seed by their fingerprint
COPY = """
import json, shutil, sys
from pathlib import Path
from dopsd.config.loading import load_params
from dopsd.training.run_identity import identify
params, first = load_params(), Path("runs/sudoku/d_opsd/0")
for seed in range(*map(int, sys.argv[1:])):
    folder = first.with_name(str(seed))
    shutil.copytree(first, folder)
    made = json.loads((first / "train.json").read_text())
    made["fingerprint"] = identify(params.run("sudoku", "d_opsd", seed)).folder.name
    (folder / "train.json").write_text(json.dumps(made))
"""
CELL = Path("runs/sudoku/d_opsd/0")
STAGES = ("evaluate_base", "train", "evaluate", "select", "test")
NO_SERVER = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
TASK_RUNS = ("settings", "prepare sudoku", "base sudoku", "train {key}", "evaluate 1", "evaluate 2")
TASK_RUNS += ("select {key}", "test {key}", "report {key}", "publish")
LOGS = 50  # lines of a run
EVALUATIONS = 1000  # of the run with many checkpoints
QUEUED = 250  # waiting runs, more than a page of the server's answers
SECRETS = {"POSTGRES_USER": "dopsd", "POSTGRES_PASSWORD": "p4ss", "POSTGRES_DB": "prefect"}
GENERATIONS = 500  # of a file to score
SOLVED = "1234341221434321"  # a 4x4 grid, row after row
OWN_TASK = {
    "type": "custom",
    "train": {"path": "data/external/rows.csv"},
    "validation": 40,
    "test": 40,
    "question": "question",
    "answer": "answer",
    "prompt": "{question}",
    "answer_format": {"tag": "answer"},
}
SUMS = OWN_TASK | {"verifier": {"type": "math"}}
PUZZLES = OWN_TASK | {"verifier": {"type": "exact", "white_space": "drop"}}


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    name: str
    size: int
    seconds: float
    peak_mb: float  # resident memory
    cpu: float = 0.0  # seconds of the processors

    def told(self) -> Measured:
        """Print this at once, and return it."""
        cpu = f" {self.cpu:8.1f} CPU s" if self.cpu else ""
        say(f"{self.size:>7} {self.name:20} {self.seconds:8.3f} s{cpu} {self.peak_mb:8.0f} MB")
        return self


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def toy_project(folder: Path, **changes: object) -> Path:
    """Make a project with the tests' toy base and data; changes are keys with `__` for a dot."""
    folder.mkdir()
    words = [sys.executable, "-c", MAKE, repr(changes)]
    assert start(folder, words, "output.txt").wait() == 0, (folder / "output.txt").read_text()
    return folder


def start(
    folder: Path, command: Sequence[str], log: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a folder; what it prints goes to a file there."""
    found_in = {"PYTHONPATH": os.pathsep.join(FOUND_IN)}
    with (folder / log).open("w") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | QUIET | found_in | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def dopsd(
    folder: Path, size: int, *words: str, name: str = "", env: Mapping[str, str] | None = None
) -> Measured:
    """Run `dopsd WORDS` in a folder, and return what it took."""
    return measure(folder, size, [*DOPSD, *words], name or words[0], env)


def measure(
    folder: Path,
    size: int,
    command: Sequence[str],
    name: str,
    env: Mapping[str, str] | None = None,
) -> Measured:
    """Run a command in a folder, and return what it took.

    Raises:
        SystemExit: if the command fails.
    """
    started, peak = time.monotonic(), 0.0
    process = start(folder, command, "output.txt", env)
    while not (found := os.wait4(process.pid, os.WNOHANG))[0]:
        peak = max(peak, resident_mb(process.pid))
        time.sleep(LOOK_EVERY)
    _, status, usage = found
    if status:
        tail = (folder / "output.txt").read_text()[-2000:]
        sys.exit(f"{' '.join(command)[:80]}: failed in {folder}\n{tail}")
    seconds, cpu = time.monotonic() - started, usage.ru_utime + usage.ru_stime
    return Measured(name, size, seconds, peak, cpu).told()


def resident_mb(pid: int) -> float:
    """Return the most resident memory that a process has had, in MB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def proportional_mb(processes: Iterable[psutil.Process]) -> float:
    """Return the memory of processes, pages that they share counted once, in MB."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 2**20


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return p of `values = constant + factor * size**p`, from the last three sizes.

    Args:
        sizes: sizes, each twice the one before.
        values: what was measured at each size.

    Returns:
        About 1 if every piece costs the same, 2 if a piece costs as much as there are pieces
        already; NaN where the values do not grow.
    """
    first, second, third = values[-3:]
    if third <= second or second <= first:
        return math.nan
    return math.log((third - second) / (second - first), sizes[-1] / sizes[-2])


def table(rows: Sequence[Measured]) -> str:
    """Return Markdown: seconds (CPU seconds) by size, growth of the latter, and memory."""
    sizes = sorted({row.size for row in rows})
    head = ["command", *map(str, sizes), "exponent", "peak MB"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in dict.fromkeys(row.name for row in rows):
        by_size = {row.size: row for row in rows if row.name == name}
        cells = [
            f"{by_size[size].seconds:.1f} ({by_size[size].cpu:.1f})" if size in by_size else ""
            for size in sizes
        ]
        cpu = [row.cpu for row in by_size.values()]
        power = exponent(list(by_size), cpu) if len(cpu) > 2 else math.nan
        peaks = [row.peak_mb for row in by_size.values()]
        growth = "" if math.isnan(power) else f"{power:.1f}"
        memory = f"{peaks[0]:.0f} to {peaks[-1]:.0f}"
        lines.append("| " + " | ".join([name, *cells, growth, memory]) + " |")
    return "\n".join(lines)


def growing(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each size with the one before it; before the first: 0."""
    return zip((0, *sizes), sizes, strict=False)


def local_mlflow(folder: Path) -> dict[str, str]:
    """Return the variable that makes commands use a project's own MLflow."""
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}


def mlflow_client(folder: Path) -> tuple[Any, str]:
    """Return a client of a project's own MLflow, and the id of its experiment."""
    from dopsd.tracking.client import connect

    client = connect(local_mlflow(folder)["MLFLOW_TRACKING_URI"])
    return client, client.get_experiment_by_name("dopsd").experiment_id


def all_pages(ask: Callable[..., Any]) -> Iterator[Any]:
    """Yield what all pages of an answer of MLflow have."""
    token = None
    while True:
        page = ask(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def checkpoints(place: Path, size: int) -> list[Measured]:
    """Return what each command takes with `size` checkpoints of one run."""
    folder = toy_project(
        place / str(size),
        train__updates=size,
        train__checkpoint_every=1,
        tracking__enabled=True,
    )
    local = local_mlflow(folder)
    # the log goes to MLflow by publish: the uploader's time would count for nobody
    rows = [dopsd(folder, size, "train", env=NO_SERVER)]
    rows += [dopsd(folder, size, "train", name="train again")]
    rows += [dopsd(folder, size, name) for name in ("evaluate_base", "evaluate")]
    rows += [dopsd(folder, size, "evaluate", name="evaluate again")]
    rows += [dopsd(folder, size, name) for name in ("select", "test", "report")]
    check_curve(folder, size)
    for name in ("publish", "publish again"):
        rows += [dopsd(folder, size, "publish", name=name, env=local)]
        check_models(folder, size)
    return rows + [dopsd(folder, size, name, env=local) for name in ("summary", "compare", "clean")]


def check_curve(folder: Path, size: int) -> None:
    """Check that every checkpoint is there, and on the curve once."""
    from dopsd.core.tables import read_table

    expected = list(range(1, size + 1))
    folders = sorted(int(path.name[5:]) for path in (folder / CELL / "train").glob("step-*"))
    curve = [row["update"] for row in read_table(folder / CELL / "curve.csv")]
    assert folders == expected, f"{len(folders)} checkpoints of {size}"
    assert curve == [0, *expected], f"{len(curve) - 1} accuracies of {size}"


def check_models(folder: Path, size: int) -> None:
    """Check that MLflow has each checkpoint as one model, and each accuracy and loss once."""
    client, experiment = mlflow_client(folder)
    found = all_pages(partial(client.search_logged_models, [experiment], max_results=50))
    models = Counter(int(model.tags["update"]) for model in found)
    assert models == Counter(range(1, size + 1)), f"{models.total()} models of {size}"
    (run,) = client.search_runs([experiment])
    for name, first in (("eval/accuracy", 0), ("train/loss", 1)):
        points = [point.step for point in client.get_metric_history(run.info.run_id, name)]
        assert sorted(points) == list(range(first, size + 1)), f"{name}: {len(points)} of {size}"


def history(place: Path, sizes: Sequence[int]) -> list[Measured]:
    """Return what each command takes as the finished runs of a project become more."""
    folder = toy_project(place / "project", train__updates=2, tracking__enabled=True)
    for stage in STAGES:
        dopsd(folder, 1, stage, env=NO_SERVER)  # publish sends all
    return [row for before, size in growing(sizes) for row in with_runs(folder, before, size)]


def with_runs(folder: Path, before: int, size: int) -> list[Measured]:
    """Return what each command takes once the project has `size` finished runs."""
    raw = yaml.safe_load((folder / "params.yaml").read_text())
    raw["matrix"]["seeds"] = list(range(size))
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    copy = [sys.executable, "-c", COPY, str(max(before, 1)), str(size)]
    measure(folder, size, copy, "(copy the run)")
    run = partial(dopsd, folder, size, env=local_mlflow(folder))
    rows = [run("publish"), run("publish", name="publish again")]
    # the log of one more run: what each training start and end asks of MLflow
    rows += [run("follow", "--task", "sudoku", "--method", "d_opsd", "--seed", "0")]
    rows += [run("summary"), run("summary", name="summary again")]
    rows += [run(name) for name in ("compare", "check", "clean")]
    check_runs(folder, size)
    return rows


def check_runs(folder: Path, size: int) -> None:
    """Check that MLflow has every run once, with its accuracy, and the comparison every run."""
    client, experiment = mlflow_client(folder)
    runs = all_pages(partial(client.search_runs, [experiment], max_results=100))
    seeds = [int(r.data.tags["seed"]) for r in runs if "best/test_accuracy" in r.data.metrics]
    assert sorted(seeds) == list(range(size)), f"MLflow: {len(seeds)} runs of {size}"
    rows = json.loads((folder / "reports/compare/comparison.json").read_text())["runs"]
    expected = [f"sudoku/d_opsd/{seed}" for seed in range(size)]
    assert [row["run"] for row in rows] == expected, f"compare: {len(rows)} of {size}"


class Server:
    """Makes runs through the API of Prefect's server, in the states that a worker would report."""

    def __init__(self, api: str) -> None:
        self.refused = 0  # requests that the server was too busy for
        self.client = httpx.Client(base_url=api, timeout=600)
        answer = self.client.get("/deployments/name/dopsd/train").raise_for_status()
        self.deployment = answer.json()["id"]

    def post(self, path: str, body: object, method: str = "POST") -> Any:
        """Return the answer to a POST; a server that is too busy is asked again, as workers do."""
        for wait in (1, 2, 4, 8, 16, 32, 64):
            answer = self.client.request(method, path, json=body)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            self.refused += 1
            time.sleep(wait)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def queued(self, name: str, seconds: float = 0.0) -> str:
        """Submit a run, and return its id."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": at.isoformat()}}
        body = {"name": name, "state": state}
        return str(self.post(f"/deployments/{self.deployment}/create_flow_run", body)["id"])

    def set_state(self, run: str, state: str) -> None:
        """Report the state of a run."""
        body = {"state": {"type": state, "name": state.title()}, "force": True}
        self.post(f"/flow_runs/{run}/set_state", body)

    def task(self, run: str, number: int, name: str, state: str = "COMPLETED") -> None:
        """Report a task run of a run."""
        body = {"flow_run_id": run, "task_key": name, "dynamic_key": str(number), "name": name}
        details = {"type": state, "name": state.title()}
        self.post("/task_runs/", body | {"state": details})

    def finished(self, number: int) -> None:
        """Make a run that has completed."""
        run = self.queued(f"run-{number}")
        self.set_state(run, "RUNNING")
        for place, name in enumerate(TASK_RUNS):
            self.task(run, place, name.format(key=f"sudoku/d_opsd/{number}"))
        now = datetime.now(UTC).isoformat()
        line = {"name": "dopsd", "level": 20, "timestamp": now, "flow_run_id": run}
        self.post("/logs/", [line | {"message": f"train: {n}/50"} for n in range(LOGS)])
        bar = {"key": f"train-{number}", "type": "progress", "data": 100.0, "flow_run_id": run}
        self.post("/artifacts/", bar)
        self.set_state(run, "COMPLETED")


@contextmanager
def served(folder: Path, is_postgres: bool) -> Iterator[tuple[Any, Server]]:
    """Serve a checkout by `make up`, with Prefect's database in sqlite or PostgreSQL."""
    from composed import Postgres
    from deployed import services
    from ports import free_port
    from workspace import Workspace

    with ExitStack() as stack:
        workspace = Workspace(folder)
        workspace.env |= QUIET | {"PREFECT_LOGGING_LEVEL": "WARNING"}
        if is_postgres:
            database = Postgres(port := free_port(), SECRETS)
            stack.callback(database.stop)
            url = f"postgresql+asyncpg://dopsd:p4ss@127.0.0.1:{port}/prefect"
            workspace.env["PREFECT_API_DATABASE_CONNECTION_URL"] = url
        stack.enter_context(services(workspace))
        lines = (workspace.folder / "work/services/env").read_text().splitlines()
        api = next(line.partition("=")[2] for line in lines if "PREFECT_API_URL" in line)
        workspace.env["PREFECT_API_URL"] = api
        server = Server(api)
        server.post("/work_pools/dopsd", {"is_paused": True}, "PATCH")
        yield workspace, server


def flows(place: Path, sizes: Sequence[int], is_postgres: bool) -> list[Measured]:
    """Return what questions take as the runs of a server become more."""
    with served(place / "w", is_postgres) as (workspace, server):
        rows = []
        for before, size in growing(sizes):
            began = time.monotonic()
            for number in range(before, size):
                server.finished(number)
            seconds = time.monotonic() - began
            say(f"{size:>7} made in {seconds:.0f} s; refused with 503: {server.refused}")
            found = int(server.post("/flow_runs/count", {}))
            assert found == size, f"{found} runs of {size}"
            rows += ask(server, size, memory_of_prefect(workspace.folder))
            rows += [attach(workspace, size, "run-0", "attach the first")]
            rows += [attach(workspace, size, f"run-{size - 1}", "attach the last")]
        rows += [with_many_evaluations(workspace, server)]
        check_queue(server)
        return rows


def memory_of_prefect(folder: Path) -> float:
    """Return the memory of Prefect's server, in MB."""
    started = json.loads((folder / "work/services/services.json").read_text())
    process = psutil.Process(int(started["prefect"]["pid"]))
    return proportional_mb([process, *process.children(recursive=True)])


def ask(server: Server, size: int, memory: float) -> list[Measured]:
    """Return how long the lists of the UI take, and the worker's question for work."""
    listing = {"limit": 50, "sort": "START_TIME_DESC"}
    tasks = {"limit": 200, "flow_runs": {"name": {"any_": ["run-0"]}}}
    questions = {
        "list of runs": ("/flow_runs/filter", listing),
        "list of task runs": ("/task_runs/filter", tasks),
        "work of the pool": ("/work_pools/dopsd/get_scheduled_flow_runs", {"limit": 1}),
    }
    rows = []
    for name, (path, body) in questions.items():
        started = time.monotonic()
        for _ in range(5):
            server.post(path, body)
        rows.append(Measured(name, size, (time.monotonic() - started) / 5, memory).told())
    return rows


def attach(workspace: Any, size: int, run: str, name: str) -> Measured:
    """Return what `dopsd attach` takes for a run that has ended."""
    row = dopsd(workspace.folder, size, "attach", run, name=name, env=workspace.env)
    said = (workspace.folder / "output.txt").read_text()
    assert f"{run}: completed" in said, f"attach {run}: {said[-500:]}"
    return row


def with_many_evaluations(workspace: Any, server: Server) -> Measured:
    """Return what `dopsd attach` takes for a run with EVALUATIONS evaluations."""
    run = server.queued("many-checkpoints")
    server.set_state(run, "RUNNING")
    server.task(run, 0, "train sudoku/d_opsd/0")
    for number in range(1, EVALUATIONS + 1):
        server.task(run, number, f"evaluate {number}")
    server.set_state(run, "COMPLETED")
    return attach(workspace, EVALUATIONS, "many-checkpoints", "attach many checkpoints")


def check_queue(server: Server) -> None:
    """Check that the running run is found behind QUEUED later ones, and the first queued one."""
    from prefect.client.orchestration import SyncPrefectClient

    from flows import runs

    running = server.queued("running")
    server.set_state(running, "RUNNING")
    for number in range(QUEUED):
        server.queued(f"queued-{number}", 3600 + number)
    with SyncPrefectClient(str(server.client.base_url)) as client:
        for name in (None, "running", running[:13], "queued-0", f"queued-{QUEUED - 1}", "run-0"):
            found = runs.find(client, "attach", name).name
            expected = "running" if name in (None, running[:13]) else name
            assert found == expected, f"attach {name}: found {found}"
    say(f"found behind {QUEUED} queued runs: the running one, queued ones, the first one")


def scores(place: Path, sizes: Sequence[int]) -> list[Measured]:
    """Return what scorings take together, with a rule of ours and by math-verify (`sums`)."""
    folder, rows = toy_project(place / "project", data__sums=SUMS), []
    for number in range(max(sizes)):
        write_generations(folder / f"{number}.jsonl", number)
    for task in ("gsm8k", "sums"):
        alone = [verdicts_alone(folder, task, number) for number in range(max(sizes))]
        for size in sizes:
            rows += [at_once(folder, task, size, is_shared=False)]
            for number in range(size):
                found = (folder / f"{task}.{number}.out.jsonl").read_bytes()
                assert found == alone[number], f"{task}: verdicts of file {number} differ"
            rows += [at_once(folder, task, size, is_shared=True)]
            shared = (folder / "shared.out.jsonl").read_bytes()
            assert shared in alone, f"{task}: the shared output is of no process"
            left = [path.name for path in folder.glob(".*")]
            assert not left, f"left over: {left}"
    return rows


def write_generations(path: Path, number: int) -> None:
    """Write generations of sums, of which about 60% are right."""
    draw, lines = random.Random(number), []
    for _ in range(GENERATIONS):
        a, b = draw.randint(1, 999), draw.randint(1, 999)
        answer = a + b if draw.random() < 0.6 else a - b
        row = {"question": f"{a}+{b}?", "ground_truth": str(a + b)}
        row["generation"] = f"<reasoning>{a} and {b}</reasoning><answer>{answer}</answer>"
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")


def score(folder: Path, task: str, number: int, verdicts: str) -> subprocess.Popen[bytes]:
    """Start the scoring of a file."""
    words = ["score", "--task", task, f"{number}.jsonl", "--verdicts", verdicts]
    return start(folder, [*DOPSD, *words], f"output.{number}")


def verdicts_alone(folder: Path, task: str, number: int) -> bytes:
    """Return the verdicts of a process that scores a file alone."""
    status = score(folder, task, number, "alone.out").wait()
    assert status == 0, (folder / f"output.{number}").read_text()
    return (folder / "alone.out").read_bytes()


def at_once(folder: Path, task: str, size: int, is_shared: bool) -> Measured:
    """Score `size` files at once, and return time and memory of all processes together."""
    started, peak = time.monotonic(), 0.0
    names = ["shared" if is_shared else f"{task}.{n}" for n in range(size)]
    processes = [score(folder, task, n, f"{name}.out.jsonl") for n, name in enumerate(names)]
    while any(process.poll() is None for process in processes):
        peak = max(peak, proportional_mb(psutil.Process().children(recursive=True)))
        time.sleep(0.2)
    failed = [n for n, process in enumerate(processes) if process.returncode]
    if failed:
        text = (folder / f"output.{failed[0]}").read_text()[-1500:]
        raise AssertionError(f"{len(failed)} of {size} failed, the first with:\n{text}")
    name = f"{task}, one output" if is_shared else task
    return Measured(name, size, time.monotonic() - started, peak).told()


def dataset(place: Path, size: int) -> list[Measured]:
    """Return what each command takes with `size` rows of an own task."""
    folder = toy_project(
        place / str(size),
        data__puzzles=PUZZLES,
        matrix__tasks=["puzzles"],
        pretrain__tasks=[],
        train__updates=2,
        matrix__methods=["infill"],  # learns from wrong answers too
    )
    puzzles = write_puzzles(folder / "data/external/rows.csv", size)
    rows = [dopsd(folder, size, "task", "check", "puzzles", name="task check")]
    rows += [dopsd(folder, size, "prepare", "--task", "puzzles")]
    found = [
        json.loads(line)["prompt"]
        for split in ("train", "validation", "test")
        for line in (folder / f"data/puzzles/{split}.jsonl").read_text().splitlines()
    ]
    assert len(found) == size and {*found} == puzzles, f"{len(found)} of {size}"
    rows += [dopsd(folder, size, "evaluate_base", "--task", "puzzles")]
    return [*rows, dopsd(folder, size, "train", "--task", "puzzles", "--method", "infill")]


def write_puzzles(path: Path, count: int) -> set[str]:
    """Write `count` different puzzles to a CSV file, and return them: a grid with other digits."""
    draw, puzzles = random.Random(0), {}
    while len(puzzles) < count:
        grid = SOLVED.translate(str.maketrans("1234", "".join(draw.sample("1234", 4))))
        blanks = {*draw.sample(range(16), 8)}
        puzzles["".join("0" if i in blanks else d for i, d in enumerate(grid))] = grid
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{puzzle},{grid}" for puzzle, grid in puzzles.items()]
    path.write_text("\n".join(["question,answer", *lines]) + "\n")
    return {*puzzles}


def each(part: Callable[[Path, int], list[Measured]]) -> Callable[..., list[Measured]]:
    """Return a part that measures one size after the other, each in a project of its own."""
    return lambda place, sizes: [row for size in sizes for row in part(place, size)]


PARTS: dict[str, tuple[Callable[..., list[Measured]], tuple[int, ...], str]] = {
    "checkpoints": (each(checkpoints), (125, 250, 500, 1000), "checkpoints"),
    "history": (history, (125, 250, 500), "runs"),
    "flows": (flows, (125, 250, 500), "runs in Prefect"),
    "scores": (scores, (4, 16, 64), "processes"),
    "dataset": (each(dataset), (12_500, 25_000, 50_000, 100_000), "rows"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--sizes", nargs="+", type=int, help="instead of the parts' own")
    parser.add_argument("--postgres", action="store_true", help="flows: on PostgreSQL")
    a = parser.parse_args()
    for name in a.parts or PARTS:
        part, own_sizes, unit = PARTS[name]
        sizes = a.sizes or own_sizes
        more = (a.postgres,) if part is flows else ()
        with tempfile.TemporaryDirectory() as place:
            rows = part(Path(place), sizes, *more)
        say(f"\nNothing lost: {', '.join(map(str, sizes))} {unit}.\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
