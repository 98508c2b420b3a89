"""Interface of a peer: a tool that answers questions, with the processes that its users would start."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.workload.judge_questions import Question


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """Addresses and limits for a peer. Its processes also find the URLs in BENCH_API_URL and BENCH_REDIS_URL."""

    api_url: str
    redis_url: str
    folder: Path
    in_flight: int
    """Maximum number of calls in flight over all processes, equal for every peer. For inference: number of device
    slots."""

    @property
    def half(self) -> int:
        """Calls in flight of each of two worker groups."""
        return max(1, self.in_flight // 2)


class Peer(ABC):
    def __init__(self, setup: PeerSetup) -> None:
        self.setup = setup

    @property
    @abstractmethod
    def resources(self) -> str:
        """Short description of its processes and threads."""

    @abstractmethod
    def running(self) -> AbstractContextManager[None]:
        """Run its processes: they are ready when the block starts, and have ended after it."""

    @abstractmethod
    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        """Return the answers in order; None for each question without an answer at the timeout."""

    def kill_targets(self) -> list[int]:
        """Return the processes for the kill test, which also kills their descendants. Empty: kill and rerun the peer
        process."""
        return []
