"""`pip install dopsd` for real: a wheel in an environment of its own, without the extras."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from dopsd.core.extras import EXTRAS

pytestmark = pytest.mark.integration
USE = """
import sys
from importlib.util import find_spec
from pathlib import Path
import dopsd
assert "torch" not in sys.modules
assert not Path(dopsd.__file__).is_relative_to(sys.argv[1]), dopsd.__file__
print([name for name in {names} if find_spec(name)])
run = dopsd.run_settings("embedded")
policy = dopsd.load_policy(dopsd.embedded_base(), adapter=run.train.lora)
(rollout,) = dopsd.sample(policy, ["0410020420430020"], run)
print(dopsd.trace(policy, rollout)[-1].text)
dopsd.d_opsd_loss(policy, [rollout], run).total.backward()
"""


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if Path(command[0]).is_absolute():  # DVC calls the `python` of its environment
        env["PATH"] = f"{Path(command[0]).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_core_samples_and_trains_without_extras(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("uv", reason="needs uv, with which `make tools` installs where it can")
    module = (sys.executable, "-m")
    run(*module, "venv", "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    door = runpy.run_path(str(ROOT / ".ci" / "install"))  # as `make install` calls uv
    for name, value in door["settings_of_uv"](door["configuration"]()).items():
        monkeypatch.setenv(name, value)
    uv = (*module, "uv", "pip", "install", "--quiet", "--python", python)
    run(*uv, "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)

    said = run(python, "-c", USE.format(names=sorted(EXTRAS)), ROOT, cwd=tmp_path).splitlines()
    assert said[0] == "[]" and len(said[1]) >= 40

    project = tmp_path / "project"
    (project / "base").mkdir(parents=True)
    (project / "base" / "sudoku").symlink_to(ROOT / "tests" / "toy" / "base" / "sudoku")
    dopsd = tmp_path / "venv" / "bin" / "dopsd"
    sizes = ["data.sudoku.train=64", "train.updates=1", "train.prompts_per_collect=2"]
    sizes += ["method.d_opsd.keep_threshold=0", "train.checkpoint_every=1"]
    changes = [word for size in sizes for word in ("--set", size)]
    run(dopsd, "params", "--profile", "embedded", *changes, cwd=project)
    for stage in ("prepare", "train"):
        run(dopsd, stage, cwd=project)
    assert (project / "runs/sudoku/d_opsd/0/train/step-000001").is_dir()
    line = "dopsd: publish: mlflow is not installed; pip install 'dopsd[tracking]' (D701)\n"
    assert run(dopsd, "publish", cwd=project, status=2) == line
