"""The pages for people. For now one: who is there and what waits."""

from flask import Blueprint, render_template

from config.settings import DEVELOPMENT_NOTE
from web import fleet
from web.services import services

blueprint = Blueprint("pages", __name__)


@blueprint.get("/")
def overview() -> str:
    settings = services().settings
    return render_template(
        "overview.html",
        workers=services().registry.workers(),
        queues=fleet.queue_rows(),
        flower_port=settings.flower_port,
        note=DEVELOPMENT_NOTE if settings.uses_development_api else "",
    )
