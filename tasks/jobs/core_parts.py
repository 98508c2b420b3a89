"""The shared parts of the job core: state, storage, cache, kinds and dispatch of one process."""

from dataclasses import dataclass

from redis import Redis

from tasks.jobs.dispatch.dispatcher import Dispatcher
from tasks.jobs.kind import Kinds
from tasks.jobs.state.cache import Cache
from tasks.jobs.state.job_store import JobStore
from tasks.jobs.state.large_values import LargeValues
from tasks.jobs.state.ledger import Ledger
from tasks.jobs.state.outcome_store import OutcomeStore
from tasks.jobs.state.payloads import Payloads
from tasks.jobs.state.storage import Storage
from tasks.worker_registry import Registry


@dataclass(frozen=True, kw_only=True)
class CoreParts:
    """Dependencies of submission, execution, recovery and queries. Connects on first use."""

    state: Redis
    ledger: Ledger
    storage: Storage
    payloads: Payloads
    store: JobStore
    outcomes: OutcomeStore
    cache: Cache
    kinds: Kinds
    registry: Registry
    dispatcher: Dispatcher

    def values(self) -> LargeValues:
        """Return a store for values too large for Redis."""
        return LargeValues(self.storage, lambda: {worker.host for worker in self.registry.workers()})
