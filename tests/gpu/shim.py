"""Build shim.cpp with g++ and load it. This must happen before torch is imported."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST = (2, 13)
SOURCE = Path(__file__).with_name("shim.cpp")


def library() -> Path:
    """Return the shim of this torch, where it is installed, and of this source; built once."""
    torch = f"{importlib.metadata.version('torch')} {_torch()}"  # it loads that folder's files
    key = hashlib.sha256(SOURCE.read_bytes() + torch.encode())
    folder = Path(tempfile.gettempdir()) / f"dopsd-pretended-gpu-{os.getuid()}"
    target = folder / f"shim-{key.hexdigest()[:16]}.so"
    if not target.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        building = target.with_suffix(f".{os.getpid()}")
        _build(building)
        building.rename(target)  # two processes may build at once
    return target


def _build(target: Path) -> None:
    torch = _torch()
    words = [_compiler(), "-std=c++20", "-shared", "-fPIC", str(SOURCE), "-o", str(target)]
    words += [f"-I{torch}/include", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    words += [f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-lc10", "-ltorch_cpu"]
    subprocess.run(words, check=True)


def _compiler() -> str:
    return shutil.which(os.environ.get("CXX", "g++")) or "g++"


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def reason_against() -> str | None:
    """Return why this machine cannot pretend a GPU, or None."""
    if shutil.which(_compiler()) is None:
        return "the pretended GPU needs g++"
    version = importlib.metadata.version("torch")
    if "+cpu" not in version:
        return "the pretended GPU needs torch's CPU build"
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        return "the pretended GPU is built against the headers of torch 2.13 or newer"
    return None


def load() -> None:
    """Load the shim, after which torch sees CUDA devices."""
    assert "torch" not in sys.modules, "the shim must be loaded before torch"
    lib = _torch() / "lib"
    ctypes.CDLL(str(lib / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
    shim = ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
    assert shim.pretended_gpus() == int(os.environ.get("PRETENDED_GPUS", "1"))
