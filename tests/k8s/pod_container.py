"""A container of a pod's spec as processes of this machine, in namespaces of its own.

Its first process has id 1, so that all others die with it and signals without a handler do nothing.
It has the Dockerfile's user, no capability, the spec's mounts, and a root folder that is read-only.
Programs are those of this machine and of the running Python's environment: there are no images.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from composed import image_programs

PROGRAMS = ("unshare", "nsenter", "setpriv", "chroot", "mount", "ip", "openssl")
SYSTEM = ("usr", "bin", "sbin", "lib", "lib64")  # of this machine, read-only
USER = "10001"  # of the Dockerfile, and of all pods
PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = {"PATH": PATH, "HOME": "/home/dopsd", "PYTHONUNBUFFERED": "1"}  # of the image
UNPRIVILEGED = (
    *("setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={USER}"),
    *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
    "--pdeathsig=KILL",  # a change of user clears that of the parent
)


@dataclass(frozen=True)
class Mount:
    """A folder of this machine inside a container; without a source, memory of that size."""

    source: Path | None
    target: str
    size: str = ""
    is_read_only: bool = False


class Image:
    """What infra/compose/Dockerfile puts outside of Python's environment, in a folder.

    Args:
        folder: A new folder.
        hosts: Names of services, all of which are this machine.
    """

    def __init__(self, folder: Path, hosts: list[str]) -> None:
        self.root, self.programs = folder / "root", folder / "programs"
        for name in ("dev", "proc", "sys", "tmp", "run", "var/run", "var/tmp", "workspace"):
            (self.root / name).mkdir(parents=True)
        shutil.copytree("/etc", self.root / "etc", symlinks=True)
        with (self.root / "etc/passwd").open("a") as passwd:
            passwd.write(f"dopsd:x:{USER}:{USER}::/home/dopsd:/bin/sh\n")
        (self.root / "etc/gitconfig").write_text("[safe]\n\tdirectory = *\n")
        (self.root / "etc/hosts").write_text(f"127.0.0.1 localhost {' '.join(hosts)}\n")
        image_programs(self.programs)
        self.mounts = [Mount(Path("/dev"), "/dev"), Mount(Path("/sys"), "/sys", is_read_only=True)]
        for name in SYSTEM:
            if (link := Path("/", name)).is_symlink():
                (self.root / name).symlink_to(link.readlink())
            elif link.is_dir():
                self.mounts.append(Mount(link, f"/{name}", is_read_only=True))
        self.mounts.append(Mount(self.programs, "/usr/local/bin", is_read_only=True))
        for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)):
            if not prefix.startswith("/usr"):
                self.mounts.append(Mount(Path(prefix), prefix, is_read_only=True))

    def script(self, mounts: list[Mount], workdir: str) -> str:
        """Return the shell script that makes a container's root folder and runs "$@" there."""
        root = shlex.quote(str(self.root))
        lines = [f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc"]
        for mount in [*self.mounts, *mounts]:
            target = shlex.quote(f"{self.root}{mount.target}")
            if not mount.target.startswith("/dev/"):  # /dev is that of this machine, and has shm
                Path(self.root, mount.target[1:]).mkdir(parents=True, exist_ok=True)
            if mount.source is None:
                lines.append(f"mount -t tmpfs -o mode=1777,size={mount.size} tmpfs {target}")
                continue
            kind = "--rbind" if mount.target == "/dev" else "--bind"
            lines.append(f"mount {kind} {shlex.quote(str(mount.source))} {target}")
            if mount.is_read_only:
                lines.append(f"mount -o remount,bind,ro {target}")
        lines.append(f"mount -o remount,bind,ro {root}")
        unprivileged = shlex.join([*UNPRIVILEGED, "sh", "-c", 'cd "$0" && exec "$@"', workdir])
        return "\n".join([*lines, f'exec chroot {root} {unprivileged} "$@"'])


class Container:
    """A container that runs.

    Args:
        process: `unshare`, whose only child is the container's first process.
        env: Environment of the container.
        workdir: Folder in which commands start.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, env: dict[str, str], workdir: str
    ) -> None:
        self.process, self.env, self.workdir = process, env, workdir

    @property
    def first_process(self) -> int | None:
        """Id of the container's first process on this machine; None if it does not run."""
        pid = self.process.pid
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return int(children[0]) if children else None
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the first process alone, as container runtimes do."""
        if pid := self.first_process:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def wait(self) -> int:
        """Return the exit code; 128 and the signal's number after a signal."""
        code = await self.process.wait()
        return code if code >= 0 else 128 - code

    async def exec(self, *words: str) -> tuple[int, str]:
        """Run a command in the container as `kubectl exec`; return exit code and output."""
        inside = (
            "nsenter",
            f"--target={self.first_process}",
            "--mount",
            "--pid",
            "--ipc",
            "--root",
        )
        change = ("sh", "-c", 'cd "$0" && exec "$@"', self.workdir)
        process = await asyncio.create_subprocess_exec(
            *inside,
            *UNPRIVILEGED,
            *change,
            *words,
            env=self.env,
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()


async def start(
    image: Image, words: list[str], env: dict[str, str], workdir: str, **more: object
) -> Container:
    """Start a container.

    Args:
        image: Its image.
        words: Its command and arguments.
        env: Its environment, without that of the image.
        workdir: Its working folder.
        more: `mounts` and the `log` file.
    """
    mounts, log = more["mounts"], more["log"]
    env = ENV | env
    with Path(log).open("a") as output:
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig=KILL"),  # nothing outlives the tests
            *("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"),
            *("sh", "-euc", image.script(mounts, workdir), "sh", *words),
            env=env,
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Container(process, env, workdir)
