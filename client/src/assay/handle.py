"""What a blocking and an asyncio job have in common: the last view, and the rows that came along."""

from __future__ import annotations

from typing import TypeVar

from assay.errors import JobFailed
from assay.model import JobView, Row

H = TypeVar("H", bound="Handle")


class Handle:
    def __init__(self, view: JobView, rows: list[Row] | None = None) -> None:
        self.view = view
        self.kept = rows if rows is not None and view.ended and len(rows) == view.total else None

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
        """Take a newer view; rows of an earlier epoch are forgotten."""
        if view.epoch != self.view.epoch or not view.ended:
            self.kept = None
        self.view = view

    def note(self, told: object) -> bool:
        """Whether this is a view, which is kept then."""
        if isinstance(told, JobView):
            self.accept(told)
            return True
        return False

    def checked(self: H) -> H:
        if self.state in ("failed", "cancelled"):
            raise JobFailed(self.view)
        return self

    def stop_index(self, start: int, limit: int | None) -> int | None:
        """The index up to which every item has a row, if that is certain."""
        if not self.ended or self.view.total is None:
            return None
        return self.view.total if limit is None else min(self.view.total, start + limit)
