"""Address of a policy server."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEFAULT_PORTS = {"ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    """`ws://host:port`, or `wss://`; without user, password or query."""
    api_key: str = field(default="", repr=False)
    version: str = ""
    """Version of its policy, if the server does not report a version itself."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or DEFAULT_PORTS[parts.scheme]

    @property
    def is_secure(self) -> bool:
        return self.url.startswith("wss://")
