"""Run all parts of `dopsd bench-gpu`, each caught on its own, and write what they found."""

from __future__ import annotations

import contextlib
import gc
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.files import write_json
from dopsd.core.machine import package_version
from dopsd.core.progress import log
from dopsd.models.backends import attention_of, kernels_of
from dopsd.models.llada.configuration import LladaConfig
from dopsd.pipeline.bench_gpu import kernel_checks, ranks
from dopsd.pipeline.bench_gpu.cases import CASES, COPIED, RATES, SIZE, Case
from dopsd.pipeline.bench_gpu.checks import CHECKS, Found
from dopsd.pipeline.bench_gpu.modelled import Card, by_rates, known, modelled
from dopsd.pipeline.bench_gpu.page import page
from dopsd.pipeline.bench_gpu.results import Part, Results
from dopsd.pipeline.bench_gpu.stopwatch import GIGA, Figures, Stopwatch
from dopsd.pipeline.bench_gpu.subject import Subject, make, settings

if TYPE_CHECKING:
    from collections.abc import Callable

OUT = Path("reports/bench-gpu")
LAYERS = (32, 16, 8, 4, 2)  # of LLaDA-8B, and of less for smaller cards
FILLED = 0.92  # share of a card's memory that work may need
BUDGET = 11 * 60  # seconds after which no part begins: the last may take minutes
EXPECTED = 10  # seconds of a part, before any has ended
PACKAGES = ("dopsd", "torch", "transformers", "peft", "liger-kernel", "triton", "flash-attn")
PRETENDED = "pretended"


def bench(is_quick: bool, layers: int | None) -> None:
    """Measure the GPU of this process, and write reports/bench-gpu/.

    Args:
        is_quick: leave out the large shapes.
        layers: layers of the model; None: as many as the card has memory for.

    Raises:
        DopsdError: if there is no GPU, or the command was interrupted.
    """
    if not torch.cuda.is_available():
        raise DopsdError(
            "bench-gpu: torch sees no NVIDIA GPU here; run it on a machine with one (`dopsd doctor`"
            " says what is missing)",
            code=Code.NO_GPU,
        )
    runner = Runner(is_quick, layers)
    try:
        runner.everything()
    except KeyboardInterrupt:
        raise DopsdError(
            f"bench-gpu: interrupted; what was measured is in {runner.write()}",
            130,
            code=Code.INTERRUPTED,
        ) from None
    log(f"bench-gpu: {runner.write()}: send this file, with the .json beside it, in an issue")


class Runner:
    """The parts in their order, and the time that is left for them."""

    def __init__(self, is_quick: bool, layers: int | None) -> None:
        self.is_quick, self.params = is_quick, settings()
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.kernels = kernels_of(self.params.model, self.device, LladaConfig())
        self.memory = torch.cuda.get_device_properties(self.device).total_memory / GIGA
        self.layers = layers or self._fitting_layers()
        self.name = torch.cuda.get_device_name(self.device)
        self.card, self.rates = known(self.name), list[Figures]()
        self.results, self.started = Results(self._machine()), time.monotonic()
        self.total = len(RATES) + len(CHECKS) + 1 + len(CASES) + 2

    def everything(self) -> None:
        """Run all parts."""
        for name, rate in RATES.items():
            part = Part(name, "figures")
            self._add(part, partial(self._rate, part, rate))
        for name, check in CHECKS.items():
            self._add(Part(name, "checks"), partial(self._check, check))
        kernels = Part("fused kernels: as plain torch's", "checks")
        if self.kernels == "liger":
            self._add(kernels, partial(self._check, kernel_checks.fused))
        else:
            self._skip(kernels, "liger-kernel is not installed: pip install 'dopsd[liger]'")
        self._cases()
        self._two_ranks()
        self.results.is_complete = True

    def _cases(self) -> None:
        """Measure the cases with one model, which all of them share."""
        holder: list[Subject] = []
        making = Part(f"random weights, {self.layers} layers", "figures")
        self._add(making, partial(self._make, holder))
        for case in CASES:
            part = Part(case.name, "figures")
            if reason := self._reason_against(case, holder):
                self._skip(part, reason)
            else:
                self._add(part, partial(self._case, part, case, holder[0]))
            _free()
        holder.clear()
        _free()

    def _make(self, holder: list[Subject]) -> dict[str, Any]:
        stopwatch = Stopwatch()
        stopwatch.start()
        holder.append(make(self.params, self.layers, self.device, stopwatch))
        return {"peak_gb": stopwatch.stop().peak_gb}

    def _case(self, part: Part, case: Case, subject: Subject) -> dict[str, Any]:
        return self._compared(part, case.run(subject), self._card())

    def _check(self, check: Callable[[torch.device], Found]) -> dict[str, Any]:
        found = check(self.device)
        return {**vars(found), "is_within": found.is_within}

    def _rate(self, part: Part, rate: Callable[[Stopwatch], Figures]) -> dict[str, Any]:
        self.rates.append(rate(Stopwatch()))
        return self._compared(part, self.rates[-1], self.card)

    def _compared(self, part: Part, measured: Figures, card: Card | None) -> dict[str, Any]:
        part.found = {"ms": measured.ms, "peak_gb": measured.peak_gb}
        if card:
            part.compare(measured, modelled(part.name, self.kernels, self.layers, card))
        return part.found

    def _card(self) -> Card | None:
        """Return the card that the model is scaled to; one that is not known by its own rates."""
        if self.card is None and len(self.rates) == len(RATES):
            product, copied = self.rates
            self.card = by_rates(2 * SIZE**3 / product.ms * 1e3, 2 * COPIED / copied.ms * 1e3)
            self.results.machine["modelled_as"] = self.card.name
        return self.card

    def _two_ranks(self) -> None:
        part = Part("two ranks with NCCL", "ranks")
        if (count := torch.cuda.device_count()) < ranks.RANKS:
            self._skip(part, f"needs two GPUs, and this machine shows {count}")
        else:
            self._add(part, ranks.run)

    def _fitting_layers(self) -> int:
        """Return the most layers at which the smallest case fits the card."""
        fits = (n for n in LAYERS if CASES[0].gigabytes(n, self.kernels) < FILLED * self.memory)
        return next(fits, LAYERS[-1])

    def _reason_against(self, case: Case, holder: list[Subject]) -> str:
        """Return why a case is left out; "" if it is not."""
        if not holder:
            return "there is no model to measure"
        if self.is_quick and case.is_large:
            return "left out by --quick"
        needed = case.gigabytes(self.layers, self.kernels)
        if needed > FILLED * self.memory:
            return f"needs about {needed:.0f} GB, and the card has {self.memory:.0f} GB"
        return ""

    def _add(self, part: Part, work: Callable[[], dict[str, Any]]) -> None:
        """Try a part unless time is up, and write all that is known."""
        self._say(part)
        if time.monotonic() - self.started > BUDGET:
            part.leave_out(f"{BUDGET // 60} minutes were over")
        else:
            part.attempt(work)
        self._keep(part)

    def _skip(self, part: Part, reason: str) -> None:
        self._say(part)
        self._keep(part.leave_out(reason))

    def _keep(self, part: Part) -> None:
        self.results.parts.append(part)
        self.write()

    def _say(self, part: Part) -> None:
        """Log the part that begins, and how long the rest may take at the pace so far."""
        done, passed = len(self.results.parts), time.monotonic() - self.started
        pace = (passed + EXPECTED) / (done + 1)  # seconds a part
        left = int(min(max(BUDGET - passed, 0), pace * (self.total - done)))
        clock = f"{left // 60}:{left % 60:02d}"
        log(f"bench-gpu: {done + 1}/{self.total}, about {clock} left  {part.name}")

    def write(self) -> Path:
        """Write both files, and return the page."""
        self.results.seconds = time.monotonic() - self.started
        write_json(OUT / "bench-gpu.json", self.results.as_json())
        path = OUT / "bench-gpu.md"
        path.write_text(page(self.results))
        return path

    def _machine(self) -> dict[str, Any]:
        capability = torch.cuda.get_device_capability(self.device)
        return {
            "gpu": self.name,
            "is_pretended": PRETENDED in self.name,
            "gpus": torch.cuda.device_count(),
            "memory_gb": self.memory,
            "capability": ".".join(map(str, capability)),
            "cuda": torch.version.cuda,
            "kernels": self.kernels,
            "attention": attention_of(self.params.model, self.device),
            "layers": self.layers,
            "is_quick": self.is_quick,
            "modelled_as": self.card.name if self.card else "unknown",
            "packages": {
                name: package_version(name)
                for name in PACKAGES
                if find_spec(name.replace("-", "_"))
            },
        }


def _free() -> None:
    """Give memory back; after an error of CUDA that fails too."""
    gc.collect()  # a model is in cycles
    with contextlib.suppress(RuntimeError):
        torch.cuda.empty_cache()
