"""The page that `dopsd --help` prints: commands in groups, with one short line each."""

from __future__ import annotations

GROUPS = {
    "Pipeline": {
        "init": "start a project of your own in a new folder",
        "rehearse": "estimate the real cost, then run every stage on a tiny model",
        "run": "run all stages with Prefect (or --local), and watch them",
        "attach": "watch a run that is in progress",
        "cancel": "stop a run; training saves",
        "repro": "run the stages that changed",
        "train": "post-train one run, or continue it (a stage of `repro`)",
        "clean": "remove training folders that no run would continue",
    },
    "Look": {
        "summary": "print accuracy, cost and paths of finished runs",
        "sample": "print one answer, denoised step by step",
        "evaluate": "score checkpoints of a run, or any other on any split",
        "score": "score generations from files",
        "verify-teacher": "measure pass@k and self-teacher accuracy of the base",
    },
    "Compare": {
        "compare": "put finished runs side by side, with paired intervals",
        "ablate": "train a method with one setting changed at a time",
        "baselines": "copy published accuracies to MLflow, next to your runs",
    },
    "Settings": {
        "params": "write the settings of a profile, or change some keys",
        "check": "report every error in params.yaml",
        "estimate": "estimate hours and memory of a profile on GPUs",
        "models": "list bases that can be used, with licence and size",
        "inspect": "say what a folder or a name on the hub is, and what is missing",
        "explain": "say what an error code means, and what to do",
        "task": "check a task of your own, or list all tasks",
    },
    "Machine and servers": {
        "doctor": "check this machine, its GPU and its servers, with advice",
        "launch": "run a command on several machines",
        "publish": "copy finished runs and checkpoints to MLflow",
    },
    "Share": {
        "export": "write a trained model for plain transformers",
        "push": "upload a checkpoint to the Hugging Face hub",
    },
}
STAGES = {  # commands that DVC and the flows run; the overview only names them
    "prepare": "write the problems of every split",
    "pretrain": "train the embedded base model",
    "evaluate-base": "score the base model on the selection split",
    "record": "record the base's order of writing, for method d3llm",
    "select": "copy the best checkpoint",
    "test": "score base and best checkpoint on the test split",
    "report": "draw the figures of a run",
    "commit": "record results that were made without DVC",
}
TITLE = "Post-train diffusion language models by on-policy self-distillation (d-OPSD)."
CLOSING = """\
dopsd COMMAND --help explains each. Settings are in params.yaml.
--version prints the version, --print-completion SHELL a script for Tab."""


def commands() -> list[str]:
    """Return the names of all commands that a person may type."""
    return [name for group in (*GROUPS.values(), STAGES) for name in group]


def overview() -> str:
    """Return the description of `dopsd --help`: a title, then every group with its commands."""
    lines = [TITLE]
    for group, summaries in GROUPS.items():
        lines += ["", group]
        lines += [f"  {name:15} {summary}" for name, summary in summaries.items()]
    lines += ["", "Stages (`dopsd repro` runs them)", f"  {' '.join(STAGES)}"]
    return "\n".join(lines)
