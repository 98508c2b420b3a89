"""URLs of Redis: a single server (`redis://`, `rediss://`), or a primary that Redis Sentinel names.

A Sentinel URL is `redis+sentinel://[user:password@]host:port[,host:port...]/service/db`; `rediss+sentinel://` uses TLS.
The user and password are those of Redis; `?sentinel_password=` is the password of the Sentinels.
"""

import ssl
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

SENTINEL_SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
#: Port of a Sentinel whose port the URL does not name.
SENTINEL_PORT = 26379
#: Timeout in seconds of the broker connection's requests to a Sentinel that has a password.
SENTINEL_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """A parsed Sentinel URL."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    """Name of the primary in the configuration of the Sentinels."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_password: str | None = None
    has_tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL. Raises ValueError, whose message names the mistake."""
        scheme, _, rest = url.partition("://")
        hosts, _, path = rest.partition("/")
        login, _, hosts = hosts.rpartition("@")
        path, _, query = path.partition("?")
        service, _, db = path.partition("/")
        if not service:
            raise ValueError("a Sentinel URL names the service: redis+sentinel://host:26379/mymaster/0")
        if db and not db.isdigit():
            raise ValueError("the database of a Sentinel URL must be a number: redis+sentinel://host:26379/mymaster/0")
        username, _, password = login.partition(":")
        given = parse_qs(query).get("sentinel_password", [""])[0]
        return cls(
            tuple(_address(each) for each in hosts.split(",")),
            unquote(service),
            int(db or 0),
            unquote(username) or None,
            unquote(password) or None,
            given or None,
            scheme == "rediss+sentinel",
        )

    def sentinel_options(self) -> dict[str, Any]:
        """Return the options of the connections to the Sentinels."""
        return {"password": self.sentinel_password} if self.sentinel_password else {}

    def redis_options(self) -> dict[str, Any]:
        """Return the options of the connections to Redis."""
        options: dict[str, Any] = {"db": self.db, "username": self.username, "password": self.password}
        return options | ({"ssl": True} if self.has_tls else {})

    def broker_url(self) -> str:
        """Return the URL in the form of Celery, which lists a URL for each Sentinel."""
        login = f"{quote(self.username or '')}:{quote(self.password, safe='')}@" if self.password else ""
        return ";".join(f"sentinel://{login}{_host(host)}:{port}/{self.db}" for host, port in self.sentinels)

    def transport_options(self) -> dict[str, Any]:
        """Return the options that Celery's broker connection needs besides the URL."""
        if not (options := self.sentinel_options()):
            return {"master_name": self.service}
        timeout = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
        return {"master_name": self.service, "sentinel_kwargs": timeout | options}

    def broker_tls(self) -> dict[str, Any] | None:
        """Return the TLS options of Celery's broker connection, whose URL form has none; None without TLS."""
        return {"ssl_cert_reqs": ssl.CERT_REQUIRED} if self.has_tls else None


def is_sentinel(url: str) -> bool:
    return url.startswith(SENTINEL_SCHEMES)


def redact(url: str) -> str:
    """Return the URL without its password and query, for logs and messages."""
    scheme, separator, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    login, at, hosts = netloc.rpartition("@")
    if ":" in login:
        login = login.partition(":")[0] + ":***"
    return f"{scheme}{separator}{login}{at}{hosts}{slash}{path}{'?***' if query else ''}"


def _address(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        raise ValueError(f"{text!r} is not host:port of a Sentinel")
    return host, port or SENTINEL_PORT


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
