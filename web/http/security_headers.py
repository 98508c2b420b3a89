"""Security headers of every response: content policy, caching, framing."""

from flask import Flask, Response

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_PAGE_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"


def init_app(app: Flask) -> None:
    app.after_request(_add)


def _add(response: Response) -> Response:
    response.headers.update(_HEADERS)
    is_page = response.mimetype in ("text/html", "text/css", "text/javascript", "image/svg+xml")
    response.headers["Content-Security-Policy"] = _PAGE_POLICY if is_page else _DATA_POLICY
    response.headers.setdefault("Cache-Control", "no-store")
    return response
