"""The Flask application factory."""

from flask import Flask

from config.profiles import load_profiles
from config.settings import Settings
from tasks.apis.board import Board
from tasks.app import create_celery
from tasks.benchmarks.runs import Runs
from tasks.connections import connect, connect_once
from tasks.jobs.backlog import Backlog
from tasks.jobs.core import create_core
from tasks.jobs.doing import Running
from tasks.jobs.listing import Jobs
from tasks.jobs.waiting import Waiting
from tasks.rollouts.rollouts import Rollouts
from tasks.scoring.model import ScoreSpec
from tasks.tracing import create_tracer
from web import (
    benchmarks,
    cache,
    calibration,
    docs,
    errors,
    events,
    files,
    fleet,
    guard,
    health,
    inference,
    jobs,
    policies,
    profiles,
    results,
    reward_jobs,
    rewards,
    rollout_samples,
    rollout_versions,
    rollouts,
    scorers,
    tracing,
    traffic,
    trainers,
    usage,
)
from web.dashboard import charts, items, overview, pages, summaries
from web.hub import Hub
from web.metrics import view as metrics
from web.quotas import Quotas
from web.seats import Seats
from web.services import Services
from web.tokens import Tokens


def create_app(settings: Settings) -> Flask:
    """Build the application. Connects to nothing: Redis may come up later. Raises SettingsError."""
    app = Flask(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it; its base class does not say
    app.url_map.merge_slashes = False  # a wrong path is wrong, not redirected
    celery = create_celery(settings)
    known = load_profiles(settings)
    core = create_core(settings, celery, known, create_tracer(settings, "web"))
    named = rewards.usable_rewards(settings, core.kinds)
    app.extensions["assay"] = Services(
        settings=settings,
        state=core.state,
        cache=connect(settings.cache_url),
        celery=celery,
        registry=core.registry,
        core=core,
        jobs=Jobs(core.state, core.store),
        backlog=Backlog(core.state, settings.backlog_items),
        waiting=Waiting(core.state),
        running=Running(core.state),
        traffic=traffic.Traffic(connect_once(settings.redis_url)),
        collector=metrics.create_collector(settings, known),
        board=Board(core.state, known),
        tokens=Tokens(settings.tokens_file) if settings.tokens_file else None,
        quotas=Quotas(core.state),
        hub=Hub(core.state),
        seats=Seats(settings.web_threads),
        rewards=named,
        reward_parts={each.name: rewards.part_names(ScoreSpec.model_validate(each.spec)) for each in named},
        reward_door=reward_jobs.create_door(core),
        rollouts=Rollouts(core, celery),
        runs=Runs(core, known),
    )
    tracing.init_app(app, core.tracer)  # the first to see a request, and the last to see its answer
    traffic.init_app(app)
    guard.init_app(app)
    errors.init_app(app)
    overview.init_app(app)
    api = (
        health, jobs, results, files, inference, calibration, events, fleet, cache, scorers, profiles, rewards,
        trainers, policies, usage, rollouts, rollout_samples, rollout_versions, benchmarks, metrics, overview,
        summaries, items,
    )  # fmt: skip
    for module in (*api, pages, charts, docs):
        app.register_blueprint(module.blueprint)
    return app
