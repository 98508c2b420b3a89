"""The pages: empty frames. What they show comes from the API, so that a page is there even when Redis is not."""

from flask import Blueprint, render_template, request

from config.settings import LOOPBACK
from tasks.errors import UnknownJob
from tasks.jobs.model import JOB_ID
from web.dashboard import charts
from web.dashboard.examples import examples
from web.services import services

blueprint = Blueprint("dashboard", __name__)


@blueprint.get("/")
def overview() -> str:
    return _page("overview")


@blueprint.get("/jobs")
def jobs() -> str:
    return _page("jobs")


@blueprint.get("/jobs/<job_id>")
def job(job_id: str) -> str:
    if not JOB_ID.fullmatch(job_id):
        raise UnknownJob(f"There is no job {job_id[:64]!r}; it may have expired.")
    return _page("job", job_id=job_id, has_tokens=services().tokens is not None)


@blueprint.get("/submit")
def submit() -> str:
    return _page("submit", examples=examples(next(iter(services().board.names()), "main")))


@blueprint.get("/benchmarks")
def benchmarks() -> str:
    return _page("benchmarks")


def _page(name: str, **values: object) -> str:
    return render_template(f"dashboard/{name}.html", page=name, chart_url=charts.url(), flower=flower(), **values)


def flower() -> str:
    settings = services().settings
    return flower_url(settings.flower_host, settings.flower_port)


def flower_url(host: str, port: int) -> str:
    """Where a reader of this page finds Flower. On loopback it is only there for who sits at its host."""
    asked = request.host.rpartition(":")[0] if ":" in request.host.rpartition("]")[2] else request.host
    name = host if host in LOOPBACK else asked
    return f"http://[{name}]:{port}/" if ":" in name and not name.startswith("[") else f"http://{name}:{port}/"
