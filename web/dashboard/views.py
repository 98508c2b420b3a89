"""Pages of the dashboard: empty frames that load their data from the API, so that a page opens even without Redis."""

from flask import Blueprint, render_template, request

from config.settings import LOOPBACK
from tasks.errors import UnknownJob
from tasks.jobs.model import JOB_ID
from tasks.jobs.states import ACTIVE, ENDED
from web.dashboard import charts
from web.dashboard.examples import examples
from web.services import services

blueprint = Blueprint("dashboard", __name__)


@blueprint.get("/")
def overview() -> str:
    return _page("overview")


@blueprint.get("/jobs")
def jobs() -> str:
    return _page("jobs", states=[*ACTIVE, *ENDED], kinds=sorted(services().core.kinds.names()))


@blueprint.get("/jobs/<job_id>")
def job(job_id: str) -> str:
    if not JOB_ID.fullmatch(job_id):
        raise UnknownJob(f"Job {job_id[:64]!r} does not exist, or has expired.")
    return _page("job", job_id=job_id, has_tokens=services().tokens is not None)


@blueprint.get("/submit")
def submit() -> str:
    return _page("submit", examples=examples(next(iter(services().profile_statuses.names()), "main")))


@blueprint.get("/benchmarks")
def benchmarks() -> str:
    return _page("benchmarks")


def _page(name: str, **values: object) -> str:
    common = {"chart_url": charts.url(), "flower": flower(), "active": ACTIVE}
    return render_template(f"dashboard/{name}.html", page=name, **common, **values)


def flower() -> str:
    settings = services().settings
    return flower_url(settings.flower_host, settings.flower_port)


def flower_url(host: str, port: int) -> str:
    """Return the URL of Flower for the reader of this page. On loopback, only users of the same host can reach it."""
    requested = request.host.rpartition(":")[0] if ":" in request.host.rpartition("]")[2] else request.host
    name = host if host in LOOPBACK else requested
    return f"http://[{name}]:{port}/" if ":" in name and not name.startswith("[") else f"http://{name}:{port}/"
