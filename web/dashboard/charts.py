"""Chart.js, which draws the charts, served from a wheel: this repository holds no copy, and no other host is contacted.

The wheel is `chartkick` (MIT, no dependencies), of which only a 957 kB bundle is used. It is sent compressed (165 kB),
and browsers cache it for a year under a name that changes with its content.
"""

import functools
import gzip
import hashlib
import importlib.util
from pathlib import Path

from flask import Blueprint, Response, request
from werkzeug.exceptions import NotFound

blueprint = Blueprint("charts", __name__)


@blueprint.get("/charts/<name>")
def bundle(name: str) -> Response:
    known, plain, compressed = _files()
    if name != known:
        raise NotFound
    is_compressed = request.accept_encodings["gzip"] > 0
    response = Response(compressed if is_compressed else plain, mimetype="text/javascript")
    response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
    response.headers["Vary"] = "Accept-Encoding"
    if is_compressed:
        response.headers["Content-Encoding"] = "gzip"
    return response


def url() -> str:
    return f"/charts/{_files()[0]}"


@functools.cache
def _files() -> tuple[str, bytes, bytes]:
    """Return the bundle's name, its content, and its compressed content. The package is not imported: it needs
    Django."""
    spec = importlib.util.find_spec("chartkick")
    assert spec is not None, "chartkick is in requirements/web.in"
    plain = (Path(str(spec.origin)).parent / "django/static/chartkick/Chart.bundle.js").read_bytes()
    return f"chart.{hashlib.sha256(plain).hexdigest()[:12]}.js", plain, gzip.compress(plain, 9, mtime=0)
