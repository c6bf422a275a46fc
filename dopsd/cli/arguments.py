"""What commands share: their parser, the types of their arguments, and the cell of a run."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dopsd.core.errors import DopsdError, readable
from dopsd.core.settings import LARGEST

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

MAX_TEMPERATURE = 100


class Parser(argparse.ArgumentParser):
    """Also of every command."""

    def error(self, message: str) -> NoReturn:
        super().error(readable(message))


def command(
    commands: Commands, name: str, help_text: str, *aliases: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, aliases=aliases, help=help_text, description=f"{help_text}.")
    parser.add_argument(
        "--params", type=Path, default=Path("params.yaml"), help="settings (default: params.yaml)"
    )
    return parser


def cell_argument(parser: argparse.ArgumentParser, name: str) -> None:
    kind = seed if name == "seed" else str
    parser.add_argument(
        f"--{name}",
        type=kind,
        help=f"{name} of the run (default: the first of params.yaml's matrix)",
    )


def _whole(text: str, lowest: int) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or not lowest <= (value := int(text)) <= LARGEST:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from {lowest} to {LARGEST}, found {text!r}"
        )
    return value


def count(text: str) -> int:
    return _whole(text, 1)


def seed(text: str) -> int:
    return _whole(text, 0)


def temperature(text: str) -> float:
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
    """Said before the heavy imports."""
    if folder and not (folder / "adapter_config.json").is_file():
        raise DopsdError(
            f"--adapter {folder}: no adapter_config.json in it; expected a checkpoint folder of"
            " `dopsd train`"
        )
