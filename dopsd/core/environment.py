"""Environment variables that processes of dopsd and DVC exchange, and what all of them need."""

import os
import pwd

from dopsd.core.errors import Code

DVC_STAGE = "DVC_STAGE"  # set by DVC for its stages
DVC_PID = "DOPSD_DVC"  # set for stages: process id of the DVC that runs them
RESTORE_ONLY = "DOPSD_RESTORE_ONLY"  # set while results are collected: stages must not compute
LOOPBACK = ("127.0.0.1", "localhost", "::1")
NO_PROXY = ("no_proxy", "NO_PROXY")
RANKED = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT")  # a launcher sets these, and
MEETING = "MASTER_ADDR"
MPI = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # accelerate reads them too


def proxies() -> list[str]:
    """Return the names of the variables that send requests to a proxy."""
    return [
        name
        for name, value in os.environ.items()
        if value and name.lower().endswith("_proxy") and name not in NO_PROXY
    ]


def bypass_proxies(*hosts: str) -> None:
    """Keep requests to this machine out of proxies, here and in processes that this one starts."""
    named = ",".join(os.environ.get(name, "") for name in NO_PROXY).replace(" ", "").split(",")
    if proxies():
        names = dict.fromkeys(filter(None, (*named, *LOOPBACK, *hosts)))
        os.environ.update(dict.fromkeys(NO_PROXY, "*" if "*" in names else ",".join(names)))


def refuse_while_collecting(stage: str) -> None:
    """Refuse to compute a stage while results of other machines are collected."""
    if os.environ.get(RESTORE_ONLY) and stage not in ("prepare", "pretrain", "adapt"):
        raise Code.NO_RESULTS.error(
            f"{stage}: no machine has sent a result of these settings, data and code to DVC's"
            " remote; run it there, with the same commit, or here with `dopsd repro`"
        )


def name_user() -> None:
    """Name a user whose id has no name, as in containers, by the id: DVC fails without a name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        if not any(map(os.environ.get, ("LOGNAME", "USER", "LNAME", "USERNAME"))):
            os.environ["USER"] = str(os.getuid())
        os.environ["HOME"] = os.environ.get("HOME") or "/"  # as Docker


def refuse_leftovers() -> None:
    """Refuse variables of a launcher that did not start this process, such as WORLD_SIZE alone.

    Those of `accelerate launch` are dropped: dopsd sets all of them itself.
    """
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]
    found = {name: os.environ[name] for name in (*RANKED, *MPI) if os.environ.get(name)}
    fault = [
        f"{name}={value} is no number" for name, value in found.items() if not value.isdecimal()
    ]
    sizes = {name: int(found[name]) for name in ("WORLD_SIZE", *MPI) if name in found and not fault}
    name, size = max(sizes.items(), key=lambda pair: pair[1], default=("WORLD_SIZE", 1))
    missing = [each for each in (*RANKED, MEETING) if not os.environ.get(each)]
    if size > 1 and missing:
        fault = [
            f"{name} is {size}, but {', '.join(missing)} {'are' if missing[1:] else 'is'} not set"
        ]
    elif not fault and int(found.get("RANK", "0")) >= size:
        name, fault = "RANK", [f"RANK is {found.get('RANK', 0)}, and WORLD_SIZE is {size}"]
    if fault:
        raise Code.PROCESSES.error(
            f"{fault[0]}: left over by a launcher? `unset {name}`, or start with torchrun or"
            " launch.processes"
        )
