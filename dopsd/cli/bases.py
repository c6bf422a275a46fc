"""Commands models and inspect: which bases there are, and whether one can be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.cli.arguments import block_size_argument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from dopsd.cli.arguments import Commands


def add_bases(commands: Commands) -> None:
    """Add models and inspect."""
    description = (
        "List published checkpoints that can be a base, and what each architecture supports."
    )
    commands.add_parser("models", description=description, help=description)
    description = (
        "Say what a folder or a name on the hub is, and whether it can be a base; no weights are"
        " loaded."
    )
    parser = commands.add_parser("inspect", description=description, help=description)
    parser.add_argument(
        "base", metavar="BASE", help="a checkpoint in hub format, or organization/name on the hub"
    )
    block_size_argument(parser, "what config.json says")


def _models(_: argparse.Namespace) -> None:
    from dopsd.pipeline.bases import list_bases

    list_bases()


def _inspect(a: argparse.Namespace) -> None:
    from dopsd.pipeline.bases import inspect

    inspect(a.base, a.block_size)


FREE: dict[str, Callable[[argparse.Namespace], None]] = {"models": _models, "inspect": _inspect}
