"""Images of compose.yaml, built on this machine from Debian's and PyPI's packages alone."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
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
    steps = {base: lambda: _import(engine, base)}
    for name in ("prefect", "worker"):
        service = services[name]
        steps[service["image"]] = lambda s=service: _build(
            engine, s["image"], s["build"]["target"], COMPOSE / "Dockerfile", logs
        )
    for name in ("postgres", "minio"):
        steps[services[name]["image"]] = lambda n=name: _build(
            engine, services[n]["image"], n, STAND_INS / "Dockerfile", logs
        )
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
    engine.run_with_log(
        logs / f"{target}.log", "docker", "build", "--progress=plain", *words, context
    )


def _import(engine: Engine, tag: str) -> None:
    """Make the base image out of Debian's packages, with this machine's settings of pip."""
    if engine.run("docker", "images", "--quiet", tag):
        return
    tar, settings = CACHE / "base.tar", pip_settings()
    (CACHE / "pip.conf").write_text(
        "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items())])
    )
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
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^(?:global|:env:)\.([\w-]+)=(.+)$", listed, re.MULTILINE)
    settings = {name: str(ast.literal_eval(value)) for name, value in found}
    wanted = ("index-url", "trusted-host", "find-links", "cert")
    return {name: settings[name] for name in wanted if name in settings}


def torch_index() -> str:
    """Return the index for torch where this machine's pip has it from elsewhere."""
    settings = pip_settings()
    wheels = [
        path
        for folder in settings.get("find-links", "").split()
        for path in Path(folder).glob("torch-*")
    ]
    return settings.get("index-url") or (PYPI if wheels else "")
