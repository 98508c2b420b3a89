"""Base class of the blocking and the asyncio job: holds the last view, and the rows that a submit returned with it."""

from __future__ import annotations

from typing import TypeVar

from assay.errors import JobFailed
from assay.model import JobView, Row

J = TypeVar("J", bound="BaseJob")


class BaseJob:
    def __init__(self, view: JobView, rows: list[Row] | None = None) -> None:
        self.view = view
        self.cached_rows = rows if rows is not None and view.ended and len(rows) == view.total else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state} {self.view.settled}/{self.view.total}>"

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def ended(self) -> bool:
        return self.view.ended

    def accept(self, view: JobView) -> None:
        """Replace the view by a newer snapshot, and drop cached rows of an earlier epoch."""
        if view.epoch != self.view.epoch or not view.ended:
            self.cached_rows = None
        self.view = view

    def accept_if_view(self, event: object) -> bool:
        """Accept the event if it is a job view; return whether it is."""
        if isinstance(event, JobView):
            self.accept(event)
            return True
        return False

    def require_success(self: J) -> J:
        if self.state in ("failed", "cancelled"):
            raise JobFailed(self.view)
        return self

    def end_index(self, start: int, limit: int | None) -> int | None:
        """Return the index up to which every item is known to have a row, or None while the job still runs."""
        if not self.ended or self.view.total is None:
            return None
        return self.view.total if limit is None else min(self.view.total, start + limit)
