"""The Flask application factory."""

from flask import Flask

from config.profiles import load_profiles
from config.settings import Settings
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.connections import connect, connect_for_checks, redact
from tasks.deployment_benchmarks.runs import Runs
from tasks.jobs.queries.listing import JobListing
from tasks.jobs.queries.queue_depth import QueueDepthReader
from tasks.jobs.queries.running_chunks import RunningChunks
from tasks.jobs.state.storage_faults import StorageStatus
from tasks.jobs.submission.backlog import Backlog
from tasks.jobs.submission.memory_budget import MemoryBudget
from tasks.providers.profile_status import ProfileStatuses
from tasks.rollouts.rollouts import Rollouts
from tasks.scoring.model import ScoreSpec
from tasks.tracing import create_tracer
from web.benchmarks import views as benchmarks
from web.cache import views as cache
from web.dashboard import charts
from web.dashboard import views as dashboard
from web.fleet import views as fleet
from web.health import views as health
from web.http import bodies, errors, request_metrics, security_headers, tracing
from web.http.auth import authenticate
from web.http.auth.tokens import Tokens
from web.http.long_requests import LongRequests
from web.http.openapi import views as openapi
from web.http.quotas import Quotas
from web.inference import views as inference
from web.jobs import events, files, items, results, summary
from web.jobs import views as jobs
from web.jobs.event_hub import EventHub
from web.judging import views as judging
from web.metrics import views as metrics
from web.overview import views as overview
from web.policies import views as policies
from web.profiles import views as profiles
from web.rewards import named_rewards, trainers
from web.rewards import views as rewards
from web.rollouts import samples as rollout_samples
from web.rollouts import versions as rollout_versions
from web.rollouts import views as rollouts
from web.scorers import views as scorers
from web.services import Services
from web.usage import views as usage

#: Modules with a blueprint: the HTTP API, then the pages.
BLUEPRINTS = (
    health,
    jobs,
    results,
    items,
    summary,
    events,
    files,
    inference,
    judging,
    fleet,
    cache,
    scorers,
    profiles,
    usage,
    rewards,
    trainers,
    policies,
    rollouts,
    rollout_samples,
    rollout_versions,
    benchmarks,
    metrics,
    overview,
    dashboard,
    charts,
    openapi,
)


def create_app(settings: Settings) -> Flask:
    """Build the application. It connects to nothing yet: Redis may start later. Raises SettingsError."""
    app = Flask(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]  # declared by the default provider, not by its base class
    app.url_map.merge_slashes = False  # answer a wrong path with 404, not with a redirect
    celery = create_celery(settings)
    known = load_profiles(settings)
    core = create_core(settings, celery, known, create_tracer(settings, "web"))
    named = named_rewards.usable_rewards(settings, core.kinds)
    app.extensions["assay"] = Services(
        settings=settings,
        state=core.state,
        cache=connect(settings.cache_url),
        celery=celery,
        registry=core.registry,
        storage_status=StorageStatus(core.state, redact(settings.storage_url)),
        core=core,
        jobs=JobListing(core.state, core.store),
        backlog=Backlog(core.state, settings.backlog_items),
        memory_budget=MemoryBudget(core.state, settings.redis_memory_share),
        queue_depth=QueueDepthReader(core.state),
        running_chunks=RunningChunks(core.state),
        request_metrics=request_metrics.RequestMetrics(connect_for_checks(settings.redis_url)),
        metrics_collector=metrics.create_collector(settings, known),
        profile_statuses=ProfileStatuses(core.state, known),
        tokens=Tokens(settings.tokens_file) if settings.tokens_file else None,
        quotas=Quotas(core.state),
        event_hub=EventHub(core.state),
        long_requests=LongRequests(settings.web_threads),
        rewards=named,
        reward_parts={each.name: named_rewards.part_names(ScoreSpec.model_validate(each.spec)) for each in named},
        rollouts=Rollouts(core, celery),
        runs=Runs(core, known),
    )
    tracing.init_app(app, core.tracer)  # the first to see a request, and the last to see its response
    request_metrics.init_app(app)
    bodies.init_app(app)
    security_headers.init_app(app)
    authenticate.init_app(app)
    errors.init_app(app)
    overview.init_app(app)
    for module in BLUEPRINTS:
        app.register_blueprint(module.blueprint)
    return app
