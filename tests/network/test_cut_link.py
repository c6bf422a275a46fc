"""`make integration-network` (root, iproute2): training when the link of two nodes is cut."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, write_params

from dopsd.core.fingerprint import sha256
from dopsd.models.adapter_files import ADAPTER
from dopsd.training import checkpoint

BOUND = 900  # seconds until a test gives up, on a machine with other work
CUT = 60  # seconds that the link stays down
OUT = Path("runs/sudoku/d_opsd/0/train")
ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (iproute2)"),
]


class Network:
    """Two namespaces and the link between them."""

    def __init__(self) -> None:
        self.names = {node: f"dopsd-{os.getpid()}-{node}" for node in ADDRESSES}
        self.processes: list[subprocess.Popen[str]] = []

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def make(self) -> None:
        first, second = self.names.values()
        self.ip("netns", "add", first)
        self.ip("netns", "add", second)
        peer = ("type", "veth", "peer", "name", "link0", "netns", second)
        self.ip("link", "add", "link0", "netns", first, *peer)
        for node, name in self.names.items():
            self.ip("-n", name, "addr", "add", f"{ADDRESSES[node]}/24", "dev", "link0")
            self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", name, "link", "set", "link0", "up")

    def link(self, state: str) -> None:
        self.ip("-n", self.names["a"], "link", "set", "link0", state)

    def remove(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)

    def train(self) -> list[subprocess.Popen[str]]:
        """Start the same line on both nodes; output-NODE has what each prints."""
        started = []
        for number, (node, name) in enumerate(self.names.items()):
            meeting = ["--node", str(number), "--meet", f"{ADDRESSES['a']}:29500"]
            command = [sys.executable, "-m", "dopsd", "launch", "--nodes", "2", *meeting, "train"]
            env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
            env["GLOO_SOCKET_IFNAME"] = "link0"
            with Path(f"output-{node}").open("w") as output:
                how = {"env": env, "stdout": output, "stderr": output, "start_new_session": True}
                started.append(subprocess.Popen(["ip", "netns", "exec", name, *command], **how))
        self.processes += started
        return started


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    try:
        made.make()
        yield made
    finally:
        made.remove()


def test_a_cut_of_a_minute_delays_and_after_a_cut_for_good_a_rerun_continues(
    project: Path, network: Network, capsys: pytest.CaptureFixture[str]
):
    """The rerun continues from the last periodic checkpoint."""
    settings = {"train__updates": 60, "train__checkpoint_every": 3}
    write_params(**settings, train__prompts_per_collect=3)
    assert ends(network.train()) == [0, 0], said()
    whole = digests()

    set_aside("whole")
    processes = network.train()
    until(lambda: logged() >= 4)
    network.link("down")
    time.sleep(CUT)
    stood = logged()
    network.link("up")
    raised = time.monotonic()
    until(lambda: logged() > stood)
    resumed_after = time.monotonic() - raised
    assert ends(processes) == [0, 0], said()
    assert digests() == whole

    set_aside("minute")
    write_params(**settings, train__prompts_per_collect=3, launch__timeout=20)
    processes = network.train()
    until(lambda: logged() >= 4)
    network.link("down")
    cut = time.monotonic()
    assert ends(processes) == [75, 75], said()
    ended_after = time.monotonic() - cut
    for node in ADDRESSES:
        line = Path(f"output-{node}").read_text()
        assert line.count("another process of the run ended or does not answer") == 1, line
        assert "Traceback" not in line
    (folder,) = Path("work").glob("train-*")
    saved = [c.update for c in checkpoint.checkpoints(folder)]
    assert saved and 3 <= saved[-1] < 60
    network.link("up")
    assert ends(network.train()) == [0, 0], said()
    assert f"continuing after update {saved[-1]}" in said()
    assert digests() == whole
    with capsys.disabled():
        print(f"\nlink down for {CUT} s: next update {resumed_after:.1f} s after it was up again")
        print(f"link down for good, launch.timeout 20: both nodes ended after {ended_after:.1f} s")


def ends(processes: list[subprocess.Popen[str]]) -> list[int]:
    return [process.wait(BOUND) for process in processes]


def said() -> str:
    return "".join(Path(f"output-{node}").read_text() for node in ADDRESSES)


def logged() -> int:
    return sum(len(p.read_text().splitlines()) for p in Path("work").glob("train-*/log.jsonl"))


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND
    while not holds():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


def digests() -> dict[str, str]:
    return {path.parent.name: sha256(path) for path in sorted(OUT.glob(f"*/{ADAPTER}"))}


def set_aside(name: str) -> None:
    for path in Path("work").glob("train-*"):
        path.rename(path.with_name(name))
