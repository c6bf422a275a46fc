"""Results that change ask for a raised RECIPE: DVC runs stages again only where such a number was
raised.

After results changed on purpose, raise RECIPE in the `__init__.py` of what changed, then write
digests.json anew: REWRITE_DIGESTS=1 python -m pytest tests/unit/pipeline/test_recipe_numbers.py
So does a new algorithm, and another value in its section of params.yaml. REWRITE_DIGESTS=force
writes all digests on a processor that rounds otherwise than the file's.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from torch import nn

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.fingerprint import recipe

DIGESTS = Path(__file__).with_name("digests.json")
ANEW = "write digests.json anew (the command is at the top of test_recipe_numbers.py)"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def rounding() -> str:
    """Digest of an update of torch alone: another processor or another torch rounds otherwise."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), 1e-2)
    for _ in range(2):
        layer(torch.randn(5, 40, 64)).log_softmax(-1).square().mean().backward()
        optimizer.step()
    return digest(b"".join(p.detach().numpy().tobytes() for p in layer.parameters()))


def recipes() -> dict[str, int]:
    """All raised numbers of the package, by file."""
    numbers = {str(path.relative_to(ROOT)): recipe(path) for path in (ROOT / "dopsd").rglob("*.py")}
    return {name: number for name, number in sorted(numbers.items()) if number != 1}


def test_other_results_come_with_a_raised_number(two_updates: Path):
    now = {"rounding": rounding(), "recipes": recipes(), "adapters": {}}
    for name in ALGORITHMS.names:
        weights = two_updates / f"runs/sudoku/{name}/0/train/step-000002/adapter_model.safetensors"
        now["adapters"][name] = digest(weights.read_bytes())
    kept = json.loads(DIGESTS.read_text())
    if now["rounding"] != kept["rounding"] and os.environ.get("REWRITE_DIGESTS") != "force":
        pytest.skip("this processor or torch rounds otherwise than the one of digests.json")
    if "REWRITE_DIGESTS" in os.environ:
        DIGESTS.write_text(json.dumps(now, indent=2) + "\n")
        kept = now
    before = kept["adapters"]
    changed = [name for name in before if now["adapters"].get(name) != before[name]]
    raised = now["recipes"] != kept["recipes"]
    assert raised or not changed, (
        f"other results for {changed}: if their settings in params.yaml changed, {ANEW}; else raise"
        f" RECIPE of the code that changed, and {ANEW}"
    )
    assert not raised, f"a RECIPE was raised: {ANEW}"
    assert now["adapters"].keys() == before.keys(), f"other algorithms: {ANEW}"
