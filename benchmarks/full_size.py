"""Run a base's true shape once on a CPU: random weights, and the product's own commands on them.

    python benchmarks/full_size.py --folder /tmp/full-size --out full_size.json
    python benchmarks/full_size.py --folder /tmp/small --base a2d-0.6b
    python benchmarks/full_size.py --folder /tmp/toy --toy

The steps: write weights, load, sample, train two updates of two states, the same killed after its
first checkpoint and resumed, export merged to bfloat16, and the logits of the export and of the
model merged in memory; for a2d-0.6b also the evaluation of the base on two problems. Each is a
process of its own, and its figures stay in the folder: the same command continues with the first
step that is missing. LLaDA-8B needs a disk of 45 GB, a2d-0.6b of 8 GB.

A step is killed when less than 0.7 GB of memory is available; `--layers 24` makes a model of fewer
layers at true width instead. Peaks are resident bytes: all, and those that are no pages of files,
which Linux can drop.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured import Failed, measured

ROOT = Path(__file__).parents[1]
RUN = ["--task", "sudoku", "--method", "d_opsd", "--seed", "0"]
LAST = "runs/sudoku/d_opsd/0/train/step-000002"
SEVEN = "[q_proj, k_proj, v_proj, attn_out, ff_proj, up_proj, ff_out]"  # of LLaDA
PROFILES = {  # by base
    "llada-8b": ["--profile", "llada-8b-sudoku", "--hardware", "1x80gb"],
    "a2d-0.6b": ["--profile", "a2d-0.6b-sudoku", "--preset", "small", "--hardware", "cpu"],
}
LONGER = [  # changes for a2d-0.6b: answers of 64 tokens, and an evaluation
    "data.sudoku.limit=2",
    "sampling.gen_length=64",
    "sampling.block_length=32",
    "sampling.steps=32",
    "sampling.max_prompt_tokens=null",
    "evaluate.protocols.128.gen_length=64",
    "evaluate.protocols.128.steps=32",
]
CHANGES = [  # to the profile: four states in two updates of one short answer
    "pretrain.tasks=[]",
    "data.sudoku.limit=4",
    "tracking.enabled=false",
    "sampling.gen_length=16",
    "sampling.block_length=8",
    "sampling.steps=8",
    "sampling.max_prompt_tokens=32",
    "method.d_opsd.attempts=1",
    "method.d_opsd.keep=all",
    "method.d_opsd.record=all",
    "method.d_opsd.drop_remainder=false",
    "method.d_opsd.updates_per_trajectory=2",
    "train.updates=2",
    "train.prompts_per_collect=1",
    "train.checkpoint_every=1",
    "train.micro_batch_states=2",
    "train.learning_rate=0.01",
    "train.lora.dropout=0",
    "train.gradient_checkpointing=true",
]


@dataclass(frozen=True)
class Bench:
    """The folder of a run, and what is measured in it."""

    folder: Path
    base: str
    layers: int | None
    is_toy: bool
    is_all_linear: bool

    def steps(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return the steps by name, in their order."""
        base, merged = self.folder / "base", self.folder / "merged"
        adapter = self.folder / "whole" / LAST
        export = ["export", "--merged", "--model", str(base), "--adapter", str(adapter)]
        export += ["--out", str(merged), "--dtype", "bfloat16"]
        options = ["--base", self.base, *(["--toy"] if self.is_toy else [])]
        options += ["--layers", str(self.layers)] if self.layers else []
        evaluate = lambda: self._dopsd("whole", "evaluate_base", *RUN[:2])  # noqa: E731
        evaluation = {"evaluate the base": evaluate} if self.base == "a2d-0.6b" else {}
        return {
            "weights": lambda: self._own("weights", base, *options),
            "load": lambda: self._own("load", base),
            "prepare": self._prepare,
            "sample": lambda: self._own("sample", self.folder / "whole" / "params.yaml"),
            **evaluation,
            "train": self._train,
            "train, killed": self._killed,
            "train, resumed": self._resumed,
            "export": lambda: self._dopsd("whole", *export),
            "logits of the export": lambda: self._own("merged_logits", merged),
            "logits merged in memory": lambda: self._own("adapted_logits", base, str(adapter)),
        }

    def _own(self, step: str, *words: object) -> dict[str, Any]:
        """Run a function of full_size_steps.py."""
        script = str(ROOT / "benchmarks" / "full_size_steps.py")
        return measured([script, step, *map(str, words)], self.folder)

    def _dopsd(
        self, project: str, *words: str, until: Callable[[], bool] | None = None
    ) -> dict[str, Any]:
        return measured(["-m", "dopsd", *words], self.folder / project, until)

    def _prepare(self) -> dict[str, Any]:
        """Make the projects `whole` and `killed` with equal settings and data."""
        changes = [*CHANGES, f"model.path={self.folder / 'base'}"]
        changes += LONGER if self.base == "a2d-0.6b" else []
        changes += [f"train.lora.targets={SEVEN}"] if self.is_all_linear else []
        words = [word for change in changes for word in ("--set", change)]
        self._dopsd("whole", "params", *PROFILES[self.base], *words)
        figures = self._dopsd("whole", "prepare", "--task", "sudoku")
        shutil.copytree(self.folder / "whole", self.folder / "killed", dirs_exist_ok=True)
        return figures

    def _train(self) -> dict[str, Any]:
        """Train without a break; its checkpoints for resuming are not needed afterwards."""
        figures = self._dopsd("whole", "train", *RUN)
        shutil.rmtree(self.folder / "whole" / "work")
        return figures | self._adapter("whole")

    def _killed(self) -> dict[str, Any]:
        saved = self.folder / "killed" / "work"
        return self._dopsd(
            "killed", "train", *RUN, until=lambda: any(saved.glob("train-*/step-000001"))
        )

    def _resumed(self) -> dict[str, Any]:
        figures = self._dopsd("killed", "train", *RUN)
        shutil.rmtree(self.folder / "killed" / "work")
        return figures | self._adapter("killed")

    def _adapter(self, project: str) -> dict[str, Any]:
        digests = json.loads((self.folder / project / LAST / "digests.json").read_text())
        return {"adapter": digests["adapter_model.safetensors"]}

    def run(self) -> dict[str, Any]:
        """Make the steps that are missing, and return the figures of all."""
        done = self.folder / "steps.json"
        results: dict[str, Any] = json.loads(done.read_text()) if done.is_file() else {}
        for name, step in self.steps().items():
            if "seconds" not in results.get(name, {}):
                sys.stderr.write(f"full size: {name}\n")
                try:
                    results[name] = step()
                except Failed as failure:
                    results[name] = {"failed": str(failure)}
                done.write_text(json.dumps(results, indent=1) + "\n")
            sys.stderr.write(f"full size: {name}: {results[name]}\n")
            if "failed" in results[name]:
                break
        return results


def same(results: dict[str, Any], key: str, *steps: str) -> bool | None:
    """Return whether the steps gave the same value; None if one did not run."""
    values = [results.get(step, {}).get(key) for step in steps]
    return None if None in values else len(set(values)) == 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="for weights and results")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--base", choices=PROFILES, default="llada-8b")
    parser.add_argument("--layers", type=int, help="of a smaller model of the same width")
    parser.add_argument("--toy", action="store_true", help="two narrow layers, in a minute")
    parser.add_argument(
        "--all-linear", action="store_true", help="LLaDA: adapt all seven linear layers"
    )
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    results = Bench(a.folder.resolve(), a.base, a.layers, a.toy, a.all_linear).run()
    logits = ("logits of the export", "logits merged in memory")
    report = {
        "base": a.base,
        "layers": a.layers,
        "is_toy": a.toy,
        "all_linear": a.all_linear,
        "python": platform.python_version(),
        "steps": results,
        "resumed_like_whole": same(results, "adapter", "train", "train, resumed"),
        "export_like_memory": same(results, "logits", *logits),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    if a.out:
        a.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if report["resumed_like_whole"] and report["export_like_memory"] else 1)


if __name__ == "__main__":
    main()
