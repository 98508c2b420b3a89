"""Progress bar in a single line of stderr; writes nothing if stderr is not a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from assay.model import JobView

#: Seconds between two redraws.
_EVERY_S = 0.1


class ProgressBar:
    def __init__(self, shown: bool | None = None, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._shown = self._out.isatty() if shown is None else shown
        self._drawn_at = float("-inf")

    def update(self, view: JobView) -> None:
        if self._shown and (view.ended or time.monotonic() - self._drawn_at >= _EVERY_S):
            self._drawn_at = time.monotonic()
            self._out.write("\r\x1b[K" + line(view, shutil.get_terminal_size().columns))
            self._out.flush()

    def close(self) -> None:
        """End the line, so that later output starts on a new line."""
        if self._shown and self._drawn_at > 0:
            self._out.write("\n")
            self._out.flush()


def line(view: JobView, width: int) -> str:
    """Format the progress of a job in less than `width` columns."""
    words = [f"{view.state}{' (paused)' if view.paused else ''}"]
    words.append(f"{view.settled}/{'?' if view.total is None else view.total}")
    if view.failed:
        words.append(f"{view.failed} failed")
    if view.rate:
        words.append(f"{view.rate:,.1f}/s")
    if view.eta_s is not None and not view.ended:
        words.append(f"{duration(view.eta_s)} left")
    text = "  ".join(words)
    room = min(40, width - len(text) - 4)
    if view.total and room >= 10:
        done = int(room * view.settled / view.total)
        text = f"[{'#' * done}{'.' * (room - done)}] {text}"
    return text[: max(1, width - 1)]


def duration(seconds: float) -> str:
    """Format a duration: 3.2 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
