"""Live progress of a job on a terminal: a progress bar with detail lines below it. Writes nothing to pipes and logs."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from assay import progress_bar
from assay.inference.rows import rank_of
from assay.model import JobView

#: Seconds between two redraws.
_EVERY_S = 0.2


#: Formats the detail lines below the bar. Arguments: the job, the width in columns, the maximum number of lines.
DetailLines = Callable[[JobView, int, int], "list[str]"]


class ProgressView:
    def __init__(self, detail_lines: DetailLines, out: TextIO | None = None) -> None:
        self._detail_lines = detail_lines
        self._out = out or sys.stderr
        self._view: JobView | None = None
        self._shown = self._out.isatty()
        self._drawn_at = float("-inf")
        self._height = 0

    def update(self, view: JobView) -> None:
        self._view = view
        if self._shown and (view.ended or time.monotonic() - self._drawn_at >= _EVERY_S):
            self._draw()

    def show_note(self, text: str) -> bool:
        """Show a line at the bottom until the next update of the job. Return False if the view is not shown."""
        if not self._shown or self._view is None:
            return False
        self._draw(text)
        return True

    def _draw(self, note: str = "") -> None:
        assert self._view is not None
        self._drawn_at = time.monotonic()
        size = shutil.get_terminal_size()
        lines = [
            progress_bar.line(self._view, size.columns),
            *self._detail_lines(self._view, size.columns, max(1, size.lines - 4)),
        ]
        if note:
            lines.append(note[: max(1, size.columns - 1)])
        self.clear()
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._height = len(lines)

    def clear(self) -> None:
        """Erase the view, so that the next output replaces it."""
        if self._height:
            self._out.write(f"\x1b[{self._height}A\x1b[J")
            self._height = 0


def reason_lines(view: JobView, width: int, most: int) -> list[str]:
    """Format the error types of failed items, most frequent first; the last line sums up types beyond `most` lines."""
    reasons = sorted(view.reasons.items(), key=lambda item: -item[1])
    lines = [f"  failed: {name} {count:,}"[: max(1, width - 1)] for name, count in reasons]
    if len(lines) > most:
        rest = sum(count for _, count in reasons[most - 1 :])
        lines[most - 1 :] = [f"  failed: {rest:,} for {len(reasons) - most + 1} other reasons"]
    return lines


def worker_lines(view: JobView, width: int, most: int) -> list[str]:
    """Format a line for each worker with finished rows, by rank; the last line counts the workers beyond `most`."""
    shares = sorted(view.workers.items(), key=lambda item: (rank_of(item[0]) or 0, item[0]))
    lines = []
    for name, share in shares:
        seconds, done = float(share.get("seconds", 0)), int(share.get("items", 0))
        rate = f"  {done / seconds:,.1f}/s" if seconds > 0 else ""
        lines.append(f"  worker {rank_of(name)}  {name}  {done} rows{rate}"[: max(1, width - 1)])
    if len(lines) > most:
        lines[most - 1 :] = [f"  and {len(lines) - most + 1} more workers"]
    return lines
