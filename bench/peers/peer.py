"""What a peer is: one way to have questions answered, with the processes its users would start."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.questions import Question


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer runs, and what it is given. Its processes find the URLs in BENCH_API_URL and BENCH_REDIS_URL too."""

    api_url: str
    redis_url: str
    folder: Path
    in_flight: int
    """Calls in flight at most, over all its processes: the same for every peer. With models: device slots."""

    @property
    def half(self) -> int:
        """What each of two worker groups is given."""
        return max(1, self.in_flight // 2)


class Peer(ABC):
    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    @abstractmethod
    def given(self) -> str:
        """Its processes and threads, in a few words."""

    @abstractmethod
    def running(self) -> AbstractContextManager[None]:
        """Its processes, ready when the block begins and gone when it ends."""

    @abstractmethod
    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        """An answer for each, in order; None for those that have none when patience ends."""

    def victims(self) -> list[int]:
        """The processes that a kill -9 hits, with all below them. None: the program itself, which is then run again."""
        return []
