"""The machines ("nodes") that run one stage: the same command on each, which meet at the first.

`dopsd launch` describes them in the environment, so that a stage which DVC starts finds them too.
The first node starts the others by the backend: processes of this machine, ssh, or srun within a
Slurm job. Or a person starts the same line on every node (`--node`, `--meet`).
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dopsd.core.environment import DVC_PID, DVC_STAGE
from dopsd.core.errors import TEMPORARY, Code, DopsdError
from dopsd.core.processes import end_with_input, shell_status

BACKENDS = ("local", "ssh", "slurm")
COUNT, BACKEND, HOSTS = "DOPSD_NODES", "DOPSD_BACKEND", "DOPSD_HOSTS"
SSH, PORT = "DOPSD_SSH", "DOPSD_PORT"
GUARDED = "DOPSD_GUARDED"  # set on nodes that another one started: they end with their input
NODE, MEETING = "DOPSD_NODE", "DOPSD_MEETING"  # index of this node, and HOST:PORT of the first
PASSED = ("DOPSD_", "GLOO_", "HF_", "MLFLOW_", "NCCL_", "OMP_", "PYTHON", "TORCH_")
KEPT = (BACKEND, HOSTS, SSH, PORT, DVC_STAGE, DVC_PID)  # mean something on the first node alone
OTHER_NODE = Path(__file__).with_name("other_node.py")
LEAVING = 300  # seconds that the other nodes have to end after a success


def gpus() -> list[str]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Does not import torch.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    if shutil.which("nvidia-smi") is None:
        return []
    output = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False, encoding="utf-8"
    ).stdout
    return [
        str(i)
        for i, line in enumerate(line for line in output.splitlines() if line.startswith("GPU "))
    ]


@dataclass(frozen=True)
class Nodes:
    """All nodes of a stage, as one of them sees them."""

    count: int  # number of nodes
    index: int  # number of this node, from 0
    endpoint: str  # HOST:PORT of the first node, where all meet
    backend: str | None  # how this node starts the others; None: they are started elsewhere
    hosts: tuple[str, ...] = ()  # names of the nodes for `ssh`, the first one included

    def start_others(self, words: Sequence[str]) -> list[subprocess.Popen[bytes]]:
        """Start `dopsd <words>` on the other nodes; return what to wait for."""
        command = [sys.executable, "-I", str(OTHER_NODE), *words]
        if self.backend == "local":
            commands = [command] * (self.count - 1)
        elif self.backend == "ssh":
            shell = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(command)}"
            commands = [[*_ssh(), host, shell] for host in self.hosts[1:]]
        elif self.backend == "slurm":
            step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
            commands = [[*step, f"--relative={i}", *command] for i in range(1, self.count)]
        else:
            commands = []
        # their own group: a Ctrl-C reaches this node's processes, which tell the others to stop
        others = [
            subprocess.Popen(line, stdin=subprocess.PIPE, start_new_session=True)
            for line in commands
        ]
        for i, process in enumerate(others, 1):
            self._send_environment(i, process)
        return others

    def _send_environment(self, index: int, process: subprocess.Popen[bytes]) -> None:
        """Write the first line that `other_node` reads."""
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
        own = {NODE: str(index), MEETING: self.endpoint, GUARDED: "1"}
        values = passed | dict.fromkeys(KEPT, None) | own
        if process.stdin:
            with suppress(BrokenPipeError):  # the process has ended
                os.write(process.stdin.fileno(), json.dumps(values).encode() + b"\n")


def of_environment() -> Nodes | None:
    """Return the nodes that `dopsd launch` chose; None: this machine alone."""
    count = int(os.environ.get(COUNT, "1"))
    if count == 1:
        return None
    if MEETING in os.environ:
        return Nodes(count, int(os.environ[NODE]), os.environ[MEETING], None)
    backend, hosts = os.environ[BACKEND], tuple(os.environ.get(HOSTS, "").split(",")[:count])
    if backend == "ssh":
        for host in hosts[1:]:
            _check(host)
    names = {"local": "127.0.0.1", "ssh": hosts[0].rpartition("@")[2]}  # without the user of ssh
    first = names.get(backend) or socket.gethostname()
    return Nodes(count, 0, f"{first}:{os.environ.get(PORT) or free_port()}", backend, hosts)


def _ssh() -> list[str]:
    """Return the words before a host: ssh that asks nothing, so that an unknown host fails."""
    return [*shlex.split(os.environ.get(SSH, "ssh")), "-o", "BatchMode=yes"]


def _check(host: str) -> None:
    test = shlex.join(["test", "-x", sys.executable, "-a", "-d", str(Path.cwd())])
    process = subprocess.run(
        [*_ssh(), host, test],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    if process.returncode:
        said = " ".join(process.stderr.split())[-200:]
        reason = said or f"{Path.cwd()} or {sys.executable} is not there"
        raise Code.PROCESSES.error(
            f"launch: {host}: {reason}; every host needs this folder and this Python, and ssh must"
            " reach it without a question (its host key in known_hosts, a key of yours)"
        )


def free_port() -> int:
    """Return a free port that the kernel gives to nobody else for a minute.

    The end that closes first keeps it (TIME_WAIT); SO_REUSEADDR lets a server listen there.
    """
    with socket.socket() as listener, socket.socket() as caller:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", 0))
        listener.listen()
        port: int = listener.getsockname()[1]
        caller.connect(("127.0.0.1", port))
        listener.accept()[0].close()
        return port


def end_with_first_node() -> None:
    """End this process as by SIGTERM when its input ends, if the first node started it."""
    if os.environ.pop(GUARDED, ""):
        end_with_input(signal.SIGTERM)


def end_others(others: list[subprocess.Popen[bytes]], status: int, saving: float) -> int:
    """Wait for the other nodes and return the first status that is not 0.

    Args:
        saving: seconds that they have to save if this node failed.
    """
    if status == 0:
        _wait(others, LEAVING)
    for process in others:
        if process.stdin:
            process.stdin.close()
    _wait(others, saving)
    for process in others:
        process.kill()  # does nothing to a process that has ended
        process.wait()
    return next(filter(None, (status, *(shell_status(each.returncode) for each in others))), 0)


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until all processes have ended, at most so long."""
    end = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0, end - time.monotonic()))


@contextmanager
def meeting(
    nodes: Nodes, others: Sequence[subprocess.Popen[bytes]], timeout: int
) -> Iterator[None]:
    """Wait until all nodes have met, and keep the port of the first open inside."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, _, port = nodes.endpoint.rpartition(":")
    end = time.monotonic() + timeout

    def wait(has_happened: Callable[[], bool]) -> None:
        while not has_happened():
            for i, process in enumerate(others, 1):
                if process.poll() is not None:
                    raise _ended(nodes.hosts[i] if nodes.hosts else f"node {i}", process)
            if time.monotonic() > end:
                raise unreachable(nodes.endpoint, timeout)
            time.sleep(0.2)

    is_first = nodes.index == 0
    wait(lambda: is_first or _is_open(host, int(port)))
    store = TCPStore(host, int(port), is_master=is_first, wait_for_workers=False, multi_tenant=True)
    store.set(f"met/{nodes.index}", "")
    wait(lambda: store.check([f"met/{i}" for i in range(nodes.count)]))
    yield


def _is_open(host: str, port: int) -> bool:
    """Return whether a connection to the port succeeds."""
    with suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


def _ended(name: str, process: subprocess.Popen[bytes]) -> DopsdError:
    """Return the error of a node that ended at its start."""
    code = shell_status(process.returncode)
    return Code.PROCESSES.error(
        f"launch: {name}: ended with exit code {code} before the nodes met; its last lines say why",
        code or TEMPORARY,
    )


def unreachable(endpoint: str, timeout: int, cause: Exception | None = None) -> DopsdError:
    """Return the error of nodes that did not meet."""
    line = (
        f"not all nodes met at {endpoint} within {timeout} s (launch.timeout), or one ended; start"
        " as many as --nodes says, and let the network pass this port"
    )
    if is_in_use(cause):
        line = f"{endpoint} is in use by another program; name a free port (--meet or {PORT})"
    return Code.PROCESSES.error(f"launch: {line}", TEMPORARY)


def is_in_use(cause: Exception | None) -> bool:
    """Return whether an error of torch's store says that another program has its port."""
    return "EADDRINUSE" in str(cause)
