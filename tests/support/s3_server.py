"""An S3 server on an address of this machine: moto's, which keeps its buckets in memory.

Its methods send plain requests from the calling thread: the thread of fsspec may belong to another network namespace.
"""

import re
import urllib.request
from collections.abc import Callable

from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program


class S3Server:
    """Ends with the program of `run`, the fixture that starts it."""

    def __init__(self, run: Callable[..., Program], address: str = "127.0.0.1") -> None:
        self.url = f"http://{address}:{(port := free_port())}"
        self.program = run("python", "-m", "moto.server", "-H", address, "-p", str(port))
        self.program.wait_for(r"Running on http")

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which every program finds the server, without a setting of Assay. moto accepts every key."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}

    def create_bucket(self, name: str) -> None:
        self._ask("PUT", name)

    def buckets(self) -> list[str]:
        return sorted(re.findall(r"<Name>(.*?)</Name>", self._ask("GET", "")))

    def files(self, bucket: str) -> list[str]:
        """Return the names of the first 1,000 files of a bucket, sorted."""
        return sorted(re.findall(r"<Key>(.*?)</Key>", self._ask("GET", f"{bucket}?list-type=2")))

    def _ask(self, method: str, path: str) -> str:
        request = urllib.request.Request(f"{self.url}/{path}", method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return str(reply.read().decode())
