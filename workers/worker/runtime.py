"""Resources of one worker process: its asyncio loop, API clients, model engine and policy servers.

Each is built on first use, in the process that uses it: a prefork child must not inherit a loop or a socket.
"""

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redis import Redis
from redis.exceptions import RedisError

from config.profiles import Profiles
from tasks.deployment_benchmarks.model import BENCH, RUNS, Bench
from tasks.episodes.model import EPISODES, Episodes
from tasks.inference.engine import ENGINE, Engine
from tasks.jobs.core import JobCore
from tasks.jobs.execution.runner import RUNNER, Runner
from tasks.jobs.states import ACTIVE
from tasks.providers.call import ASK, Ask
from tasks.runtime import Resource
from tasks.tracing import close_tracer
from tasks.worker_registry import MODELS_TOLD_S, Worker
from workers.worker.event_loop import EventLoop

if TYPE_CHECKING:
    from tasks.deployment_benchmarks.runs import Runs
    from workers.engines.engine import TransformersEngine
    from workers.engines.model_cache import ModelInventory
    from workers.policies.core import Policies
    from workers.providers.api_calls import ApiCalls

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Maximum seconds for closing connections: a worker that ends must not wait for a Redis that is unreachable.
CLOSE_S = 5.0


class ProcessRuntime:
    """Implements tasks.runtime.Runtime."""

    def __init__(
        self, worker: Worker, core: JobCore, profiles: Profiles | None = None, policy_urls: Sequence[str] = ()
    ) -> None:
        """`policy_urls`: the policy servers of a device worker."""
        self.worker = worker.name
        self.state: Redis = core.state  # connects on first use, and again after a fork
        self._core = core
        self._worker = worker
        self._profiles = profiles or Profiles()
        self._runner: Runner | None = None
        self._calls: ApiCalls | None = None
        self._engine: TransformersEngine | None = None
        self._policy_urls = tuple(policy_urls)
        self._policies: Policies | None = None
        self._told_at = 0.0
        self._lock = threading.Lock()
        self._loop = EventLoop()
        self._resources: Mapping[Resource[Any], Callable[[], object | None]] = {
            RUNNER: self._get_runner,
            ENGINE: self._get_engine,
            EPISODES: self._get_episodes,
            ASK: self._get_ask,
            BENCH: self._get_bench,
            RUNS: self._get_runs,
        }

    def find(self, resource: Resource[T]) -> T | None:
        get = self._resources.get(resource)
        return cast("T | None", get()) if get else None

    def get(self, resource: Resource[T]) -> T:
        found = self.find(resource)
        if found is None:
            raise resource.missing_on(self.worker)
        return found

    def _get_runner(self) -> Runner:
        if self._runner is None:
            self._runner = self._core.runner(self._worker, self)
        return self._runner

    def _get_engine(self) -> Engine | None:
        """Return the engine, created on first use in the process that computes: neither launcher nor parent process
        touches a device."""
        if self._worker.pool != "device":
            return None
        with self._lock:
            if self._engine is None:
                # torch takes seconds to import, and few processes need it.
                from workers.engines.engine import EngineOptions, TransformersEngine

                settings = self._core.settings
                memory = int(settings.model_memory_gb * 1e9) if settings.model_memory_gb else None
                options = EngineOptions({}, settings.hub_offline, memory_bytes=memory)
                self._engine = TransformersEngine(options, self._tell_models)
            elif time.monotonic() - self._told_at > MODELS_TOLD_S:
                self._tell_models(self._engine.inventory)
            self._drop_copies(self._engine)
            return self._engine

    def _drop_copies(self, engine: "TransformersEngine") -> None:
        """Drop the model copies of ended rollouts. A rollout has its own copy of its model, because the weights change;
        after the rollout has ended, no request uses the copy again."""
        if not (rollouts := engine.copies):
            return
        try:
            states = self._core.store.states(rollouts)
        except RedisError as error:  # retried later
            log.debug("cannot read the states of rollouts: %s", error)
            return
        for rollout, state in zip(rollouts, states, strict=True):
            if state not in ACTIVE:
                log.info("rollout %s has ended: dropping its copy of the model", rollout)
                engine.drop_copy(rollout)

    def _tell_models(self, inventory: "ModelInventory") -> None:
        self._told_at = time.monotonic()
        try:
            self._core.registry.report_models(self._worker, inventory.loaded, inventory.loading, inventory.weights)
        except RedisError as error:  # the report is repeated later; work does not wait for it
            log.warning("cannot report the loaded models: %s", error)

    def _get_episodes(self) -> Episodes | None:
        """Return the episode runner, created on first use in the process that connects to the servers."""
        if not self._policy_urls:
            return None
        with self._lock:
            if self._policies is None:
                from workers.policies.core import Policies  # numpy and a WebSocket client, which few processes need

                self._policies = Policies(self._core, self._worker, self._policy_urls)
            return self._policies.runner

    def _get_bench(self) -> Bench | None:
        if self._worker.pool != "benchmark":
            return None
        from tasks.deployment_benchmarks.runner import Bench as CoreBench  # every scenario, which few processes need

        return CoreBench(self._core)

    def _get_runs(self) -> "Runs":
        from tasks.deployment_benchmarks.runs import Runs

        return Runs(self._core, self._profiles)

    def _get_ask(self) -> Ask:
        """Return the client of outside APIs; its calls must be awaited on the loop of `run_async`."""
        with self._lock:
            if self._calls is None:
                from workers.providers.api_calls import (
                    ApiCalls,  # the SDK takes a second to import, and few processes need it
                )

                self._calls = ApiCalls(
                    self._profiles, self._core.settings.redis_url, holder=self.worker, tracer=self._core.tracer
                )
            return self._calls

    def prepare(self) -> None:
        """Create slow resources while the worker starts, in the process that runs tasks: the first job must not wait
        for an import, nor for connections to policy servers."""
        if self._worker.pool == "api":
            threading.Thread(target=self._get_ask, name="prepare", daemon=True).start()
        elif self._policy_urls:
            threading.Thread(target=self._get_episodes, name="prepare", daemon=True).start()

    def run_async(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return self._loop.run(work, timeout_s)

    def run_each(
        self, work: Sequence[Coroutine[Any, Any, T]], is_cancelled: Callable[[], bool]
    ) -> Iterator[list[tuple[int, T | BaseException, float]]]:
        return self._loop.run_each(work, is_cancelled)

    def close(self) -> None:
        """Close the connections and stop the loop. No task may run any more."""
        with self._lock:
            calls, self._calls = self._calls, None
            runner, self._runner = self._runner, None
            policies, self._policies = self._policies, None
        if runner:
            runner.close()
        if policies:
            policies.close()
        if calls:
            try:
                self.run_async(calls.close(), CLOSE_S)
            except TimeoutError:
                log.warning("connections to APIs were not closed within %g s; the system closes them", CLOSE_S)
        self._loop.stop()
        close_tracer(self._core.tracer)
