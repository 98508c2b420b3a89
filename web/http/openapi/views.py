"""`/openapi.json` and `/docs`: the OpenAPI document, and Swagger UI to read it, served from our own disk."""

import functools
import importlib.util
from pathlib import Path

from flask import Blueprint, Response, current_app, render_template, send_file
from werkzeug.exceptions import NotFound

from web.http.json_responses import encode
from web.http.openapi import document

blueprint = Blueprint("docs", __name__)

_ASSETS = {"swagger-ui.css": "css/swagger-ui.css", "swagger-ui-bundle.js": "js/swagger-ui-bundle.js"}


@blueprint.get("/openapi.json")
def openapi_json() -> Response:
    app = current_app._get_current_object()  # type: ignore[attr-defined]
    if "openapi" not in app.extensions:
        app.extensions["openapi"] = encode(document.build(app))
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
    """Return the folder of Swagger UI's files in its wheel. Not imported: the import would load an unused framework."""
    spec = importlib.util.find_spec("flask_openapi3_swagger")
    assert spec is not None, "flask-openapi3-swagger is in requirements/web.in"
    return Path(str(spec.origin)).parent / "templates" / "swagger"
