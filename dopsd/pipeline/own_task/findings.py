"""What a check finds: lines to read, and faults that keep a task from training."""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN = 5  # examples of one kind


@dataclass
class Findings:
    """Lines of a report, and faults.

    Attributes:
        lines: the report, in the order of the checks.
        faults: reasons why the task cannot be trained, one line each.
    """

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def head(self, title: str) -> None:
        """Begin a part of the report."""
        self.lines += ["", title]

    def add(self, *lines: str) -> None:
        """Add lines to the current part."""
        self.lines += [f"  {line}" for line in lines]

    def examples(self, lines: list[str]) -> None:
        """Add the first lines, and the number of the others."""
        self.add(*lines[:SHOWN])
        if len(lines) > SHOWN:
            self.add(f"and {len(lines) - SHOWN} more")
