"""`/openapi.json` and `/docs`: the document, and Swagger UI to read it, from our own disk and no other host."""

import functools
import importlib.util
from pathlib import Path

from flask import Blueprint, Response, current_app, render_template, send_file
from werkzeug.exceptions import NotFound

from web import openapi
from web.answers import encode

blueprint = Blueprint("docs", __name__)

VERSION = "1"
_ASSETS = {"swagger-ui.css": "css/swagger-ui.css", "swagger-ui-bundle.js": "js/swagger-ui-bundle.js"}


@blueprint.get("/openapi.json")
def document() -> Response:
    app = current_app._get_current_object()  # type: ignore[attr-defined]
    if "openapi" not in app.extensions:
        app.extensions["openapi"] = encode(openapi.build(app, VERSION))
    return Response(app.extensions["openapi"], mimetype="application/json")


@blueprint.get("/docs")
def page() -> str:
    return render_template("docs.html")


@blueprint.get("/docs/<name>")
def asset(name: str) -> Response:
    if name not in _ASSETS:
        raise NotFound
    return send_file(_swagger_ui() / _ASSETS[name], max_age=86400)


@functools.cache
def _swagger_ui() -> Path:
    """Where the wheel keeps Swagger UI's files. Not imported: it would bring in a framework that is not used here."""
    spec = importlib.util.find_spec("flask_openapi3_swagger")
    assert spec is not None, "flask-openapi3-swagger is in requirements/web.in"
    return Path(str(spec.origin)).parent / "templates" / "swagger"
