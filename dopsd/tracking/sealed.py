"""Check that a checkpoint is one that dopsd sealed, before any of it leaves this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.fingerprint import sha256
from dopsd.models.adapter_files import DIGESTS, checkpoint_names, read_digests, shape_of

if TYPE_CHECKING:
    from pathlib import Path


def require_sealed(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digests of a checkpoint's files, which match those of its seal.

    Args:
        folder: a checkpoint that `dopsd train` or `dopsd select` wrote.

    Raises:
        DopsdError: if a file is missing, is damaged or has no digest, or the checkpoint is
            neither all weights nor plain LoRA.
    """
    digests, sealed = read_digests(folder), checkpoint_names(folder)
    if unsealed := [name for name in sealed if name not in digests]:
        raise DopsdError(
            f"{folder}: no digest of {unsealed[0]} in {DIGESTS}; name a checkpoint that dopsd"
            " wrote, such as runs/<task>/<method>/<seed>/best",
            code=Code.NO_ADAPTER,
        )
    for name in sealed:
        if not (folder / name).is_file() or sha256(folder / name) != digests[name]:
            raise DopsdError(
                f"{folder / name}: missing, or does not match its digest; run `dvc checkout --force"
                f" {folder}` to restore the file",
                code=Code.ADAPTER_DAMAGED,
            )
    shape_of(folder)
    return {name: digests[name] for name in sealed}
