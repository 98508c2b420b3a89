"""Page for people at an address that does not exist. Programs, and paths of the API, get a problem document instead."""

from flask import Response, render_template, request

from web.dashboard.views import blueprint, flower


def wants_page() -> bool:
    """Return whether a browser requested a page: at a path of the dashboard, or at an unknown path."""
    if request.method not in ("GET", "HEAD") or (request.path + "/").startswith("/v1/"):
        return False
    if request.url_rule and request.blueprint != blueprint.name:
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"


def page(sentence: str | None) -> Response:
    message = sentence or f"The page {request.path[:100]} does not exist."
    return Response(render_template("dashboard/missing.html", page="missing", flower=flower(), sentence=message), 404)
