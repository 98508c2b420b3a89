"""State shared by the batches of a manager: the server's API profile for judging, and whether the server was reached.

The worker processes belong to the server. Starting them here means to find the profile and to check that an API worker
of the server is ready.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from assay.rewards.length_penalty.config import LengthPenaltyConfig
from assay.rewards.length_penalty.judge_profile import JudgeProfile
from assay.rewards.length_penalty.server_judge import ServerJudge

log = logging.getLogger(__name__)


class Stoppable(Protocol):
    def stop(self) -> None: ...


class JudgeWorkers:
    def __init__(self, config: LengthPenaltyConfig) -> None:
        self._config = config
        self._lock, self._lookup_lock = threading.Lock(), threading.Lock()
        self._profile: JudgeProfile | None = None
        self._kept = False
        self._in_flight: set[Stoppable] = set()
        self.server_was_reached = False
        """Whether the server has ever responded. From then on an unavailable server is a failure; before that, it
        counts as a set-up without a server."""

    def profile(self) -> JudgeProfile:
        """Return the profile that judges; the first call looks it up. Raise ProfileMissing, or AssayError if the server
        is unavailable."""
        with self._lookup_lock:  # a separate lock, because a submit must not wait for the network
            if (found := self._profile) is None:
                log.info("Starting OpenAI worker processes for asynchronous API calls...")
                judge = ServerJudge(self._config)
                found = self._profile = judge.find_profile()
                self.server_was_reached = True
                if judge.has_ready_worker():
                    log.info("OpenAI worker processes started successfully.")
                else:
                    log.info("The server reports no ready API worker yet: responses are judged once a worker is ready.")
            return found

    def keep_until_shutdown(self) -> None:
        """Keep the profile until `shut_down`, instead of until the last batch ends."""
        self._kept = True

    def register(self, batch: Stoppable) -> None:
        with self._lock:
            self._in_flight.add(batch)

    def unregister(self, batch: Stoppable) -> None:
        with self._lock:
            self._in_flight.discard(batch)
            if not self._in_flight and not self._kept:
                self._profile = None

    def shut_down(self) -> None:
        with self._lock:
            in_flight = list(self._in_flight)
            self._kept, self._profile = False, None
        for batch in in_flight:
            batch.stop()
