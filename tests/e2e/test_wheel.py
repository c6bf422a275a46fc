"""A project beside an installed wheel: made by `dopsd init`, run by the deployment and by DVC, and
kept by an upgrade.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from composed import Stack
from conftest import ROOT
from ports import free_port
from small_settings import SHORT_RUN
from workspace import REPRO, ran

HERE = ("PYTHONPATH", "VIRTUAL_ENV", "MLFLOW_TRACKING_URI")  # of this environment
RFT, D_OPSD = (f"dopsd/algorithms/{name}/__init__.py" for name in ("rft", "d_opsd"))


class Installation:
    """An environment whose dopsd is a wheel; the libraries are those of the environment of the
    tests, whose own dopsd it does not see.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.source = folder, folder / "source"
        self.bin, self.project = folder / "venv/bin", folder / "project"
        self.copy_sources()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        site = next((folder / "venv/lib").glob("*/site-packages"))
        (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.site = site
        for name in ("prefect", "mlflow"):  # DVC and dopsd are called as modules
            (self.bin / name).write_text(f'#!/bin/sh\nexec "{self.bin}/python" -m {name} "$@"\n')
            (self.bin / name).chmod(0o755)
        self.env = {k: v for k, v in os.environ.items() if k not in HERE}
        self.env |= {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api",
            "DVC_NO_ANALYTICS": "1",
            "OMP_NUM_THREADS": "1",
        }

    def copy_sources(self) -> None:
        listed = ["git", "ls-files", "-co", "--exclude-standard", "--", ":!tests"]
        for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
            if os.path.lexists(ROOT / name):
                (self.source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.source / name, follow_symlinks=False)

    def install(self) -> None:
        """Build source archive and, from it, the wheel of the sources as they are now, check both,
        and put the wheel in the place of the last.
        """
        python = [sys.executable, "-m"]
        shutil.rmtree(self.folder / "dist", ignore_errors=True)
        shutil.rmtree(self.source / "build", ignore_errors=True)
        build = ["build", "--no-isolation", "--outdir", self.folder / "dist", self.source]
        subprocess.run([*python, *build], check=True)
        archives = sorted((self.folder / "dist").iterdir())
        subprocess.run([*python, "twine", "check", "--strict", *archives], check=True)
        (wheel,) = (path for path in archives if path.suffix == ".whl")
        options = ["--python", self.bin / "python", "install", "--no-deps", "--no-index"]
        subprocess.run(
            [*python, "pip", "--quiet", *options, "--force-reinstall", wheel], check=True
        )

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """A module of this environment as a command, in the project."""
        return self.command(self.bin / "python", "-m", *words, cwd=cwd)

    def command(self, *words: str | Path, cwd: Path | None = None) -> str:
        here = {"cwd": cwd or self.project, "env": self.env}
        found = subprocess.run(words, capture_output=True, text=True, **here)
        assert found.returncode == 0, f"{words[-1]}\n{found.stdout}{found.stderr}"
        return found.stdout + found.stderr

    def stale(self) -> set[str]:
        """Stages that DVC would run, once recipes.yaml is that of the installation."""
        write = "from dopsd.pipeline.recipes import write_recipes; write_recipes()"
        self.command(self.bin / "python", "-c", write)
        return set(json.loads(self.run("dvc", "status", "--json")))


@pytest.mark.integration
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the files of a git checkout")
def test_a_project_of_an_installed_wheel_runs_by_both_entry_points_and_survives_an_upgrade(
    tmp_path,
):
    wheel = Installation(tmp_path)
    wheel.install()
    where = (wheel.bin / "python", "-c", "import dopsd; print(dopsd.__file__)")
    imported = wheel.command(*where, cwd=tmp_path)
    assert Path(imported.strip()) == wheel.site / "dopsd/__init__.py"
    assert "cd project" in wheel.run("dopsd", "init", "project", cwd=tmp_path)
    assert "\ncore: 1\n" in (wheel.project / "recipes.yaml").read_text()

    wheel.run("dopsd", "params", *(f"--set={key}={json.dumps(v)}" for key, v in SHORT_RUN.items()))
    base = (wheel.project / "base/sudoku/model.safetensors").stat().st_mtime
    deploy_and_run(wheel)
    assert (wheel.project / "base/sudoku/model.safetensors").stat().st_mtime == base
    assert wheel.stale() == set() == ran(wheel.run("dvc", *REPRO))
    upgrade(wheel)
    wheel.run("dopsd", "params", "--set=train.learning_rate=0.003")
    assert ran(wheel.run("dvc", *REPRO, "train")) == {"train"}


def upgrade(wheel: Installation) -> None:
    """Another release makes nothing stale; a raised number makes its algorithm stale alone."""
    pyproject = wheel.source / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('version = "', 'version = "9.', 1))
    for name in (D_OPSD, "dopsd/core/rng.py", "dopsd/pipeline/stages/train.py"):
        path = wheel.source / name
        path.write_text(path.read_text().replace('"""', '"""Said otherwise. ', 1))
    wheel.install()
    assert next(wheel.site.glob("dopsd-9.*.dist-info")) and wheel.stale() == set()
    (wheel.site / RFT).write_text("RECIPE = 2\n")
    assert wheel.stale() == set()
    kept = (wheel.site / D_OPSD).read_text()
    (wheel.site / D_OPSD).write_text(f"{kept}\nRECIPE = 2\n")
    assert wheel.stale() == {"train@sudoku-d_opsd-0", "test@sudoku-d_opsd-0"}
    (wheel.site / D_OPSD).write_text(kept)
    assert wheel.stale() == set()


def deploy_and_run(wheel: Installation) -> None:
    """The commands of docs/project.md on free ports, and a run with another learning rate."""
    page = (ROOT / "docs/project.md").read_text()
    (block,) = re.findall(r"```bash\n(prefect server start.*?)\n```", page, re.DOTALL)
    api, mlflow = wheel.env["PREFECT_API_URL"], str(free_port())
    servers = {
        "prefect server start": (api.removesuffix("/api").rpartition(":")[2], f"{api}/health"),
        "mlflow server": (mlflow, f"http://127.0.0.1:{mlflow}/health"),
    }
    processes = []
    try:
        for line in block.splitlines():
            command = line.partition("  #")[0].replace("127.0.0.1:5000", f"127.0.0.1:{mlflow}")
            if found := [name for name in servers if command.startswith(name)]:
                port, health = servers[found[0]]
                processes.append(start(wheel, f"{command} --port {port}"))
                wait_for(health, wheel.folder / "servers.log")
            elif "worker start" in command:
                processes.append(start(wheel, command))
            elif command.startswith("dopsd run"):
                wheel.command("bash", "-c", f"{command} --set train.learning_rate=0.002")
            else:
                wheel.command("bash", "-c", command)
    finally:
        ended = [Stack.end(process) for process in reversed(processes)]
    assert all(ended) and len(ended) == 3
    settings = (wheel.project / "params.yaml").read_text()
    assert "learning_rate: 0.002" in settings and "updates: 2" in settings
    assert (wheel.project / "mlflow.db").is_file()


def start(wheel: Installation, command: str) -> subprocess.Popen[bytes]:
    with (wheel.folder / "servers.log").open("a") as log:
        here = {"cwd": wheel.project, "env": wheel.env, "start_new_session": True}
        return subprocess.Popen(["bash", "-c", command], stdout=log, stderr=log, **here)


def wait_for(health: str, log: Path) -> None:
    deadline = time.monotonic() + 300
    while not answers(health):
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=2):
        return True
    return False
