"""Command push: upload a checkpoint to the Hugging Face hub."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.cli.arguments import cell_argument, command, require_adapter_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from dopsd.cli.arguments import Commands
    from dopsd.config.params import Params


def _name(text: str) -> str:
    """Parse a name of the hub: letters, digits, dots, dashes and one slash at most."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a name of the hub, found {text!r}")
    return text


def add_push(commands: Commands) -> None:
    """Add push."""
    parser = command(
        commands,
        "push",
        "Upload an adapter, or base and adapter as one model, with a model card, to the Hugging"
        " Face hub. The token is that of HF_TOKEN or of `hf auth login`.",
    )
    parser.add_argument("repo", type=_name, metavar="USER/NAME", help="model repository of the hub")
    for name in ("task", "method", "seed"):
        cell_argument(parser, name)
    parser.add_argument(
        "--adapter",
        type=Path,
        metavar="FOLDER",
        help="checkpoint folder (default: the run's selected one)",
    )
    parser.add_argument(
        "--merged", action="store_true", help="upload base and adapter as one model"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="precision of merged weights; bfloat16 rounds small changes away (default: float32)",
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--private", action="store_true", help="only you see a new repository (default)"
    )
    who.add_argument("--public", action="store_true", help="everyone sees a new repository")
    parser.add_argument(
        "--revision", default="main", metavar="BRANCH", help="branch to commit to (default: main)"
    )
    parser.add_argument("--message", metavar="TEXT", help="commit message")
    _card_arguments(parser)
    parser.add_argument(
        "--no-report",
        action="store_true",
        help="do not upload the run's report, which shows ten test problems with answers",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the files and their sizes, and send nothing"
    )


def _card_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--base-model",
        type=_name,
        metavar="USER/NAME",
        help="name of the base on the hub, for the card (default: left out)",
    )
    parser.add_argument(
        "--license",
        type=_name,
        metavar="NAME",
        help="licence for the card, as the hub spells it, such as apache-2.0 (default: left out)",
    )


def _push(a: argparse.Namespace, params: Params) -> None:
    require_adapter_config(a.adapter)
    from dopsd.pipeline.push import PushRequest, push

    push(
        PushRequest(
            a.repo,
            params.run(a.task, a.method, a.seed),
            params,
            a.adapter,
            is_merged=a.merged,
            dtype=a.dtype,
            is_private=not a.public,
            revision=a.revision,
            message=a.message,
            base_model=a.base_model,
            license=a.license,
            has_report=not a.no_report,
            is_dry=a.dry_run,
        )
    )


WITH_PARAMS: dict[str, Callable[[argparse.Namespace, Params], None]] = {"push": _push}
