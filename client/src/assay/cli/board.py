"""Live progress of an inference job: a bar for all of it, and a line for each worker. On a terminal only."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from assay import bar
from assay.inference.rows import rank_of
from assay.model import JobView

#: Seconds between two drawings.
_EVERY_S = 0.2


class Board:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._shown = self._out.isatty()
        self._drawn_at = float("-inf")
        self._height = 0

    def update(self, view: JobView) -> None:
        if self._shown and (view.ended or time.monotonic() - self._drawn_at >= _EVERY_S):
            self._drawn_at = time.monotonic()
            size = shutil.get_terminal_size()
            lines = [bar.line(view, size.columns), *worker_lines(view, size.columns, max(1, size.lines - 3))]
            self.clear()
            self._out.write("".join(f"{line}\n" for line in lines))
            self._out.flush()
            self._height = len(lines)

    def clear(self) -> None:
        """Wipe it, so that what comes next stands in its place."""
        if self._height:
            self._out.write(f"\x1b[{self._height}A\x1b[J")
            self._height = 0


def worker_lines(view: JobView, width: int, most: int) -> list[str]:
    """A line for each worker that has done something, by rank; where there is no room for all, the first ones."""
    shares = sorted(view.workers.items(), key=lambda item: (rank_of(item[0]) or 0, item[0]))
    lines = []
    for name, share in shares:
        seconds, done = float(share.get("seconds", 0)), int(share.get("items", 0))
        pace = f"  {done / seconds:,.1f}/s" if seconds > 0 else ""
        lines.append(f"  worker {rank_of(name)}  {name}  {done} rows{pace}"[: max(1, width - 1)])
    if len(lines) > most:
        lines[most - 1 :] = [f"  and {len(lines) - most + 1} more workers"]
    return lines
