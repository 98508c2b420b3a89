"""An S3 server on an address of this machine: moto's, which keeps its buckets in memory."""

from collections.abc import Callable
from typing import Any

import s3fs  # type: ignore[import-untyped]

from tests.support.ports import free_port
from tests.support.programs import Program

#: moto accepts every key.
KEY, SECRET = "key-of-the-test", "secret-of-the-test"


class S3Server:
    """Ends with the program of `run`, the fixture that starts it."""

    def __init__(self, run: Callable[..., Program], address: str = "127.0.0.1") -> None:
        self.url = f"http://{address}:{(port := free_port())}"
        self.program = run("python", "-m", "moto.server", "-H", address, "-p", str(port))
        self.program.wait_for(r"Running on http")

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which every program finds the server, without a setting of Assay."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def create_bucket(self, name: str) -> None:
        self._client().mkdir(name)

    def files(self, bucket: str) -> list[str]:
        """Return the paths of all files of a bucket, sorted."""
        return sorted(self._client().find(bucket))

    def buckets(self) -> list[str]:
        return sorted(self._client().ls(""))

    def _client(self) -> Any:
        return s3fs.S3FileSystem(key=KEY, secret=SECRET, endpoint_url=self.url, use_listings_cache=False)
