"""Formats a job as text: a summary line, details, mean scores, the table of a calibration, and lists of jobs."""

from __future__ import annotations

import time
from typing import Any

from assay.cli.screen import Screen
from assay.model import Calibration, JobView, Row
from assay.progress_bar import duration

#: Measures that `assay calibration` prints, in this order.
_MEASURES = (
    ("agreement", "share of scores equal to their label, rounded to the steps of the scale"),
    ("kappa", "agreement beyond chance (Cohen's kappa)"),
    ("weighted_kappa", "Cohen's kappa, where larger differences count more"),
    ("pearson", "correlation of scores and labels"),
    ("spearman", "rank correlation of scores and labels"),
    ("mean_error", "mean of score minus label"),
)
_LENGTH = (
    ("with_score", "rank correlation of response length and score"),
    ("with_error", "rank correlation of response length and score minus label: the judge's length bias"),
)
_POSITION = (
    ("first_wins", "share won by the response shown first; 0.5 without bias"),
    ("orders_disagree", "share of pairs with a different winner when the order is reversed"),
)


class RowStatistics:
    """Running counts and mean scores over a stream of rows; uses constant memory."""

    def __init__(self) -> None:
        self.rows = self.valid = self.cached = 0
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, row: Row) -> None:
        self.rows += 1
        self.valid += row.valid
        self.cached += row.cached
        if row.valid:
            for name, score in {"score": row.score, **row.parts}.items():
                if score is not None:
                    total, count = self._sums.get(name, (0.0, 0))
                    self._sums[name] = (total + score, count + 1)

    def as_json(self) -> dict[str, Any]:
        means = {name: total / count for name, (total, count) in self._sums.items()}
        return {"rows": self.rows, "valid": self.valid, "cached": self.cached, "means": means}


def one_line(view: JobView) -> str:
    """Format the state of a job and the number of its items by outcome in a line; failed items add a second line."""
    words = f"{view.id} {view.state}: {view.settled} of {'?' if view.total is None else view.total} items"
    words += f", {view.ok} ok, {view.failed} failed"
    if view.cached:
        words += f", {view.cached} cached"
    if view.started_at and view.ended_at:
        words += f", {duration(view.ended_at - view.started_at)}"
    if view.reason:
        words += f"; {view.reason}"
    if view.reasons:
        words += "\n  failed: " + ", ".join(f"{name} {count}" for name, count in view.reasons.items())
    return words


def show(screen: Screen, view: JobView, statistics: RowStatistics) -> None:
    if screen.as_json:
        screen.json({"job": dict(view.raw), **statistics.as_json()})
        return
    screen.line(one_line(view))
    for name, mean in statistics.as_json()["means"].items():
        screen.line(f"  mean {name}: {mean:.6g}")


def calibration(screen: Screen, result: Calibration) -> None:
    words = f"{result.job} {result.state}: {result.n} of {result.total} items have score and label"
    excluded = {
        "pending": result.pending,
        "without score": result.without_score,
        "without label": result.without_label,
        "label not on the scale": result.off_scale,
    }
    screen.line(words + "".join(f", {count} {name}" for name, count in excluded.items() if count))
    rows = [(name, getattr(result, name), meaning) for name, meaning in _MEASURES]
    rows += [(f"length {name}", result.length.get(name), meaning) for name, meaning in _LENGTH]
    if result.position.get("verdicts"):
        rows += [(f"position {name}", result.position.get(name), meaning) for name, meaning in _POSITION]
    shown = [(name, "undefined" if value is None else f"{value:.3f}", meaning) for name, value, meaning in rows]
    screen.table(("measure", "value", "meaning"), shown)


def details(screen: Screen, view: JobView) -> None:
    screen.line(one_line(view))
    pairs: list[tuple[str, object]] = [("kind", view.kind), ("priority", view.priority)]
    if view.paused:
        pairs.append(("paused", "yes"))
    if view.created_at:
        pairs.append(("age", duration(max(0.0, time.time() - view.created_at))))
    if view.rate:
        pairs.append(("rate", f"{view.rate:,.1f} items/s"))
    if view.eta_s is not None and not view.ended:
        pairs.append(("time left", duration(view.eta_s)))
    pairs += [("worker", f"{name}: {share.get('items', 0):g} items") for name, share in view.workers.items()]
    for name, value in pairs:
        screen.line(f"  {name}: {value}")


def listing(screen: Screen, views: list[JobView]) -> None:
    now = time.time()
    screen.table(
        ("job", "kind", "state", "items", "total", "failed", "age"),
        [
            (
                view.id,
                view.kind,
                "paused" if view.paused and not view.ended else view.state,
                view.settled,
                view.total,
                view.failed,
                duration(max(0.0, now - view.created_at)) if view.created_at else "",
            )
            for view in views
        ],
    )
