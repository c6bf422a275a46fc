"""Argument types and common options of all commands."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dopsd.core.errors import Code
from dopsd.core.settings import LARGEST

if TYPE_CHECKING:
    from dopsd.cli.parser import Parser

    Commands = argparse._SubParsersAction[Parser]

MAX_TEMPERATURE = 100


def command(
    commands: Commands, name: str, description: str, *aliases: str
) -> argparse.ArgumentParser:
    """Add a command that reads params.yaml, and return its parser."""
    # shells show `help` beside the name; a command without it, as `follow`, is not completed
    parser = commands.add_parser(name, aliases=aliases, description=description, help=description)
    parser.add_argument(
        "--params",
        type=Path,
        default=Path("params.yaml"),
        metavar="FILE",
        help="settings file (default: params.yaml)",
    )
    return parser


def cell_argument(parser: argparse.ArgumentParser, name: str) -> None:
    """Add --task, --method or --seed, which name one run of params.yaml's matrix."""
    kind = seed if name == "seed" else str
    parser.add_argument(
        f"--{name}", type=kind, help=f"{name} of the run (default: first of matrix.{name}s)"
    )


def block_size_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --block-size; `default` says where it comes from without the option."""
    parser.add_argument(
        "--block-size",
        type=count,
        metavar="N",
        help=f"tokens of a block of attention, as model.block_size (default: {default})",
    )


def set_argument(parser: argparse.ArgumentParser) -> None:
    """Add --set, whose values are in `changes`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="changes",
        help="change one key, such as train.updates=50. May be repeated.",
    )


def _whole(text: str, lowest: int) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or not lowest <= (value := int(text)) <= LARGEST:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from {lowest} to {LARGEST}, found {text!r}"
        )
    return value


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    return _whole(text, 1)


def seed(text: str) -> int:
    """Parse a whole number of at least 0."""
    return _whole(text, 0)


def temperature(text: str) -> float:
    """Parse a sampling temperature; 0 means greedy."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < MAX_TEMPERATURE:
        raise argparse.ArgumentTypeError(
            f"expected a number from 0 to {MAX_TEMPERATURE}, found {text!r}"
        )
    return value


def require_adapter_config(folder: Path | None) -> None:
    """Refuse an --adapter folder that holds no checkpoint, before anything heavy is imported."""
    from dopsd.models.adapter_files import ADAPTER_CONFIG, has_all_weights

    if folder and not ((folder / ADAPTER_CONFIG).is_file() or has_all_weights(folder)):
        raise Code.NO_ADAPTER.error(
            f"--adapter {folder}: no {ADAPTER_CONFIG}; expected a checkpoint folder of"
            " `dopsd train`"
        )
