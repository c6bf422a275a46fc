"""The page of `dopsd bench-gpu` in Markdown, to be sent back in an issue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dopsd.pipeline.bench_gpu.modelled import HIGH, LOW, is_off
from dopsd.pipeline.bench_gpu.results import Part, Results, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MARK = "**(!)**"
NONE = "–"
TIES = (
    "A tie that rounding decides shows as few tokens that differ; a wrong kernel or mask as many."
)


def page(results: Results) -> str:
    """Return the page."""
    blocks = [
        f"# dopsd bench-gpu: {results.machine['gpu']}",
        *_notes(results),
        _verdict(results),
        "## Checks",
        _table(("check", "result", "difference", "bound"), map(_check, results.of("checks"))),
        TIES,
        "## Time and memory",
        f"Times are of one step, update, product or copy. {MARK} marks ratios outside {LOW} to"
        f" {HIGH}.",
        _table(
            ("case", "ms", "modelled", "ratio", "peak GB", "modelled", "ratio"),
            map(_figures, results.of("figures")),
        ),
        "## Two ranks",
        *(_ranks(part) for part in results.of("ranks")),
        "## Failed or left out",
        "\n".join(f"- {part.name}: {part.status}: {part.reason}" for part in _absent(results))
        or "Nothing.",
        "## Machine",
        _machine(results),
    ]
    return "\n\n".join(blocks) + "\n"


def _notes(results: Results) -> list[str]:
    notes = []
    if results.machine["is_pretended"]:
        notes.append("The GPU is pretended: the figures are modelled, and nothing was measured.")
    if not results.is_complete:
        notes.append("The command was interrupted: later parts are missing.")
    return notes


def faults(results: Results) -> list[str]:
    """Return the names of parts that failed, or lie outside their bounds."""
    return [
        part.name
        for part in results.parts
        if part.status is Status.FAILED
        or not part.found.get("is_within", True)
        or any(map(is_off, part.ratios.values()))
    ]


def _verdict(results: Results) -> str:
    found = faults(results)
    if not found:
        return "Everything that ran is as expected."
    return "Not as expected:\n\n" + "\n".join(f"- {name}" for name in found)


def _absent(results: Results) -> list[Part]:
    return [part for part in results.parts if part.status is not Status.DONE]


def _check(part: Part) -> Sequence[str]:
    if part.status is not Status.DONE:
        return part.name, part.status, NONE, NONE
    found = part.found
    result = "within" if found["is_within"] else f"outside {MARK}"
    return part.name, result, f"{found['difference']:.1e} of {found['of']}", f"{found['bound']:.1e}"


def _figures(part: Part) -> Sequence[str]:
    cells = [part.name]
    for name, digits in (("ms", 1), ("peak_gb", 2)):
        for values in (part.found, part.modelled):
            cells.append(f"{values[name]:.{digits}f}" if name in values else NONE)
        cells.append(ratio_text(part.ratios[name]) if name in part.ratios else NONE)
    return cells


def ratio_text(ratio: float) -> str:
    """Return a ratio, with a mark if it says that something is wrong."""
    return f"{ratio:.2f}" + (f" {MARK}" if is_off(ratio) else "")


def _ranks(part: Part) -> str:
    values = ", ".join(f"{name} {value}" for name, value in part.found.items())
    return values or f"{part.status}: {part.reason}"


def _machine(results: Results) -> str:
    rows = results.machine | {"minutes": f"{results.seconds / 60:.1f}"}
    packages = ", ".join(f"{name} {version}" for name, version in rows.pop("packages").items())
    return _table(("", ""), [*((name, str(v)) for name, v in rows.items()), ("packages", packages)])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
