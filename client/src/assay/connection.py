"""Where the server is and who we are: from arguments, else from ASSAY_URL and ASSAY_TOKEN."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from assay.version import VERSION

DEFAULT_URL = "http://127.0.0.1:6006"
#: Seconds until a connection stands, and between two bytes of an answer that is not meant to take longer.
CONNECT_S, ANSWER_S, SEND_S = 10.0, 60.0, 60.0
#: Seconds a call may wait for one of this client's own connections.
POOL_S = 300.0
#: Event streams one client holds open at a time; those who wait beyond that poll.
EVENT_STREAMS = 4


@dataclass(frozen=True, repr=False)
class Connection:
    url: str
    token: str

    @classmethod
    def of(cls, url: str | None, token: str | None) -> Connection:
        """Reads the environment for what is None. Raises ValueError for a URL that cannot be one."""
        url = (url or os.environ.get("ASSAY_URL") or DEFAULT_URL).strip().rstrip("/")
        token = os.environ.get("ASSAY_TOKEN", "") if token is None else token
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a URL such as {DEFAULT_URL}")
        return cls(url, token.strip())

    @property
    def headers(self) -> dict[str, str]:
        sent = {"User-Agent": f"assay-client/{VERSION}", "Accept": "application/json"}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        return sent

    def timeout(self, read_s: float | None) -> httpx.Timeout:
        return httpx.Timeout(connect=CONNECT_S, read=read_s or ANSWER_S, write=SEND_S, pool=POOL_S)
