"""A job in a few lines: how its items ended, and the mean of what they scored."""

from __future__ import annotations

import time
from typing import Any

from assay.bar import duration
from assay.cli.screen import Screen
from assay.model import Calibration, JobView, Row

#: What `assay calibration` shows of a comparison, in this order.
_MEASURES = (
    ("agreement", "share of scores equal to their label, in the steps of the scale"),
    ("kappa", "the same beyond chance (Cohen)"),
    ("weighted_kappa", "the same, far off counting more"),
    ("pearson", "correlation of scores and labels"),
    ("spearman", "correlation of their ranks"),
    ("mean_error", "score minus label"),
)
_LENGTH = (
    ("with_score", "rank correlation of the response's length with its score"),
    ("with_error", "the same with score minus label: the judge's own leaning"),
)
_POSITION = (
    ("first_wins", "share won by the one shown first; 0.5 without bias"),
    ("orders_disagree", "share of pairs with another winner when turned round"),
)


class Tally:
    """Means over rows that pass by; nothing is kept of them."""

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


def ending(view: JobView) -> str:
    """One line on where a job stands."""
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


def show(screen: Screen, view: JobView, tally: Tally) -> None:
    if screen.as_json:
        screen.json({"job": dict(view.raw), **tally.as_json()})
        return
    screen.line(ending(view))
    for name, mean in tally.as_json()["means"].items():
        screen.line(f"  mean {name}: {mean:.6g}")


def calibration(screen: Screen, found: Calibration) -> None:
    words = f"{found.job} {found.state}: {found.n} of {found.total} items have score and label"
    others = {
        "pending": found.pending,
        "without score": found.without_score,
        "without label": found.without_label,
        "label not on the scale": found.off_scale,
    }
    screen.line(words + "".join(f", {count} {name}" for name, count in others.items() if count))
    rows = [(name, getattr(found, name), about) for name, about in _MEASURES]
    rows += [(f"length {name}", found.length.get(name), about) for name, about in _LENGTH]
    if found.position.get("verdicts"):
        rows += [(f"position {name}", found.position.get(name), about) for name, about in _POSITION]
    shown = [(name, "undefined" if value is None else f"{value:.3f}", about) for name, value, about in rows]
    screen.table(("measure", "value", "meaning"), shown)


def details(screen: Screen, view: JobView) -> None:
    screen.line(ending(view))
    pairs: list[tuple[str, object]] = [("kind", view.kind), ("priority", view.priority)]
    if view.paused:
        pairs.append(("paused", "yes"))
    if view.created_at:
        pairs.append(("age", duration(max(0.0, time.time() - view.created_at))))
    if view.rate:
        pairs.append(("rate", f"{view.rate:,.1f} items/s"))
    if view.eta_s is not None and not view.ended:
        pairs.append(("left", duration(view.eta_s)))
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
