"""Many episodes at a time on a process's policy servers.

Several share a server, so that one's simulator steps while the server infers for another: with one in flight per server
it has hardly a pause. An episode stays with its server; the next episode goes to whichever has the fewest.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from tasks.episodes.model import Episode, EpisodeSpec
from tasks.errors import AssayError, NoLongerWanted, PolicyUnavailable
from workers.environments.simulators import Simulators
from workers.policies.episode import Policy, run_episode
from workers.policies.pace import Pace
from workers.policies.pool import Pool

#: Seconds between two looks for a server with room, and at whether the work is still wanted.
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
        """`per_server`: episodes that share one at most; `wait_s`: how long one that is away is waited for;
        `episode_s`: what an episode may take."""
        self.pool, self._simulators = pool, simulators
        self._per_server, self._wait_s, self._episode_s = per_server, wait_s, episode_s
        self._pace = Pace(per_server)

    def run(
        self, specs: Sequence[EpisodeSpec], is_cancelled: Callable[[], bool] = lambda: False, most: int | None = None
    ) -> Iterator[tuple[int, Episode | AssayError]]:
        """`most`: how many at a time at most; None: as many as the servers have room for."""
        run = _Run(specs, is_cancelled)
        self.pool.warm()
        room = max(1, len(self.pool.urls) * self._per_server)
        for _ in range(min(len(specs), room if most is None else min(room, most))):
            threading.Thread(target=self._work, args=(run,), name="episodes", daemon=True).start()
        try:
            for _ in specs:
                yield run.next_result()
        finally:
            run.stop()  # also when the caller has gone

    def close(self) -> None:
        self.pool.close()
        self._simulators.close()

    def _work(self, run: "_Run") -> None:
        while run.has_more():
            with self.pool.seat(self._pace.episodes) as url:
                is_hopeless = url is None and run.waited_s(self.pool) > self._wait_s
                if url is None and not is_hopeless and not run.is_cancelled():
                    time.sleep(LOOK_S)
                elif (index := run.take()) is not None:
                    try:
                        run.put(index, self._run_one(run, run.specs[index], url))
                    except BaseException as error:  # it is the caller's, who waits for this result
                        run.put(index, error)
                        raise

    def _run_one(self, run: "_Run", spec: EpisodeSpec, url: str | None) -> Episode | AssayError:
        if run.is_cancelled():
            return NoLongerWanted()
        if url is None:
            return PolicyUnavailable(f"No policy server was there for {self._wait_s:.0f} s: {self.pool.why()}.")
        deadline = time.monotonic() + self._episode_s
        # Each that shares the server has one call in the row, and each call an end.
        turn_s = self._wait_s + self._per_server * self.pool.limits.reply_s
        policy = Policy(self.pool, url, self._wait_s, turn_s)
        try:
            with self._simulators.take(spec.environment) as simulator:
                episode = run_episode(simulator, policy, spec, deadline, run.is_cancelled)
            self._pace.note(episode.simulated_s, sum(episode.inference_ms) / 1000)
            return episode
        except AssayError as error:
            return error


class _Run:
    """What one call of `run` shares with its threads."""

    def __init__(self, specs: Sequence[EpisodeSpec], is_cancelled: Callable[[], bool]) -> None:
        self.specs = specs
        self._waiting = deque(range(len(specs)))
        self._results: SimpleQueue[tuple[int, Episode | AssayError | BaseException]] = SimpleQueue()
        self._is_cancelled = is_cancelled
        self._stopped = False
        self._asked_at, self._answer = -math.inf, False
        self._seen_at = time.monotonic()

    def has_more(self) -> bool:
        return bool(self._waiting) and not self._stopped

    def take(self) -> int | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def put(self, index: int, result: Episode | AssayError | BaseException) -> None:
        self._results.put((index, result))

    def next_result(self) -> tuple[int, Episode | AssayError]:
        index, result = self._results.get()
        if isinstance(result, Episode | AssayError):
            return index, result
        raise result

    def stop(self) -> None:
        self._stopped = True

    def is_cancelled(self) -> bool:
        """Asked by all threads before every call; the caller's own answer may cost a look into Redis."""
        now = time.monotonic()
        if not self._answer and now - self._asked_at >= LOOK_S:
            self._asked_at, self._answer = now, self._is_cancelled()
        return self._answer or self._stopped

    def waited_s(self, pool: Pool) -> float:
        """Since a server was last there."""
        if any(server.connected for server in pool.status()):
            self._seen_at = time.monotonic()
        return time.monotonic() - self._seen_at
