"""Check in about ten seconds whether this machine's GPU computes what its CPU does, and how fast.

`make gpu` tests and measures a card thoroughly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dopsd.pipeline.doctor.machine import Finding

if TYPE_CHECKING:
    import torch

    from dopsd.config.params import Params
    from dopsd.models.denoiser import Denoiser

SIZE, PRODUCTS = 8192, 10  # rows and columns of the matrices, and products that are timed
SEQUENCES, LENGTH, PADDING = 8, 57, 5  # sequences of the base, and the padding of every second
# of the norm of the logits: float32 in another order of sums, two of 8 bits in bfloat16
SINGLE, HALF = 1e-4, 2e-2
BUSY = 0.1  # share of the memory that other processes may hold
ADVICE = "do not train on this card before `make gpu` passes; it says what is wrong"


def graphics_card(_: Params) -> Iterator[Finding]:
    """Compare the GPU's logits with the CPU's, and measure a matrix product."""
    import torch

    from dopsd.models.device import own_device

    device = own_device()
    if device.type != "cuda":
        return
    try:
        yield _speed(device)
        yield from logits(device)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        message = f"fails: {str(error).splitlines()[0]}"
        yield Finding("gpu works", False, message, "see `nvidia-smi`, then driver and torch build")


def _speed(device: torch.device) -> Finding:
    """Measure a matrix product, and the memory that others hold."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    a = torch.randn(SIZE, SIZE, dtype=torch.bfloat16, device=device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    a @ a  # warm-up
    begin.record()
    for _ in range(PRODUCTS):
        a @ a
    end.record()
    end.synchronize()
    rate = 2 * SIZE**3 * PRODUCTS / begin.elapsed_time(end) / 1e9
    is_busy = free < (1 - BUSY) * total
    return Finding(
        "gpu speed",
        None if is_busy else True,
        f"{rate:.0f} TFLOP/s in bfloat16; {free / 1e9:.0f} of {total / 1e9:.0f} GB free",
        "`nvidia-smi` shows which processes hold memory",
    )


def logits(device: torch.device) -> Iterator[Finding]:
    """Compare the embedded base's logits with the CPU's, and fused kernels with torch's."""
    import torch

    from dopsd.models.backends import has_liger
    from dopsd.models.config import ModelConfig
    from dopsd.models.loading import load_base
    from dopsd.pipeline.new_project import TEMPLATE

    model = ModelConfig(path=str(TEMPLATE / "base/sudoku"), dtype="float32")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(6, 90, (SEQUENCES, LENGTH), generator=generator)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[::2, :PADDING] = False
    places = torch.device("cpu"), device
    here, base = (load_base(model, place) for place in places)
    expected, found = (_logits(one, ids, mask) for one in (here, base))
    yield _compared("gpu computes", "the CPU", found, expected, SINGLE)
    if has_liger(device):
        base.bfloat16()
        plain = _logits(base, ids, mask)
        base.fuse()
        yield _compared("fused kernels", "plain torch", _logits(base, ids, mask), plain, HALF)


def _logits(base: Denoiser, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the logits of all tokens that are no padding, in main memory."""
    import torch

    with torch.no_grad():
        found: torch.Tensor = base(ids.to(base.device), mask.to(base.device)).logits
    return found.float().cpu()[mask]


def _compared(
    name: str, other: str, found: torch.Tensor, expected: torch.Tensor, bound: float
) -> Finding:
    """Return whether logits differ by no more than rounding; a number that is none does not."""
    difference = ((found - expected).norm() / expected.norm()).item()
    message = f"logits differ from those of {other} by {difference:.1e} (bound {bound:.0e})"
    return Finding(name, difference <= bound, message, ADVICE)
