"""`make integration-network` (root, openssh-server): `dopsd launch` through a real sshd."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, write_params
from ports import free_port
from waiting import until

from dopsd.core.tensor_files import load_tensors

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
BOUND = 900
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
CLIENT = """
Host node2
  HostName 127.0.0.1
  Port {port}
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd needs root"),
    pytest.mark.skipif(SSHD is None, reason="needs sshd (Debian: apt-get install openssh-server)"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """A folder with `client`, the configuration with which ssh reaches host node2."""
    folder, port = tmp_path / "ssh", free_port()
    folder.mkdir()
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it, and only a service manager makes it
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(words, check=True)
    for name, text in (("server", SERVER), ("client", CLIENT)):
        (folder / name).write_text(text.format(folder=folder, port=port))
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {key}")
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen([str(SSHD), "-D", "-e", "-f", folder / "server"], stderr=log)
    until(lambda: "listening" in (folder / "log").read_text() or daemon.poll() is not None)
    assert daemon.poll() is None, (folder / "log").read_text()
    yield folder
    daemon.terminate()
    daemon.wait(60)


def launch(server: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dopsd", "launch", "--nodes", "2", "--backend", "ssh"]
    command += ["--hosts", "127.0.0.1,node2", "--ssh", f"ssh -F {server / 'client'}", *words]
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=BOUND)


def test_two_hosts_train_and_evaluate_and_an_unknown_host_key_is_refused(project, server):
    write_params(train__updates=2, train__prompts_per_collect=3)
    refused = launch(server, "train")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "launch: node2: " in refused.stderr and "Host key verification failed" in refused.stderr
    assert not Path("work").exists() or not list(Path("work").glob("train-*"))
    (server / "known").rename(server / "known_hosts")
    trained = launch(server, "train")
    assert trained.returncode == 0, trained.stderr
    assert load_tensors(Path("runs/sudoku/d_opsd/0/train/step-000002/adapter_model.safetensors"))
    evaluated = launch(server, "--", "evaluate", "--task", "sudoku")
    assert evaluated.returncode == 0, evaluated.stderr
    shares = {path.name for path in Path("work/eval").glob("*/answers.*.jsonl")}
    assert shares == {"answers.0.jsonl", "answers.1.jsonl"}
