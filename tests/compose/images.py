"""Images of compose.yaml, built on this machine from Debian's and PyPI's packages alone."""

import ast
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import yaml
from composed import COMPOSE
from conftest import ROOT
from engine import Engine

CACHE = Path(os.environ.get("DOPSD_IMAGES") or Path.home() / ".cache" / "dopsd-images")
STAND_INS = Path(__file__).parent / "images"
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
PYPI = "https://pypi.org/simple"


def build(engine: Engine, logs: Path) -> dict[str, tuple[float, str]]:
    """Build what changed since the last time; return seconds and size of every image."""
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    base = re.findall(r"^FROM (\S+)", (COMPOSE / "Dockerfile").read_text(), re.MULTILINE)[0]
    steps = {base: partial(_import, engine, base)}
    for name in ("prefect", "worker"):
        service = services[name]
        target, file = service["build"]["target"], COMPOSE / "Dockerfile"
        steps[service["image"]] = partial(_build, engine, service["image"], target, file, logs)
    for name in ("postgres", "minio"):
        tag, file = services[name]["image"], STAND_INS / "Dockerfile"
        steps[tag] = partial(_build, engine, tag, name, file, logs)
    seconds = {}
    for tag, step in steps.items():
        started = time.monotonic()
        step()
        seconds[tag] = time.monotonic() - started
    sizes = engine.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}")
    size_of = dict(line.split() for line in sizes.splitlines())
    return {tag: (spent, size_of[tag]) for tag, spent in seconds.items()}


def _build(engine: Engine, tag: str, target: str, dockerfile: Path, logs: Path) -> None:
    context = ROOT if dockerfile.parent == COMPOSE else STAND_INS
    words = ["--network=host", f"--target={target}", f"--tag={tag}", f"--file={dockerfile}"]
    if target == "cpu" and (index := torch_index()):
        words.append(f"--build-arg=TORCH_INDEX={index}")
    log = logs / f"{target}.log"
    engine.run_with_log(log, "docker", "build", "--progress=plain", *words, context)


def _import(engine: Engine, tag: str) -> None:
    """Make the base image out of Debian's packages, with this machine's settings of pip."""
    if engine.run("docker", "images", "--quiet", tag):
        return
    tar, settings = CACHE / "base.tar", pip_settings()
    lines = ["[global]", *(f"{name} = {value}" for name, value in settings.items())]
    (CACHE / "pip.conf").write_text("\n".join(lines))
    words = " ".join(settings.values()).split()
    files = [word for word in words if word.startswith("/") and Path(word).exists()]
    hooks = [
        'rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
        'ln -s python3 "$1"/usr/bin/python',
        f"upload {CACHE}/pip.conf /etc/pip.conf",
        *(f'cp --recursive --dereference --parents {file} "$1"' for file in files),
    ]
    options = [f"--include={PACKAGES}", *(f"--customize-hook={hook}" for hook in hooks)]
    engine.run("mmdebstrap", "--quiet", "--variant=minbase", *options, "bookworm", tar)
    engine.run("docker", "import", tar, tag)
    tar.unlink()


def pip_settings() -> dict[str, str]:
    """Return how pip reaches packages on this machine: index, folders of wheels, certificates."""
    listed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    found = re.findall(r"^(?:global|:env:)\.([\w-]+)=(.+)$", listed, re.MULTILINE)
    settings = {name: str(ast.literal_eval(value)) for name, value in found}
    wanted = ("index-url", "trusted-host", "find-links", "cert")
    return {name: settings[name] for name in wanted if name in settings}


def torch_index() -> str:
    """Return the index for torch where this machine's pip has it from elsewhere."""
    settings = pip_settings()
    folders = settings.get("find-links", "").split()
    has_wheels = any(list(Path(folder).glob("torch-*")) for folder in folders)
    return settings.get("index-url") or (PYPI if has_wheels else "")
