"""A project beside an installed wheel: made, run by the deployment and DVC, and upgraded."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from composed import Stack
from conftest import ROOT
from ports import free_port, until_healthy
from small_settings import SHORT_RUN
from workspace import REPRO, build, ran

HERE = ("PYTHONPATH", "VIRTUAL_ENV", "MLFLOW_TRACKING_URI")  # of this environment
RFT, D_OPSD = (f"dopsd/algorithms/{name}/__init__.py" for name in ("rft", "d_opsd"))


class Installation:
    """An environment with dopsd from a wheel, and the libraries of the tests' environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin, self.project = folder / "venv/bin", folder / "project"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        site = next((folder / "venv/lib").glob("*/site-packages"))
        (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.site = site
        for name in ("prefect", "mlflow"):  # DVC and dopsd are called as modules
            (self.bin / name).write_text(f'#!/bin/sh\nexec "{self.bin}/python" -m {name} "$@"\n')
            (self.bin / name).chmod(0o755)
        self.env = {k: v for k, v in os.environ.items() if k not in HERE}
        self.env |= {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}
        self.env |= {"PREFECT_HOME": str(folder / "prefect"), "DVC_NO_ANALYTICS": "1"}
        self.env |= {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api"}

    def install(self, wheel: Path) -> None:
        """Put a wheel in the place of the last."""
        options = ["--python", self.bin / "python", "install", "--no-deps", "--no-index"]
        pip = [sys.executable, "-m", "pip", "--quiet", *options, "--force-reinstall", wheel]
        subprocess.run(pip, check=True)

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
    wheel: Path, tmp_path: Path
):
    installed = Installation(tmp_path)
    installed.install(wheel)
    where = (installed.bin / "python", "-c", "import dopsd; print(dopsd.__file__)")
    imported = installed.command(*where, cwd=tmp_path)
    assert Path(imported.strip()) == installed.site / "dopsd/__init__.py"
    assert "cd project" in installed.run("dopsd", "init", "project", cwd=tmp_path)
    assert "\ncore: 1\n" in (installed.project / "recipes.yaml").read_text()

    settings = [f"--set={key}={json.dumps(value)}" for key, value in SHORT_RUN.items()]
    installed.run("dopsd", "params", *settings)
    base = (installed.project / "base/sudoku/model.safetensors").stat().st_mtime
    deploy_and_run(installed)
    assert (installed.project / "base/sudoku/model.safetensors").stat().st_mtime == base
    assert ran(installed.run("dvc", *REPRO)) == set()
    upgrade(installed, wheel.parents[1] / "source")
    installed.run("dopsd", "params", "--set=train.learning_rate=0.003")
    assert ran(installed.run("dvc", *REPRO, "train")) == {"train"}


def upgrade(installed: Installation, source: Path) -> None:
    """Neither a release nor an algorithm that no run has makes a stage stale; one of a run does."""
    source = shutil.copytree(source, installed.folder / "source", symlinks=True)
    pyproject = source / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('version = "', 'version = "9.', 1))
    for name in (D_OPSD, "dopsd/core/rng.py", "dopsd/pipeline/stages/train.py"):
        path = source / name
        path.write_text(path.read_text().replace('"""', '"""Said otherwise. ', 1))
    installed.install(build(source, "--wheel"))
    assert next(installed.site.glob("dopsd-9.*.dist-info"))
    (installed.site / RFT).write_text("RECIPE = 2\n")
    assert installed.stale() == set()
    kept = (installed.site / D_OPSD).read_text()
    (installed.site / D_OPSD).write_text(f"{kept}\nRECIPE = 2\n")
    assert installed.stale() == {"train@sudoku-d_opsd-0", "test@sudoku-d_opsd-0"}
    (installed.site / D_OPSD).write_text(kept)


def deploy_and_run(installed: Installation) -> None:
    """The commands of docs/project.md on free ports, and a run with another learning rate."""
    page = (ROOT / "docs/project.md").read_text()
    (block,) = re.findall(r"```bash\n(prefect server start.*?)\n```", page, re.DOTALL)
    api, mlflow = installed.env["PREFECT_API_URL"], str(free_port())
    servers = {
        "prefect server start": (api.removesuffix("/api").rpartition(":")[2], f"{api}/health"),
        "mlflow server": (mlflow, f"http://127.0.0.1:{mlflow}/health"),
    }
    processes = []
    try:
        for line in block.replace("\\\n", "").splitlines():
            command = line.partition("  #")[0].replace("127.0.0.1:5000", f"127.0.0.1:{mlflow}")
            if found := [name for name in servers if name in command]:
                port, health = servers[found[0]]
                processes.append(start(installed, f"{command} --port {port}"))
                until_healthy(health, processes[-1], installed.folder / "servers.log")
            elif "worker start" in command:
                processes.append(start(installed, command))
            elif command.startswith("dopsd run"):
                installed.command("bash", "-c", f"{command} --set train.learning_rate=0.002")
            else:
                installed.command("bash", "-c", command)
    finally:
        ended = [Stack.end(process) for process in reversed(processes)]
    assert all(ended) and len(ended) == 3
    settings = (installed.project / "params.yaml").read_text()
    assert "learning_rate: 0.002" in settings and "updates: 2" in settings
    assert (installed.project / "mlflow.db").is_file()


def start(installed: Installation, command: str) -> subprocess.Popen[bytes]:
    with (installed.folder / "servers.log").open("a") as log:
        here = {"cwd": installed.project, "env": installed.env, "start_new_session": True}
        return subprocess.Popen(["bash", "-c", command], stdout=log, stderr=log, **here)
