"""Runner of concurrent episodes on a process's policy servers.

Several episodes share a server, so that the simulator of one episode steps while the server infers for the next: with
one request in flight, the server hardly idles. An episode stays with its server; a new episode goes to the server with
the fewest episodes.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from config.logging import with_job_context
from tasks.episodes.model import Episode, EpisodeSpec, MoreEpisodes, OnEpisodeEnd
from tasks.errors import AssayError, NoLongerWanted, PolicyUnavailable
from workers.environments.simulator_pool import Simulators
from workers.policies.concurrency import Pace
from workers.policies.episode import Policy, run_episode
from workers.policies.pool import Pool

#: Seconds between two checks for a server with room, and for cancellation.
LOOK_S = 0.1


class EpisodeRunner:
    """Implements tasks.episodes.model.Episodes."""

    def __init__(
        self,
        pool: Pool,
        simulators: Simulators,
        per_server: int = 4,
        wait_s: float = 60.0,
        episode_s: float = math.inf,
    ) -> None:
        """`per_server`: maximum episodes that share a server; `wait_s`: maximum seconds to wait for a disconnected
        server; `episode_s`: timeout of an episode."""
        self.pool, self._simulators = pool, simulators
        self._per_server, self._wait_s, self._episode_s = per_server, wait_s, episode_s
        self._pace = Pace(per_server)

    def run(self, more: MoreEpisodes, on_done: OnEpisodeEnd, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        run = _Run(self.pool)
        self.pool.warm()
        given = under_way = 0
        try:
            while True:
                run.is_stopped = run.is_stopped or is_cancelled()
                room = 0 if run.is_stopped else self._room - under_way
                for spec in more(max(0, room)):
                    run.start(given, spec, self._run_one)
                    given, under_way = given + 1, under_way + 1
                if not under_way:
                    return
                for number, result in run.results(LOOK_S):
                    under_way -= 1
                    on_done(number, result)
        finally:
            run.is_stopped = True  # also if the caller has failed

    def close(self) -> None:
        self.pool.close()
        self._simulators.close()

    @property
    def _room(self) -> int:
        """Maximum concurrent episodes. At least one: without a server it waits for a connection, and fails if the wait
        times out."""
        there = sum(server.connected for server in self.pool.status())
        return max(1, there * self._pace.episodes)

    def _run_one(self, run: "_Run", spec: EpisodeSpec) -> Episode | AssayError:
        while True:
            with self.pool.reserve(self._pace.episodes) as url:
                if run.is_stopped:
                    return NoLongerWanted()
                if url is not None:
                    return self._run_on(run, spec, url)
                if run.alone_s > self._wait_s:
                    why = self.pool.why()
                    return PolicyUnavailable(f"No policy server was connected for {self._wait_s:.0f} s: {why}.")
            time.sleep(LOOK_S)

    def _run_on(self, run: "_Run", spec: EpisodeSpec, url: str) -> Episode | AssayError:
        deadline = time.monotonic() + self._episode_s
        # Each episode on the server has at most one queued call, and each call has a timeout.
        turn_s = self._wait_s + self._per_server * self.pool.limits.reply_s
        policy = Policy(self.pool, url, self._wait_s, turn_s)
        try:
            with self._simulators.take(spec.environment) as simulator:
                episode = run_episode(simulator, policy, spec, deadline, lambda: run.is_stopped)
            self._pace.note(episode.simulated_s, sum(episode.inference_ms) / 1000)
            return episode
        except AssayError as error:
            return error


class _Run:
    """State that one call of `run` shares with the threads of its episodes."""

    def __init__(self, pool: Pool) -> None:
        self.is_stopped = False
        self._pool = pool
        self._seen_at = time.monotonic()
        self._results: SimpleQueue[tuple[int, Episode | AssayError | BaseException]] = SimpleQueue()

    def start(
        self, number: int, spec: EpisodeSpec, work: Callable[["_Run", EpisodeSpec], Episode | AssayError]
    ) -> None:
        def episode() -> None:
            try:
                self._results.put((number, work(self, spec)))
            except BaseException as error:  # raised again in the caller, which waits for this result
                self._results.put((number, error))
                raise

        threading.Thread(target=with_job_context(episode), name=f"episode {number}", daemon=True).start()

    def results(self, timeout_s: float) -> Iterator[tuple[int, Episode | AssayError]]:
        """Yield the available results; wait for the first at most `timeout_s`."""
        with suppress(Empty):
            while True:
                number, result = self._results.get(timeout=timeout_s)
                if not isinstance(result, Episode | AssayError):
                    raise result
                yield number, result
                timeout_s = 0

    @property
    def alone_s(self) -> float:
        """Seconds since a server was last connected."""
        if any(server.connected for server in self._pool.status()):
            self._seen_at = time.monotonic()
        return time.monotonic() - self._seen_at
