"""`dopsd bench-gpu`: ratios and their marks, scaling to other cards, parts that fail, no GPU."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dopsd.cli.main import main
from dopsd.pipeline.bench_gpu import checks, kernel_checks, ranks
from dopsd.pipeline.bench_gpu.modelled import by_rates, known, modelled, scaled
from dopsd.pipeline.bench_gpu.page import page
from dopsd.pipeline.bench_gpu.results import Part, Results, Status
from dopsd.pipeline.bench_gpu.run import Runner
from dopsd.pipeline.bench_gpu.stopwatch import Figures

MACHINE = {"gpu": "NVIDIA H100 80GB HBM3", "is_pretended": False, "packages": {"torch": "2.13"}}
CPU = torch.device("cpu")


def compared(name: str, ms: float, peak_gb: float) -> Part:
    part = Part(name, "figures")
    part.found = {"ms": ms, "peak_gb": peak_gb}
    part.compare(Figures(ms, peak_gb), Figures(100, 10))
    return part


def test_the_page_marks_ratios_outside_the_bounds_and_names_them_first():
    parts = [compared("fits", 139, 7.1), compared("slow", 141, 10), compared("small", 100, 6.9)]
    text = page(Results(MACHINE, parts, is_complete=True))
    assert "Not as expected:\n\n- slow\n- small\n" in text
    assert "| fits | 139.0 | 100.0 | 1.39 | 7.10 | 10.00 | 0.71 |" in text
    assert "| slow | 141.0 | 100.0 | 1.41 **(!)** | 10.00 | 10.00 | 1.00 |" in text
    assert "0.69 **(!)**" in text and "interrupted" not in text


def test_a_part_that_fails_is_kept_with_its_error():
    def work() -> dict:
        raise torch.OutOfMemoryError("CUDA out of memory")

    failed = Part("update, 8 states", "figures").attempt(work)
    assert failed.status is Status.FAILED
    text = page(Results(MACHINE, [failed]))
    assert "- update, 8 states: failed: OutOfMemoryError: CUDA out of memory (work, line" in text
    assert "later parts are missing" in text and "Not as expected" in text


def test_modelled_times_are_scaled_by_what_limits_them():
    """An A100 has 312 of 989 TFLOP/s and 2.039 of 3.35 TB/s."""
    a100, limits = known("NVIDIA A100-SXM4-80GB"), {"peak": 312.0, "bandwidth": 2.039, "launch": 4}
    assert a100 is not None and scaled(limits, a100) == pytest.approx(989 + 3.35 + 4)
    others = ("H100 PCIe", "L40S", "GH200 480GB", "A100-SXM4-40GB", "H100 80GB HBM3 MIG 1g.10gb")
    assert not any(known(f"NVIDIA {name}") for name in others)
    other = by_rates(0.7 * 362e12, 0.85 * 864e9)
    assert (other.peak, other.bandwidth) == pytest.approx((362, 0.864))


def test_figures_between_the_modelled_layers_lie_on_a_line():
    h100 = known("NVIDIA H100 80GB HBM3")
    few, middle, many = (modelled("update, 8 states", "liger", n, h100).ms for n in (4, 18, 32))
    assert middle == pytest.approx((few + many) / 2)


def test_a_machine_without_a_gpu_is_told_so_in_one_line(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench-gpu", "--quick"]) == 2
    assert capsys.readouterr().err.startswith("dopsd: bench-gpu: torch sees no NVIDIA GPU here")
    assert not list(tmp_path.iterdir())


def test_a_card_on_which_everything_fails_gets_a_page_with_every_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A card of 16 GB has room for 16 of the 32 layers; here torch cannot compute on it at all."""
    monkeypatch.chdir(tmp_path)
    card = SimpleNamespace(total_memory=16e9)
    answers = {"is_available": True, "current_device": 0, "device_count": 1}
    answers |= {"get_device_name": "NVIDIA L4", "get_device_capability": (8, 9)}
    for name, answer in (answers | {"get_device_properties": card}).items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    assert main(["bench-gpu"]) == 0
    text = Path("reports/bench-gpu/bench-gpu.md").read_text()
    assert "- random weights, 16 layers: failed: " in text
    assert "- loss of d-OPSD: the CPU's: failed: " in text
    assert "- update, 14 states: left out: there is no model to measure" in text
    assert "interrupted" not in text


def test_a_check_sees_one_wrong_token():
    params, policy = checks.embedded(CPU)
    rollouts = checks.rollouts(params, policy, 0.0, checks.ROWS)
    assert checks.differing(rollouts, rollouts) == 0
    other = checks.rollouts(params, policy, 0.0, checks.ROWS)
    other[3].completion_ids[5] += 1
    found = checks.Found(checks.differing(other, rollouts), checks.SAME, "tokens")
    assert found.difference == pytest.approx(1 / 320) and not found.is_within


def test_fused_kernels_that_are_wrong_in_one_gradient_are_seen(monkeypatch: pytest.MonkeyPatch):
    assert kernel_checks.fused(CPU).is_within
    monkeypatch.setattr("dopsd.models.kernels.fused.rotary", lambda q, k, *_: (q, k))
    assert not kernel_checks.fused(CPU).is_within


@pytest.mark.full
def test_two_ranks_sum_what_one_computes():
    found = ranks.run()
    assert found["is_within"] and found["all_reduce_gb_per_second"] > 0


def test_a_rank_that_fails_ends_the_other_at_once_and_says_why(monkeypatch: pytest.MonkeyPatch):
    """The other prints more than a pipe holds, and would wait for it."""
    programs = iter(("print('x' * 10**6); import time; time.sleep(99)", "1 / 0"))
    start, began = subprocess.Popen, time.monotonic()
    monkeypatch.setattr(
        subprocess, "Popen", lambda _, **k: start([sys.executable, "-c", next(programs)], **k)
    )
    both = r"(?s)^rank 1 ended with 1: .*ZeroDivisionError.*; rank 0 ended with -9: "
    with pytest.raises(RuntimeError, match=both):
        ranks.run()
    assert time.monotonic() - began < 60


def test_a_figure_that_nobody_modelled_is_kept_beside_the_failure():
    runner, part = object.__new__(Runner), Part("new", "figures")
    runner.kernels, runner.layers = "liger", 32
    work = partial(runner._compared, part, Figures(1, 2), known("NVIDIA H200"))
    assert part.attempt(work).status is Status.FAILED
    assert part.found == {"ms": 1, "peak_gb": 2}
