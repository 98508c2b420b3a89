"""Chart.js, which draws the charts, from a wheel that has it: nothing of it is in this repository or fetched elsewhere.

The wheel is `chartkick`, of which only this file is used: MIT, no dependencies, one 957 kB bundle. It is sent packed
(165 kB), and kept by browsers for a year under a name that changes with its content.
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
    known, plain, packed = _files()
    if name != known:
        raise NotFound
    is_packed = request.accept_encodings["gzip"] > 0
    response = Response(packed if is_packed else plain, mimetype="text/javascript")
    response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
    response.headers["Vary"] = "Accept-Encoding"
    if is_packed:
        response.headers["Content-Encoding"] = "gzip"
    return response


def url() -> str:
    return f"/charts/{_files()[0]}"


@functools.cache
def _files() -> tuple[str, bytes, bytes]:
    """Its name, as it is and packed. The package is not imported: it would look for Django."""
    spec = importlib.util.find_spec("chartkick")
    assert spec is not None, "chartkick is in requirements/web.in"
    plain = (Path(str(spec.origin)).parent / "django/static/chartkick/Chart.bundle.js").read_bytes()
    return f"chart.{hashlib.sha256(plain).hexdigest()[:12]}.js", plain, gzip.compress(plain, 9, mtime=0)
