"""`dopsd launch`: run a stage, or all stages, on several machines."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from dopsd.cli.arguments import count, seed
from dopsd.cli.stages import DVC, PARALLEL
from dopsd.core.errors import Code
from dopsd.distributed import nodes

if TYPE_CHECKING:
    from dopsd.cli.arguments import Commands

COMMANDS = (*(name.replace("_", "-") for name in PARALLEL), *DVC)
DESCRIPTION = (
    "Run a command on several machines (nodes) that share this folder. Training and evaluations"
    " start launch.processes processes on each. Other stages run on the first. With `repro`, DVC"
    " runs on the first node and knows of everything."
)


def add_launch(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("launch", description=DESCRIPTION, help=DESCRIPTION)
    parser.add_argument("--nodes", type=count, metavar="N", help="machines in all")
    parser.add_argument(
        "--at-once",
        type=count,
        metavar="N",
        help="in place of --nodes, for `repro` on this machine: N runs of the matrix side by side,"
        " each on a GPU of its own (on launch.processes of them)",
    )
    parser.add_argument(
        "--backend",
        choices=nodes.BACKENDS,
        help="how this machine, the first, starts the others. local: on itself, to try. ssh: on"
        " --hosts. slurm: within a job of N nodes.",
    )
    parser.add_argument(
        "--hosts", metavar="A,B,...", help="for ssh: all N machines, this one first"
    )
    parser.add_argument(
        "--ssh", metavar="COMMAND", help="for ssh: the program and its options (default: ssh)"
    )
    parser.add_argument(
        "--port", type=count, help="port of the first machine where all meet (default: a free one)"
    )
    parser.add_argument(
        "--node",
        type=seed,
        metavar="K",
        help="in place of --backend: you start this line on every machine, with K from 0 to N - 1",
    )
    parser.add_argument(
        "--meet", metavar="HOST:PORT", help="with --node: the first machine, and a free port of it"
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="COMMAND",
        help=f"one of {', '.join(COMMANDS)}. Before options of its own write --",
    )


def begin(a: argparse.Namespace, main: Callable[[list[str]], int]) -> int:
    """Run the command on its machines, or `repro` with its runs side by side on this one."""
    if a.at_once is None:
        set_nodes(a)
        return main(a.words)
    others = (a.nodes, a.backend, a.hosts, a.ssh, a.port, a.node, a.meet)
    if a.words != ["repro"] or any(value is not None for value in others):
        raise Code.USAGE.error(
            f"launch: --at-once goes with `repro` alone: dopsd launch --at-once {a.at_once} repro"
        )
    from dopsd.pipeline.run.side_by_side import reproduce

    return reproduce(a.at_once)


def set_nodes(a: argparse.Namespace) -> None:
    """Describe the machines in the environment, for the command and the stages that it runs."""
    if a.nodes is None:
        raise Code.USAGE.error("launch: give --nodes, or --at-once for `repro`")
    if a.words[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise Code.USAGE.error(f"launch: {a.words[0]}: expected one of {known}")
    if (a.backend is None) == (a.node is None) or (a.node is None) != (a.meet is None):
        raise Code.USAGE.error("launch: give --backend, or both --node and --meet")
    if a.node is not None and (a.node >= a.nodes or not re.fullmatch(r"[^@]+:\d+", a.meet)):
        raise Code.USAGE.error(
            f"launch: expected --node below --nodes {a.nodes} and --meet HOST:PORT"
        )
    if a.node is not None and a.words[0] in DVC:
        raise Code.USAGE.error(
            f"launch: {a.words[0]} runs on one machine and starts the others: use --backend, or"
            " start one stage on every machine"
        )
    hosts = a.hosts.split(",") if a.hosts else []
    if (a.backend == "ssh") != bool(hosts) or (hosts and len(hosts) != a.nodes):
        raise Code.USAGE.error(
            f"launch: --hosts: expected {a.nodes} names with --backend ssh, the first of them this"
            " machine"
        )
    values = {nodes.COUNT: a.nodes, nodes.BACKEND: a.backend, nodes.HOSTS: a.hosts}
    values |= {nodes.SSH: a.ssh, nodes.PORT: a.port, nodes.NODE: a.node, nodes.MEETING: a.meet}
    os.environ |= {name: str(value) for name, value in values.items() if value is not None}


def is_on_nodes() -> bool:
    """Return whether `dopsd launch` asked for several machines."""
    return os.environ.get(nodes.COUNT, "1") != "1"
