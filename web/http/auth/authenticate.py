"""Authentication of every request: its bearer token, or, without tokens, its host name; and its origin."""

from flask import Flask, g, request

from config.settings import LOOPBACK
from web.http.auth.tokens import Token
from web.http.http_error import HttpError
from web.services import services

#: Paths that need no token: load balancers and containers ask them.
OPEN = ("/health", "/ready")
#: Paths of trainers, which cannot set a header: they accept the token in the query as well.
TRAINERS = ("/get_reward", "/rm", "/verify", "/score", "/pool_status")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: Seconds a client may take to send or accept the next bytes.
CLIENT_TIMEOUT_S = 60.0


def init_app(app: Flask) -> None:
    app.before_request(_check)


def token() -> Token | None:
    """Return the token that authenticated this request; None where the server needs no tokens."""
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
    # A browser cannot send a bearer token by itself, so it may send the token as the password of any user. The URL
    # http://TOKEN@host arrives as a user without a password.
    return given.password or given.username


def _authenticated() -> Token:
    tokens, secret = services().tokens, _secret()
    found = tokens.find(secret) if tokens and secret else None
    if found is None:
        wants_page = request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"
        basic, bearer = 'Basic realm="Assay: any user, a token as the password"', 'Bearer realm="Assay"'
        # Both challenges, each in a header line of its own. A browser requests the files of a page at other paths
        # without its password first, and sends the password only after a challenge.
        challenge = [basic, bearer] if wants_page else [bearer, basic]
        detail = "The token is unknown" if secret else "The request has no token"
        ways = ", http://TOKEN@host, or ?token=TOKEN" if request.path in TRAINERS else ""
        raise HttpError(
            401,
            "unauthorized",
            "Unauthorized",
            f"{detail}: send the header `Authorization: Bearer TOKEN`{ways}.",
            "Authorization",
            {"WWW-Authenticate": challenge},
        )
    return found


def _require_loopback_name() -> None:
    """Reject host names other than loopback: a web page could point a name of its own at loopback (DNS rebinding)."""
    host = request.host.rpartition(":")[0] if not request.host.endswith("]") and ":" in request.host else request.host
    if host.strip("[]").lower() not in LOOPBACK:
        raise HttpError(
            403,
            "foreign_host",
            "Foreign host",
            f"Without tokens the server accepts loopback names only, not {host[:100]!r}: "
            "use http://127.0.0.1, or set ASSAY_TOKENS_FILE.",
            "Host",
        )


def _refuse_other_sites() -> None:
    """Reject changes from pages of other sites, which use the browser of their reader (cross-site request forgery)."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site not in (None, "same-origin", "none") or (
        origin is not None and origin not in (f"http://{request.host}", f"https://{request.host}")
    ):
        raise HttpError(
            403,
            "foreign_origin",
            "Foreign origin",
            "Pages of other sites may not change data: call the API from this site, or from a program.",
            "Origin",
        )
