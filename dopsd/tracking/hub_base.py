"""A base on the Hugging Face hub, as a folder without its weights."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dopsd.tracking.hub_errors import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from huggingface_hub.hf_api import ModelInfo
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # lacks __all__
        SafetensorsFileMetadata,
    )

NAME = re.compile(r"[\w-][\w.-]*/[\w.-]*\w")  # organization/name
SMALL = 32 * 2**20  # bytes of the largest file that is downloaded whole
READ = (".json", ".txt", ".jinja", ".model")  # config, tokenizer, index
GIGA = 1e9


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a repository."""
    return NAME.fullmatch(text) is not None


def fetch(name: str, folder: Path) -> list[str]:
    """Download the small files of a base, and the headers of its weight files.

    A weight file in the folder has its header and its length, but no content: it takes no space.

    Args:
        name: the repository.
        folder: an empty folder.

    Returns:
        Lines about the repository: size of the download, licence.

    Raises:
        DopsdError: if there is no such repository, or the hub does not answer.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with one_line(name, api.endpoint, "inspect"):
        info = api.model_info(name, files_metadata=True)
        for file, size in _sizes(info).items():
            suffix = PurePosixPath(file).suffix
            if "/" in file:
                continue
            if suffix == ".safetensors":
                header = api.parse_safetensors_file_metadata(name, file, revision=info.sha)
                _write_header(folder / file, header)
            elif suffix in READ and size <= SMALL:
                api.hf_hub_download(name, file, revision=info.sha, local_dir=folder)
            elif suffix == ".bin":
                (folder / file).touch()  # named in the error that refuses it
    return _about(info)


def _sizes(info: ModelInfo) -> dict[str, int]:
    return {file.rfilename: file.size or 0 for file in info.siblings or []}


def _about(info: ModelInfo) -> list[str]:
    weights = {name: size for name, size in _sizes(info).items() if name.endswith(".safetensors")}
    licence = info.card_data.get("license") if info.card_data else None
    return [
        f"download: {sum(weights.values()) / GIGA:.3g} GB of weights, revision {info.sha}",
        f"licence: {licence or 'its card names none'}",
    ]


def _write_header(path: Path, header: SafetensorsFileMetadata) -> None:
    """Write a safetensors file of full length whose content is a hole."""
    tensors = {
        name: {"dtype": t.dtype, "shape": t.shape, "data_offsets": t.data_offsets}
        for name, t in header.tensors.items()
    }
    text = json.dumps(tensors).encode()
    end = max((t.data_offsets[1] for t in header.tensors.values()), default=0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
