"""A git and DVC checkout of this project in a folder of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, TOY, small_params, small_yaml
from warm_python import warm_bin

from dopsd.config import params_file, profiles

CHANGES = {"train__updates": 2, "train__checkpoint_every": 1, "tracking__enabled": True}
REPRO = ("--wait-for-lock", "repro")


class Workspace:
    """A checkout of the working tree, small or as shipped; if warm, with quick stages."""

    def __init__(self, folder: Path, is_shipped: bool = False, is_warm: bool = False) -> None:
        if not (ROOT / ".git").exists():
            pytest.skip("needs the files of a git checkout")
        self.folder = folder
        left_out = ("tests/",) if is_shipped else ("base/", "dvc.lock", "tests/")
        copy_sources(folder, left_out)
        first = [str(warm_bin())] if is_warm else []
        self.env = os.environ | {
            "PATH": os.pathsep.join([*first, str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(folder),
            "DVC_NO_ANALYTICS": "1",
        }
        for who in ("AUTHOR", "COMMITTER"):
            self.env |= {f"GIT_{who}_{what}": "test@localhost" for what in ("NAME", "EMAIL")}
        self.run("git", "init", "-q")
        if not is_shipped:
            shutil.copytree(TOY / "base", folder / "base")  # that of the small settings
            self.write()
        self.commit()

    def run(self, *command: str) -> str:
        here = {"cwd": self.folder, "env": self.env}
        found = subprocess.run(command, capture_output=True, text=True, **here)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout + found.stderr

    def dvc(self, *words: str) -> str:
        return self.run(sys.executable, "-m", "dvc", *words)

    def write(self, **changes: object) -> None:
        (self.folder / "params.yaml").write_text(small_yaml(**changes))

    def commit(self) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "state")

    def repro(self, *words: str) -> set[str]:
        """Names of the stages that ran."""
        return ran(self.dvc(*REPRO, *words))


def copy_sources(folder: Path, left_out: tuple[str, ...] = ("tests/",)) -> None:
    """Copy the files of the working tree, as they are now."""
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
        is_there = (ROOT / name).is_file() or (ROOT / name).is_symlink()
        if is_there and not name.startswith(left_out):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name, follow_symlinks=False)


def build(source: Path, *options: str) -> Path:
    """Build the wheel, without options from the source archive, and check both."""
    python = [sys.executable, "-m"]
    dist = source.parent / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    shutil.rmtree(source / "build", ignore_errors=True)
    words = ["build", "--no-isolation", *options, "--outdir", dist, source]
    subprocess.run([*python, *words], check=True)
    archives = sorted(dist.iterdir())
    subprocess.run([*python, "twine", "check", "--strict", *archives], check=True)
    (wheel,) = (path for path in archives if path.suffix == ".whl")
    return wheel


def take_cache(of: Path, folder: Path) -> None:
    """Let a checkout know the results of another, as a machine that has pulled them."""
    shutil.copytree(of / ".dvc/cache", folder / ".dvc/cache", dirs_exist_ok=True)


def results(folder: Path) -> dict[str, object]:
    """Hash of every output by path, from dvc.lock, and the metrics."""
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    outs = {out["path"]: out["md5"] for stage in stages.values() for out in stage["outs"]}
    return outs | {path: (folder / path).read_text() for path in outs if path.endswith(".json")}


def ran(said: str) -> set[str]:
    """Names of the stages that DVC says it runs."""
    return set(re.findall(r"Running stage '(\w+)", said))


def overrides(**changes: object) -> dict[str, object]:
    """What makes the small settings of the tests, with changes, out of the profile `embedded`."""
    small = small_params(**CHANGES | changes)
    shipped, small = (params_file.flat(raw) for raw in (profiles.resolve("embedded"), small))
    return {key: value for key, value in small.items() if shipped.get(key, "none") != value}
