"""Composition root: builds the job core of a process from its settings, with the job kinds of `tasks/kinds.py`."""

from collections.abc import Sequence

from opentelemetry.trace import NoOpTracer, Tracer

from config.profiles import Profiles, load_profiles
from config.settings import Settings
from tasks.app import AssayCelery
from tasks.connections import connect, redact
from tasks.jobs.core import JobCore
from tasks.jobs.dispatch.dispatcher import Dispatcher
from tasks.jobs.kind import Installation, KindFactory, Kinds
from tasks.jobs.state.cache import Cache
from tasks.jobs.state.job_store import JobStore
from tasks.jobs.state.ledger import Ledger, Replicas
from tasks.jobs.state.outcome_store import OutcomeStore
from tasks.jobs.state.payloads import Payloads
from tasks.jobs.state.storage import Storage
from tasks.jobs.state.storage_faults import StorageFaults
from tasks.kinds import KINDS
from tasks.worker_registry import Registry


def create_core(
    settings: Settings,
    app: AssayCelery,
    profiles: Profiles | None = None,
    tracer: Tracer | None = None,
    kinds: Sequence[KindFactory] = KINDS,
) -> JobCore:
    """Build the job core, without opening connections. Raise SettingsError if the profiles' file is invalid."""
    state = connect(settings.redis_url)
    registry = Registry(state, settings.heartbeat_ttl_s)
    installation = Installation(settings, profiles or load_profiles(settings), state, registry)
    found = Kinds([installation.shared(factory) for factory in kinds])
    replicas = Replicas(settings.redis_replicas, settings.redis_replicas_timeout_s)
    ledger = Ledger(state, found.script_hooks(), replicas)
    faults = StorageFaults(state, f"storage {redact(settings.storage_url)}")
    storage = Storage(settings.storage_url, settings.storage_shared, settings.storage_timeout_s, faults)
    payloads = Payloads(state, storage)
    return JobCore(
        state=state,
        ledger=ledger,
        storage=storage,
        payloads=payloads,
        store=JobStore(state),
        outcomes=OutcomeStore(state, storage, payloads),
        cache=Cache(connect(settings.cache_url), settings.cache_ttl_s),
        kinds=found,
        registry=registry,
        dispatcher=Dispatcher(app, ledger, registry),
        settings=settings,
        app=app,
        tracer=tracer or NoOpTracer(),
    )
