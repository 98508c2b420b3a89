"""Typed values parsed from the server's responses. Unknown fields of a newer server stay in `raw`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, cast

from assay.errors import UnexpectedReply

#: States in which items run, and final states, as in the server's `tasks/jobs/states.py`.
RUNNABLE = ("queued", "running", "finishing")
ENDED = ("done", "failed", "cancelled")


@cache
def _field_names(kind: type) -> frozenset[str]:
    return frozenset(each.name for each in fields(kind) if each.name != "raw")


def _arguments(kind: type, data: object, needed: str) -> dict[str, Any]:
    """Return the constructor arguments of `kind`; raise UnexpectedReply if the field `needed` is missing.

    A null becomes the field's default, so that a number stays a number.
    """
    if not isinstance(data, Mapping) or needed not in data:
        raise UnexpectedReply(f"Expected a {kind.__name__} with {needed!r}, got {str(data)[:200]!r}.")
    names = _field_names(kind)
    return {name: value for name, value in data.items() if name in names and value is not None}


@dataclass(frozen=True)
class JobView:
    """Snapshot of a job at the server's last response. Times are of the server's clock, in seconds since 1970."""

    id: str
    kind: str = ""
    state: str = "queued"
    priority: str = "normal"
    total: int | None = None
    """Number of items; None while a job is open-ended."""
    ok: int = 0
    failed: int = 0
    cached: int = 0
    epoch: int = 0
    paused: bool = False
    reason: str = ""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Number of failed items by error type."""
    workers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rate: float | None = None
    """Items per second."""
    eta_s: float | None = None
    results_url: str = ""
    events_url: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def settled(self) -> int:
        """Number of items that have an outcome."""
        return self.ok + self.failed

    @classmethod
    def from_json(cls, data: object) -> JobView:
        return cls(**_arguments(cls, data, "id"), raw=cast("Mapping[str, Any]", data))

    def after(self, event: str, data: Mapping[str, Any]) -> JobView:
        """Return a copy of this view, updated with the fields of a server-sent event."""
        updated = ("state", "ok", "failed", "cached", "total", "rate", "eta_s", "paused", "reasons")
        changes = {name: data[name] for name in updated if data.get(name) is not None}
        if event in RUNNABLE:
            changes["state"] = event
        if event in ("paused", "resumed"):
            changes["paused"] = event == "paused"
        return replace(self, **changes)


@dataclass(frozen=True)
class ItemError:
    type: str
    message: str = ""
    retryable: bool = False


@dataclass(frozen=True)
class Row:
    """Outcome of an item. The `score` of an invalid row is None, or the fill value of the request's `on_error`."""

    index: int
    id: str | None = None
    group_id: str | None = None
    status: str = ""
    score: float | None = None
    valid: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    value: Any = None
    error: ItemError | None = None
    cached: bool = False
    attempts: int = 0
    latency_ms: float | None = None
    worker: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, data: object) -> Row:
        arguments = _arguments(cls, data, "index")
        if "error" in arguments:
            arguments["error"] = ItemError(**_arguments(ItemError, arguments["error"], "type"))
        return cls(**arguments, raw=cast("Mapping[str, Any]", data))


@dataclass(frozen=True)
class Calibration:
    """Agreement of a judge's scores with human labels. An undefined measure is None (the correlation of a constant)."""

    job: str
    state: str = ""
    total: int = 0
    pending: int = 0
    """Items without an outcome yet; the comparison leaves them out."""
    n: int = 0
    """Items with score and label, the base of every measure."""
    without_score: int = 0
    without_label: int = 0
    off_scale: int = 0
    """Items with a label outside the scale."""
    agreement: float | None = None
    kappa: float | None = None
    weighted_kappa: float | None = None
    pearson: float | None = None
    spearman: float | None = None
    mean_error: float | None = None
    position: Mapping[str, float | None] = field(default_factory=dict)
    """Position bias of pairwise verdicts: `first_wins`, `verdicts`, `orders_disagree`."""
    length: Mapping[str, float | None] = field(default_factory=dict)
    """Rank correlation of the response's length `with_score`, and `with_error` (score minus label)."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, data: object) -> Calibration:
        return cls(**_arguments(cls, data, "job"), raw=cast("Mapping[str, Any]", data))


@dataclass(frozen=True)
class Scores:
    """Scores in input order with a validity mask. A failed item has the score None, unless the request set a fill."""

    values: list[float | None]
    valid: list[bool]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Scores:
        """Build the scores from rows in input order."""
        values: list[float | None] = []
        valid: list[bool] = []
        for row in rows:
            values.append(row.score)
            valid.append(row.valid)
        return cls(values, valid)

    def filled(self, value: float) -> list[float]:
        """Return the scores, with this value in place of each missing score."""
        return [value if score is None else score for score in self.values]
