"""Parser of the command line: errors of one line with a suggestion, and completion for shells."""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from dopsd.core.errors import Code, readable, unknown, with_code
from dopsd.core.progress import refuse_cut_output

SHELLS = ("bash", "zsh", "tcsh")


class Formatter(argparse.HelpFormatter):
    """Help in which each sentence begins a line; texts of several lines stay as they are."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        sentences = re.split(r"(?<=\.) +", text)
        return [line for sentence in sentences for line in textwrap.wrap(sentence, width)]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = self._split_lines(text, width - len(indent))
        return text if "\n" in text else "\n".join(indent + line for line in lines)


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line and safe to print; commands inherit it."""

    def error(self, message: str) -> NoReturn:
        """Print `message` with unprintable characters replaced, then exit with 2."""
        mark = "" if message.endswith("?") else ";"
        line = f"{self.prog}: {readable(message)}{mark} see `{self.prog} --help`"
        self.exit(2, with_code(line, Code.USAGE) + "\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End as argparse does, but not with 0 if the disk behind a help text was full."""
        if status == 0:
            refuse_cut_output()
        super().exit(status, message)

    # argparse has one overload for each type of namespace; here there is only one
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the words, and refuse unknown options before anything else."""
        words = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown(self._options_of(words))
        parsed, rest = super().parse_known_args(words, namespace)
        if rest:
            self.error(f"{' '.join(rest)}: too many arguments")
        return parsed, rest

    def _options_of(self, words: Sequence[str]) -> Iterable[str]:
        """Return the long options among the words that are for this parser and no command of it."""
        is_option = (lambda word: word.startswith("-")) if self._subparsers else "--".__ne__
        return (
            word.partition("=")[0]
            for word in takewhile(is_option, words)
            if word.startswith("--") and " " not in word and "-" in self.prefix_chars
        )

    def _refuse_unknown(self, options: Iterable[str]) -> None:
        known = self._option_string_actions
        for option in options:
            if not any(name.startswith(option) for name in known):
                self.error(f"{option}: unknown option{_suggestion(option, known)}")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is not one of the choices, and suggest a similar one."""
        if action.choices is None or value in action.choices:
            return
        if action.dest == "command":
            message = f"{value}: unknown command{_suggestion(str(value), commands())}"
        else:
            name = "/".join(action.option_strings) or action.metavar or action.dest
            message = unknown(f"{name} {value}", action.choices)
        raise argparse.ArgumentError(None, message)


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the most similar name, or nothing."""
    similar = get_close_matches(name[:80], list(known), 1)
    return f"; did you mean {similar[0]}?" if similar else ""


class PrintCompletion(argparse.Action):
    """Print the script that completes commands, options and their values in a shell."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Print the script for the shell `values` and end."""
        import shtab

        _add_values(parser, {Path: shtab.FILE, "FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY})
        print(shtab.complete(parser, shell=str(values)))
        parser.exit(0)


def _add_values(parser: argparse.ArgumentParser, paths: dict[object, object]) -> None:
    """Tell shtab which options take files, folders, or the name of a task, method or profile.

    The overview hides the options and the list of commands of `dopsd` itself; shtab needs them.

    Args:
        paths: shtab's marks of files and folders, by the metavar or type of an option.
    """
    from dopsd.algorithms.registry import ALGORITHMS
    from dopsd.config import profiles
    from dopsd.tasks.registry import TASKS

    names = {"task": TASKS.names, "method": ALGORITHMS.names, "profile": profiles.names()}
    for action in parser._actions:
        action.help = action.dest.replace("_", " ")
    subparsers = next(action.choices for action in parser._actions if action.dest == "command")
    for subparser in dict(subparsers or ()).values():
        for action in subparser._actions:
            action.choices = action.choices or names.get(action.dest)
            path = paths.get(action.metavar) or paths.get(action.type)
            if path:
                vars(action)["complete"] = path  # where shtab reads it


GROUPS = {
    "Pipeline": {
        "init": "start a project of your own in a new folder",
        "rehearse": "estimate the real cost, then run every stage on a tiny model",
        "run": "run all stages with Prefect (or --local), and watch them",
        "attach": "watch a run that is in progress",
        "cancel": "stop a run, and let training save",
        "repro": "run the stages that changed",
        "train": "post-train one run, or continue it (a stage of `repro`)",
        "restore": "bring back the results that a run has replaced",
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
    "adapt": "turn an autoregressive model into the base model",
    "evaluate-base": "score the base model on the selection split",
    "record": "record the base's order of writing, for method d3llm",
    "select": "copy the best checkpoint",
    "test": "score base and best checkpoint on the test split",
    "report": "draw the figures of a run",
    "commit": "record results that were made without DVC",
}
TITLE = "Post-train diffusion language models by on-policy self-distillation (d-OPSD)."
CLOSING = """\
Settings are in params.yaml.
dopsd COMMAND --help explains a command.
--version prints the version.
--print-completion SHELL prints a script that completes commands with Tab."""


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
