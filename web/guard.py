"""Who may come in, and from where; and the headers that every answer carries."""

from flask import Flask, Response, g, request

from config.settings import LOOPBACK
from web.bodies import drain
from web.refusal import Refused
from web.services import services
from web.tokens import Token

#: What load balancers and containers ask without a token.
OPEN = ("/health", "/ready")
#: What trainers call that cannot set a header: these take the token in the query too.
TRAINERS = ("/get_reward", "/rm", "/verify", "/score", "/pool_status")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: Seconds a client may take to send or accept the next bytes.
CLIENT_TIMEOUT_S = 60.0

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
    app.before_request(_check)
    app.after_request(_finish)


def token() -> Token | None:
    """The token this request came with; None when none is asked for."""
    found: Token | None = g.get("token")
    return found


def _check() -> None:
    if connection := request.environ.get("gunicorn.socket"):
        connection.settimeout(CLIENT_TIMEOUT_S)
    if request.path in OPEN:
        return
    if services().tokens is None:
        _require_loopback_name()
    else:
        g.token = _authenticated()
    if request.method not in SAFE_METHODS:
        _refuse_other_sites()


def _secret() -> str | None:
    given = request.authorization
    if given is None:
        return request.args.get("token") if request.path in TRAINERS else None
    if given.type == "bearer":
        return given.token
    # A browser cannot send a bearer token by itself: it may give the token as the password of any user. A URL such as
    # http://TOKEN@host comes as a user without a password.
    return given.password or given.username


def _authenticated() -> Token:
    tokens, secret = services().tokens, _secret()
    found = tokens.find(secret) if tokens and secret else None
    if found is None:
        wants_page = request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"
        basic, bearer = 'Basic realm="Assay: any user, a token as the password"', 'Bearer realm="Assay"'
        # Both, each in a line of its own: what a page loads further down another path, a browser asks for without its
        # password first, and sends that only where it is asked for.
        challenge = [basic, bearer] if wants_page else [bearer, basic]
        detail = "This token is not known" if secret else "A token is needed"
        ways = ", http://TOKEN@host, or ?token=TOKEN" if request.path in TRAINERS else ""
        raise Refused(
            401, "unauthorized", "Unauthorized", f"{detail}: send the header `Authorization: Bearer TOKEN`{ways}.",
            "Authorization", {"WWW-Authenticate": challenge},
        )  # fmt: skip
    return found


def _require_loopback_name() -> None:
    """Without tokens a web page must not reach us by a name of its own that it points at loopback (DNS rebinding)."""
    host = request.host.rpartition(":")[0] if not request.host.endswith("]") and ":" in request.host else request.host
    if host.strip("[]").lower() not in LOOPBACK:
        raise Refused(
            403, "foreign_host", "Foreign host", f"Without tokens only loopback names are served, not {host[:100]!r}: "
            "use http://127.0.0.1, or set ASSAY_TOKENS_FILE.", "Host",
        )  # fmt: skip


def _refuse_other_sites() -> None:
    """A page of another site must not change anything through its reader's browser."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site not in (None, "same-origin", "none") or (
        origin is not None and origin not in (f"http://{request.host}", f"https://{request.host}")
    ):
        raise Refused(
            403, "foreign_origin", "Foreign origin", "Pages of other sites may not change anything here.", "Origin"
        )


def _finish(response: Response) -> Response:
    if request.method not in SAFE_METHODS:
        drain()
    response.headers.update(_HEADERS)
    is_page = response.mimetype in ("text/html", "text/css", "text/javascript", "image/svg+xml")
    response.headers["Content-Security-Policy"] = _PAGE_POLICY if is_page else _DATA_POLICY
    response.headers.setdefault("Cache-Control", "no-store")
    return response
