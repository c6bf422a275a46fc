"""Turn SmolLM2-135M-Instruct into a diffusion model, and train that with d-OPSD, on one GPU.

    python benchmarks/gpu/real_model.py --gguf FILE [--task countdown] [--seconds 275]
    python benchmarks/gpu/real_model.py --gguf FILE --toy      # a tiny model, on a CPU too

It adapts all weights by masked diffusion on worked solutions (method sft), exports the result, and
runs d-OPSD from it; base and best checkpoint are tested. Training stops in time for what follows,
and stages that no longer fit are skipped. Each stage is a line of OUT/real_model.jsonl at once;
beside it come the logs of both trainings, the curve, the tests and the best adapter. A second run
replaces the adapted base of the first.

--task gsm8k needs --rows, a folder with train.jsonl and test.jsonl of GSM8K. The adapted base stays
in --folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as dopsd sets it

import torch
from projects import D_OPSD, DATA, SFT, SIZES, Run
from stages import Stages

from dopsd.models.a2d.convert import Form, convert
from dopsd.pipeline.toy import build_toy

NAMES = ["convert", "adapt: prepare", "adapt: train", "adapt: export", "prepare", "evaluate_base"]
NAMES += ["train", "evaluate", "select", "test", "summary"]
ADAPTING = 0.45  # share of the time after which adapting ends
CHECKPOINTS = 3  # of d-OPSD
RUN = {method: ["--method", method, "--seed", "0"] for method in ("sft", "d_opsd")}
RESULTS = {  # files of the run of d-OPSD, by their names in OUT
    "curve.csv": "curve.csv",
    "test.json": "test.json",
    "best/adapter_model.safetensors": "adapter_model.safetensors",
    "best/adapter_config.json": "adapter_config.json",
}


def make_base(run: Run) -> str:
    """Convert the GGUF file; make a tiny model of its kind for a rehearsal; return the folder."""
    base, toy = run.folder / "smollm2", run.folder / "toy"
    count = convert(run.gguf, base, Form(1, "<empty_output>", torch.bfloat16))
    print(f"{count:,} weights", flush=True)
    if run.is_toy:
        build_toy(base, toy)
    return str(toy if run.is_toy else base)


def adapt(run: Run, base: str) -> Path | None:
    """Train all weights on solutions, and export them; return the folder of the diffusion model."""
    size, stages = run.sizes, run.stages
    changes = [*SFT, f"model.path={base}", f"method.sft.length={size.length}"]
    changes += [f"method.sft.train.prompts_per_collect={size.sft_batch}"]
    changes += [f"train.micro_batch_states={size.sft_batch}", f"train.updates={size.sft_updates}"]
    changes += [f"train.checkpoint_every={size.sft_updates}"]
    if run.task == "gsm8k":
        changes += [f"method.sft.traces={{path: {DATA}/traces.jsonl}}"]
    out = run.folder / "SmolLM2-135M-diffusion"
    with chdir(run.project("adapt", changes)):
        if not stages.command("adapt: prepare", ["prepare", "--task", run.task]):
            return None
        seconds = stages.left() - (1 - ADAPTING) * stages.seconds
        words = ["train", "--task", run.task, *RUN["sft"]]
        if not stages.train("adapt: train", words, seconds, stages.out / "adapt.jsonl"):
            return None
        last = sorted(Path("work").glob("train-*/step-??????"))[-1]
        export = ["export", "--adapter", str(last), "--out", str(out), "--dtype", "bfloat16"]
        return out if stages.command("adapt: export", export) else None


def distil(run: Run, base: Path) -> None:
    """Run every stage of d-OPSD from the adapted model."""
    size, stages = run.sizes, run.stages
    changes = [*D_OPSD, f"model.path={base}", f"train.prompts_per_collect={size.prompts}"]
    every = max(2, size.updates // CHECKPOINTS)
    changes += [f"train.checkpoint_every={every}"]
    task, words = ["--task", run.task], ["--task", run.task, *RUN["d_opsd"]]
    length = [f"train.updates={size.updates}"]
    with chdir(run.project("distil", [*changes, *length])):
        stages.command("prepare", ["prepare", *task])
        if not stages.command("evaluate_base", ["evaluate_base", *task], 10):
            return
        base_score = json.loads(Path(f"runs/{run.task}/base.json").read_text())
        stages.add("base", **base_score)
        if not solves(base_score):  # d-OPSD would keep no rollout, and end
            changes.append("method.d_opsd.keep=all")
            run.write_params(Path(), [*changes, *length])
            stages.add("keep", all="the base solves nothing: the best rollouts train, right or not")
        each = stages.took["evaluate_base"]
        test = 2 * each * size.test / size.validation
        seconds = stages.left() - CHECKPOINTS * each - test - 10
        seconds = max(seconds, stages.left() / 4)
        updates = stages.train("train", ["train", *words], seconds, stages.out / "d_opsd.jsonl")
        if updates and updates < size.updates:  # the run ends there: the same run, only shorter
            run.write_params(Path(), [*changes, f"train.updates={updates}"])
            stages.command("train, ended early", ["train", *words])
        if not updates:
            return
        after = [
            ("evaluate", words, updates // every * each),
            ("select", words, 0),
            ("test", words, test),
            ("summary", [], 0),
        ]
        for stage, given, least in after:
            if not stages.command(stage, [stage, *given], least):
                return
            keep(Path("runs", run.task, "d_opsd", "0"), stages.out)


def solves(score: Any) -> bool:
    """Return whether the record of a base's score has an accuracy above 0."""
    if isinstance(score, dict):
        return any(solves(v) if k != "accuracy" else bool(v) for k, v in score.items())
    return False


def keep(results: Path, out: Path) -> None:
    """Copy what there is of a run's results."""
    for name, target in RESULTS.items():
        if (results / name).is_file():
            shutil.copyfile(results / name, out / target)


def main() -> int:
    """Run the stages; return 0 if all of them ended well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the model's file")
    parser.add_argument("--task", choices=SIZES, default="countdown")
    parser.add_argument("--rows", type=Path, help="folder with GSM8K's train.jsonl and test.jsonl")
    parser.add_argument("--hardware", default="1x80gb", help="as of the profile smollm2-135m")
    parser.add_argument("--seconds", type=float, default=275, help="time for everything")
    parser.add_argument("--out", type=Path, default=Path("reports/gpu"))
    parser.add_argument("--folder", type=Path, default=Path("work/real-model"))
    parser.add_argument("--toy", action="store_true", help="a tiny model, on a CPU too")
    given = parser.parse_args()
    if given.task == "gsm8k" and not given.rows:
        parser.error("--task gsm8k needs --rows")
    stages = Stages(given.out.resolve(), given.seconds)
    folder = given.folder.resolve()
    folder = folder.with_name(folder.name + "-toy") if given.toy else folder
    shutil.rmtree(folder, ignore_errors=True)
    rows = given.rows.resolve() if given.task == "gsm8k" else None
    is_gpu = torch.cuda.is_available()
    hardware = "cpu" if given.toy and not is_gpu else given.hardware
    run = Run(stages, folder, given.gguf.resolve(), rows, given.task, hardware, given.toy)
    device = torch.cuda.get_device_name() if is_gpu else "CPU"
    stages.add("start", device=device, task=given.task, sizes=run.sizes._asdict())
    missing = NAMES
    try:
        base = stages.run("convert", partial(make_base, run))
        adapted = adapt(run, base) if base else None
        if adapted:
            distil(run, adapted)
    finally:
        missing = [name for name in NAMES if name not in stages.took]
        stages.add("end", missing=missing)
    return bool(missing)


if __name__ == "__main__":
    raise SystemExit(main())
