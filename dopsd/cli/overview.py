"""The page that `dopsd --help` prints: every command in one group, with one short line each."""

from __future__ import annotations

GROUPS = {
    "Run": {
        "run": "run all stages with Prefect (or --local), and watch them",
        "attach": "watch a run that is in progress",
        "cancel": "stop a run; training saves",
        "init": "start a project of your own in a new folder",
        "repro": "run the stages that changed",
        "ablate": "train a method with one setting changed at a time",
        "commit": "record results that were made without DVC",
    },
    "Stages": {
        "prepare": "write the problems of every split",
        "pretrain": "train the embedded base model",
        "evaluate-base": "score the base model on the selection split",
        "record": "record the base's order of writing, for method d3llm",
        "train": "post-train an adapter",
        "evaluate": "score checkpoints on the selection split",
        "select": "copy the best checkpoint",
        "test": "score base and best checkpoint on the test split",
        "report": "draw the figures of a run",
    },
    "Look": {
        "summary": "print accuracy, cost and paths of finished runs",
        "compare": "put finished runs side by side, with paired intervals",
        "sample": "print one answer, denoised step by step",
        "score": "score generations from files",
        "verify-teacher": "measure pass@k and self-teacher accuracy of the base",
    },
    "Settings": {
        "params": "write the settings of a profile, or change some keys",
        "check": "report every error in params.yaml",
        "explain": "say what an error code means, and what to do",
        "task": "check a task of your own, or list all tasks",
    },
    "Share": {
        "publish": "copy finished runs and checkpoints to MLflow",
        "baselines": "copy published accuracies to MLflow",
        "export": "write base and adapter as one plain model",
        "push": "upload a checkpoint to the Hugging Face hub",
    },
    "Machine": {
        "doctor": "check this machine, with advice",
        "rehearse": "run every stage on a tiny model, then estimate the real cost",
        "clean": "remove training folders that no run would continue",
    },
}
TITLE = "Post-train diffusion language models by on-policy self-distillation (d-OPSD)."
CLOSING = "dopsd COMMAND --help explains each. Settings are in params.yaml. Also: --version"


def overview() -> str:
    """Return the description of `dopsd --help`: a title, then every group with its commands."""
    lines = [TITLE]
    for group, commands in GROUPS.items():
        lines += ["", group]
        lines += [f"  {name:15} {summary}" for name, summary in commands.items()]
    return "\n".join(lines)
