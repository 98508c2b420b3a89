"""What the batches of one manager share: whether the server was reached, and its profile that judges for them.

The workers themselves are the server's, or threads of `direct_judge.py`; starting them means to know where they are.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from assay.rewards.judge_profile import JudgeProfile
from assay.rewards.length_penalty_config import LengthPenaltyConfig
from assay.rewards.server_judge import ServerJudge

log = logging.getLogger(__name__)


class Stoppable(Protocol):
    def stop(self) -> None: ...


class JudgeWorkers:
    def __init__(self, config: LengthPenaltyConfig) -> None:
        self._config = config
        self._lock, self._finding = threading.Lock(), threading.Lock()
        self._profile: JudgeProfile | None = None
        self._kept = False
        self._under_way: set[Stoppable] = set()
        self.were_reached = False
        """Whether the server ever answered: from then on its absence is a failure, not a way to set things up."""

    def profile(self) -> JudgeProfile:
        """The one that judges; the first call finds it. Raises ProfileMissing, and AssayError without a server."""
        with self._finding:  # another lock: a submit must not wait for the network
            if (found := self._profile) is None:
                log.info("Starting OpenAI worker processes for asynchronous API calls...")
                found = self._profile = ServerJudge(self._config).find_profile()
                self.were_reached = True
                log.info("OpenAI worker processes started successfully.")
            return found

    def keep(self) -> None:
        """Until `shut_down`, not only until the last batch is over."""
        self._kept = True

    def enter(self, batch: Stoppable) -> None:
        with self._lock:
            self._under_way.add(batch)

    def leave(self, batch: Stoppable) -> None:
        with self._lock:
            self._under_way.discard(batch)
            if not self._under_way and not self._kept:
                self._profile = None

    def shut_down(self) -> None:
        with self._lock:
            under_way = list(self._under_way)
            self._kept, self._profile = False, None
        for batch in under_way:
            batch.stop()
