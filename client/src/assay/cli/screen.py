"""Output to stdout: tables and colours on a terminal, JSON with `--json`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TextIO

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
_STATES = {
    "ok": "green",
    "done": "green",
    "ready": "green",
    "running": "bold",
    "failed": "red",
    "FAIL": "red",
    "timed_out": "red",
    "warn": "yellow",
    "cancelled": "yellow",
    "paused": "yellow",
    "skip": "dim",
}


class Screen:
    def __init__(self, as_json: bool = False, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.as_json = as_json
        self.is_terminal = self.out.isatty()
        self._coloured = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def line(self, text: str = "") -> None:
        print(text, file=self.out)

    def json(self, data: object) -> None:
        print(json.dumps(data, indent=2 if self.is_terminal else None, ensure_ascii=False), file=self.out)

    def paint(self, text: str, colour: str = "") -> str:
        """Return the text in a colour; by default the colour of the state that the text names."""
        colour = colour or _STATES.get(text.strip(), "")
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._coloured and colour else text

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table: numbers aligned to the right, text to the left; tabs and line ends in values become spaces."""
        texts = [["" if value is None else " ".join(str(value).split()) for value in row] for row in rows]
        widths = [max(len(text) for text in column) for column in zip(columns, *texts)] if texts else []
        if not texts:
            self.line(self.paint("none", "dim"))
            return
        numeric = [all(isinstance(row[n], (int, float)) for row in rows) for n in range(len(columns))]
        heads = [_aligned(*each) for each in zip(columns, widths, numeric)]
        self.line(self.paint("  ".join(heads).rstrip(), "dim"))
        for row in texts:
            cells = [self.paint(_aligned(*each)) for each in zip(row, widths, numeric)]
            self.line("  ".join(cells).rstrip())


def _aligned(text: str, width: int, numeric: bool) -> str:
    return text.rjust(width) if numeric else text.ljust(width)
