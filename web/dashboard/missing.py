"""What a person sees at an address where nothing is. Programs, and paths of the API, get a problem document instead."""

from flask import Response, render_template, request

from web.dashboard.pages import blueprint, flower


def is_for_a_person() -> bool:
    """Whether a browser looked for a page: at a path of the dashboard, or at one that nothing is at."""
    if request.method not in ("GET", "HEAD") or (request.path + "/").startswith("/v1/"):
        return False
    if request.url_rule and request.blueprint != blueprint.name:
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"


def page(sentence: str | None) -> Response:
    told = sentence or f"There is nothing at {request.path[:100]}."
    return Response(render_template("dashboard/missing.html", page="missing", flower=flower(), sentence=told), 404)
