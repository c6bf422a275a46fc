"""Post-train a real small model with five methods and three seeds at once, on one GPU.

    python benchmarks/gpu/real_model.py --gguf FILE [--seconds 740] [--out reports/gpu]
    python benchmarks/gpu/real_model.py --gguf FILE --toy      # a tiny model, on a CPU too

The settings are those of `make real` (benchmarks/real.py) with the changes below. SmolLM2-135M
learns to denoise; then all runs train beside each other, each in a process of its own, because one
of them leaves most of a GPU idle. They are told to stop in time for the tests: every run is then
cut to the updates that all of them have, its checkpoints at half and at all of these are scored,
and the better one is tested. OUT/stages.jsonl has a line for each stage at once, and
OUT/results.tar.gz all results but the weights. FOLDER is a project like any other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as dopsd sets it
sys.path.insert(0, str(Path(__file__).parents[1]))

import real
import torch

from dopsd.config.layout import render

TASK = "countdown"
MOST, LEAST = 20, 4  # updates; a multiple of the least, so that halves have a checkpoint
METHODS = ["d_opsd", "d_opsd-jsd", "rft", "trace_rl", "temporal"]
SEEDS = [0, 1, 2]
TESTING = 300  # seconds for scoring and testing all runs
CHANGES = [
    "matrix.methods=[d_opsd, rft, trace_rl, temporal]",
    f"matrix.seeds={SEEDS}",
    "adapt.learn={train: {updates: 500, checkpoint_every: 250, learning_rate: 3.0e-4}}",
    "data.countdown.seed=1",  # problems that no earlier run has seen
    "data.countdown.validation=192",
    f"train.updates={MOST}",
    "train.checkpoint_every=2",
    "sampling.batch_size=128",
    "sampling.min_rows=1",  # one attempt a problem
    "evaluate.protocols.eval.batch_size=192",
    "evaluate.curve=[8, 4, 2, 0.9]",
    "method.temporal.iterations=1",
    f"method.temporal.train={{prompts_per_collect: {real.ANSWERS // 4}, learning_rate: 5.0e-5}}",
    "ablate.task=countdown",
    "ablate.variants={default: {}, jsd: {divergence: jsd}}",
    "ablate.run=[]",
    "ablate.tables={}",
]
TOY = [
    "matrix.methods=[d_opsd, rft, temporal]",
    "train.updates=40",
    "method.temporal.train={prompts_per_collect: 2, learning_rate: 5.0e-5}",
    "method.temporal.weight=none",
]
WORKER = """import json, sys
from dopsd.cli.main import main
for words in json.loads(sys.argv[1]):
    if code := main(words):
        sys.exit(code)
"""
BASE = """from pathlib import Path
from dopsd.config.loading import load_params
from dopsd.evaluation.evaluator import Evaluator
params = load_params(Path("params.yaml"))
evaluator = Evaluator(params.evaluation("countdown", "d_opsd"), "test")
evaluator.reports("test of the base", [None], *params.test_protocols.values())
"""


class Project:
    """The folder in which everything happens, and the file of stages."""

    def __init__(self, folder: Path, out: Path, seconds: float) -> None:
        self.folder, self.out = folder, out
        self.began, self.seconds = time.monotonic(), seconds
        (folder / "logs").mkdir(parents=True)
        (folder / "models").mkdir()
        out.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds - (time.monotonic() - self.began)

    def add(self, stage: str, **found: object) -> None:
        """Add a line to OUT/stages.jsonl, print it, and pack what there is."""
        line = json.dumps({"stage": stage, "at": round(self.seconds - self.left(), 1)} | found)
        with (self.out / "stages.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)
        self.pack()

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start Python with these words in the project; its output goes to logs/NAME.log."""
        with (self.folder / f"logs/{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, stdout=log, stderr=log
            )

    def dopsd(self, name: str, *commands: str) -> subprocess.Popen[bytes]:
        """Start a process that runs some commands of dopsd, one after the other."""
        return self.start(name, "-c", WORKER, json.dumps([words.split() for words in commands]))

    def wait(
        self, stage: str, processes: dict[str, subprocess.Popen[bytes]], least: float = 1.0
    ) -> None:
        """Wait for processes until there is no time left, and say how they ended.

        Args:
            stage: its name.
            processes: by name.
            least: seconds that the first has in any case.

        Raises:
            SystemExit: if none ended well.
        """
        began = time.monotonic()
        for process in processes.values():
            try:
                process.wait(max(least, self.left()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        ends = {name: process.returncode for name, process in processes.items()}
        self.add(stage, seconds=round(time.monotonic() - began, 1), ends=ends)
        if all(ends.values()):
            raise SystemExit(f"{stage}: failed; see logs in {self.out}/results.tar.gz")

    def updates(self, run: tuple[str, int]) -> int:
        """Return the updates of a run that are in a checkpoint."""
        cell, found = "/".join((TASK, run[0], str(run[1]))), [0]
        for record in self.folder.glob("work/train-*/run.json"):
            if cell in json.loads(record.read_text())["cells"]:
                found += [int(path.name[5:]) for path in record.parent.glob("step-??????")]
        return max(found)

    def stop(self, trainings: dict[tuple[str, int], subprocess.Popen[bytes]], left: float) -> None:
        """Tell runs to save and end when so few seconds are left, but not before 4 updates."""
        running = trainings
        while running and (self.left() > left or min(map(self.updates, running)) < LEAST):
            time.sleep(1)
            running = {run: process for run, process in trainings.items() if process.poll() is None}
        for process in running.values():
            process.send_signal(signal.SIGTERM)

    def pack(self) -> None:
        """Write OUT/results.tar.gz: everything but data and weights."""
        part = self.out / "results.part"
        with tarfile.open(part, "w:gz") as tar:
            for pattern in ("params.yaml", "logs/*", "runs", "work/*/log.jsonl", "work/*/run.json"):
                for path in self.folder.glob(pattern):
                    tar.add(path, path.relative_to(self.folder), filter=without_weights)
        part.rename(self.out / "results.tar.gz")


def without_weights(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a member of the packed results; None for weights."""
    return None if member.name.endswith((".safetensors", ".pt")) else member


def name_of(run: tuple[str, int]) -> str:
    """Return the name of a run in logs and stages."""
    return f"{run[0]}-{run[1]}"


def words_of(run: tuple[str, int]) -> str:
    """Return the options that name a run."""
    return f"--task {TASK} --method {run[0]} --seed {run[1]}"


def main() -> None:
    """Make the base, train all runs at once, cut them to one length, and test them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the model's file")
    parser.add_argument("--hardware", default="1x80gb", help="as of the profile smollm2-135m")
    parser.add_argument("--seconds", type=float, default=740, help="time for everything")
    parser.add_argument("--testing", type=float, default=TESTING, help="of which for testing")
    parser.add_argument("--out", type=Path, default=Path("reports/gpu"))
    parser.add_argument("--folder", type=Path, default=Path("work/real-model"))
    parser.add_argument("--toy", action="store_true", help="a tiny model, on a CPU too")
    given = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    hardware = given.hardware if is_gpu else "cpu"
    folder = given.folder.resolve()
    folder = folder.with_name(folder.name + "-toy") if given.toy else folder
    shutil.rmtree(folder, ignore_errors=True)
    project = Project(folder, given.out.resolve(), given.seconds)
    (folder / "models" / real.FILE).symlink_to(given.gguf.resolve())
    runs = [(m, s) for s in SEEDS for m in METHODS]
    if given.toy:
        runs = [("d_opsd", 0), ("d_opsd-jsd", 0), ("temporal", 1)]

    def write(*changes: str) -> None:
        raw = real.settings(1, given.toy, hardware, CHANGES)
        raw = real.with_changes(raw, [*(TOY if given.toy else []), *changes])
        (folder / "params.yaml").write_text(render(raw))

    write("train.micro_batch_states=64")  # nothing else runs while the base is made
    device = torch.cuda.get_device_name() if is_gpu else "CPU"
    project.add("start", device=device, torch=torch.__version__, runs=[name_of(r) for r in runs])
    task = f"--task {TASK}"
    base = project.dopsd("base", f"prepare {task}", f"adapt {task}", f"evaluate_base {task}")
    project.wait("adapt", {"base": base})
    write()
    test = project.start("base-test", "-c", BASE)
    trainings = {run: project.dopsd(name_of(run), f"train {words_of(run)}") for run in runs}
    project.stop(trainings, given.testing)
    named = {name_of(run): process for run, process in trainings.items()}
    project.wait("train", {"base-test": test} | named)
    reached = {name_of(run): project.updates(run) for run in runs}
    runs = [run for run in runs if reached[name_of(run)] >= LEAST]
    common = min((reached[name_of(run)] for run in runs), default=0) // LEAST * LEAST
    project.add("updates", reached=reached, common=common)
    if not common:
        raise SystemExit("no run has enough updates")
    write(f"train.updates={common}", f"train.checkpoint_every={common // 2}")
    stages = ("train", "evaluate", "select", "test")
    tests = {
        name_of(run): project.dopsd(name_of(run), *(f"{stage} {words_of(run)}" for stage in stages))
        for run in runs
    }
    project.wait("test", tests)
    project.wait("summary", {"summary": project.dopsd("summary", "summary")}, least=20)
    print((folder / "logs/summary.log").read_text())


if __name__ == "__main__":
    main()
