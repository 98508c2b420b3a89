"""Live progress of a job: a bar for all of it, and lines on its parts. On a terminal only."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from assay import bar
from assay.inference.rows import rank_of
from assay.model import JobView

#: Seconds between two drawings.
_EVERY_S = 0.2


#: The lines below the bar: of a job, at most so wide, and so many.
Parts = Callable[[JobView, int, int], "list[str]"]


class Board:
    def __init__(self, parts: Parts, out: TextIO | None = None) -> None:
        self._parts = parts
        self._out = out or sys.stderr
        self._view: JobView | None = None
        self._shown = self._out.isatty()
        self._drawn_at = float("-inf")
        self._height = 0

    def update(self, view: JobView) -> None:
        self._view = view
        if self._shown and (view.ended or time.monotonic() - self._drawn_at >= _EVERY_S):
            self._draw()

    def note(self, text: str) -> bool:
        """Show a line below the rest until the job is heard of again. False: there is no board to show it on."""
        if not self._shown or self._view is None:
            return False
        self._draw(text)
        return True

    def _draw(self, note: str = "") -> None:
        assert self._view is not None
        self._drawn_at = time.monotonic()
        size = shutil.get_terminal_size()
        lines = [bar.line(self._view, size.columns), *self._parts(self._view, size.columns, max(1, size.lines - 4))]
        if note:
            lines.append(note[: max(1, size.columns - 1)])
        self.clear()
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._height = len(lines)

    def clear(self) -> None:
        """Wipe it, so that what comes next stands in its place."""
        if self._height:
            self._out.write(f"\x1b[{self._height}A\x1b[J")
            self._height = 0


def reason_lines(view: JobView, width: int, most: int) -> list[str]:
    """Why items failed, the commonest first; where there is no room for all, the rest as a number."""
    found = sorted(view.reasons.items(), key=lambda item: -item[1])
    lines = [f"  failed: {name} {count:,}"[: max(1, width - 1)] for name, count in found]
    if len(lines) > most:
        rest = sum(count for _, count in found[most - 1 :])
        lines[most - 1 :] = [f"  failed: {rest:,} for {len(found) - most + 1} other reasons"]
    return lines


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
