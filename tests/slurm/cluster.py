"""A real Slurm on this machine: munged, slurmctld and two `slurmd -N`, in one folder."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "unshare")
FOLDERS = ("munge", "log", "state", "dev", "n1/spool", "n2/spool")
CONFIG = """
ClusterName=dopsd
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdSpoolDir={folder}/%n/spool
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
GresTypes=gpu
KillWait=30
MinJobAge=3600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=64 RealMemory=600000 Gres=gpu:8
PartitionName=low Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""  # noqa: E501


def missing() -> str:
    """Why there can be no cluster here, or nothing."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if absent:
        return f"{', '.join(absent)}: not installed (Debian: apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "only root can start slurmd and bind a hosts file"


class Cluster:
    """Two nodes, n1 and n2; a job in partition high preempts those in low."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.daemons = folder, []
        for name in FOLDERS:
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        host = socket.gethostname()
        first = 20000 + os.getpid() % 10000
        ports = (first, first + 1, first + 2)
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=host, ports=ports))
        for i in range(8):
            (folder / "dev" / f"gpu{i}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/dev/gpu[0-7]\n")
        (folder / "hosts").write_text(f"127.0.0.1 localhost {host} n1 n2\n")
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        munge = self.folder / "munge"
        names = [f"--{name}-file={munge}/{name}" for name in ("pid", "log", "seed")]
        files = [f"--key-file={self.folder}/key", f"--socket={munge}/socket", *names]
        self._begin("munged", "--foreground", "--force", *files)
        until((munge / "socket").exists, "munged")
        self._begin("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self._begin("slurmd", "-D", "-c", "-N", node)
        asked = ("sinfo", "-h", "-p", "low", "-o", "%N %t")
        until(lambda: "n[1-2] idle" in self.ask(*asked), "two idle nodes")

    def _begin(self, *words: str) -> None:
        """In a mount namespace of its own, where the nodes' names are this machine's."""
        bind = f'mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        log = (self.folder / "log" / f"{words[0]}-{len(self.daemons)}.log").open("w")
        command = ["unshare", "-m", "bash", "-c", bind, "bash", *words]
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        self.daemons.append(subprocess.Popen(command, env=self.env, **streams))

    def stop(self) -> None:
        self.ask("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        self.ask("scancel", "--user=root", check=False)
        until(lambda: not self.ask("squeue", "-h", check=False), "no job")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(60)

    def ask(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        check: bool = True,
    ) -> str:
        here = {"cwd": cwd, "env": self.env | (env or {})}
        found = subprocess.run(words, capture_output=True, text=True, **here)
        assert found.returncode == 0 or not check, f"{words}: {found.stdout}{found.stderr}"
        return found.stdout.strip()

    def submit(self, folder: Path, *words: str, **env: str) -> str:
        """`sbatch WORDS` in a checkout; the job's number."""
        usual = {"DOPSD_VENV": sys.prefix, "PYTHONPATH": str(folder)}
        usual |= {"OMP_NUM_THREADS": "1", "DOPSD_PROCESSES": "1"}
        return self.ask("sbatch", "--parsable", *words, cwd=folder, env=usual | env)

    def about(self, job: str) -> dict[str, str]:
        pairs = self.ask("scontrol", "-o", "show", "job", job).split()
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def wait(self, job: str, *states: str) -> str:
        """The job's state when it is one of `states`."""
        what = f"job {job} {' or '.join(states)}"
        until(lambda: self.about(job)["JobState"] in states, what, 0.5)
        return self.about(job)["JobState"]

    def release(self, job: str) -> None:
        """Let a requeued job start soon, but not in the second of its requeue, which fails."""
        self.wait(job, "PENDING")
        self.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")
