"""Connection settings: URL and bearer token of the server, from arguments, else from ASSAY_URL and ASSAY_TOKEN."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from assay.version import VERSION

DEFAULT_URL = "http://127.0.0.1:6006"
#: Timeouts in seconds: to connect; between two bytes of an ordinary response; between two writes of a request body.
CONNECT_S, ANSWER_S, SEND_S = 10.0, 60.0, 60.0
#: Seconds that a call may wait for a free connection of this client's connection pool.
POOL_S = 300.0
#: Event streams that a client holds open at a time; further waits poll instead.
MAX_EVENT_STREAMS = 4


@dataclass(frozen=True, repr=False)
class Connection:
    url: str
    token: str

    @classmethod
    def of(cls, url: str | None, token: str | None) -> Connection:
        """Read the environment for each argument that is None. Raise ValueError if the URL is malformed."""
        url = (url or os.environ.get("ASSAY_URL") or DEFAULT_URL).strip().rstrip("/")
        token = os.environ.get("ASSAY_TOKEN", "") if token is None else token
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a URL of the form {DEFAULT_URL}")
        return cls(url, token.strip())

    @property
    def headers(self) -> dict[str, str]:
        sent = {"User-Agent": f"assay-client/{VERSION}", "Accept": "application/json"}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        return sent

    def timeout(self, read_s: float | None) -> httpx.Timeout:
        return httpx.Timeout(connect=CONNECT_S, read=read_s or ANSWER_S, write=SEND_S, pool=POOL_S)
