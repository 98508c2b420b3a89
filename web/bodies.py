"""A request's body: unpacked as it comes, counted, and never more than a limit of it. Small in memory at any size."""

import contextlib
import gzip
import sys
import time
import zlib
from collections.abc import Iterator
from typing import IO, cast

from flask import request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]

from web.refusal import Refused, broken, too_large

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Bytes read at a time.
BLOCK = 1 << 16
#: Log of the largest window a zstd body may ask for: 8 MB, which levels up to 19 stay within.
WINDOW_LOG = 23
#: Bytes, and seconds, that are read of a body nobody wants any more.
DRAIN_BYTES = 64 << 20
DRAIN_S = 5.0


def drain() -> None:
    """Read what is left of a body that was refused, or of which only the first items are wanted: most clients do not
    look at the answer before they have sent all of it."""
    deadline, left = time.monotonic() + DRAIN_S, DRAIN_BYTES
    if request.content_length is None and not request.environ.get("wsgi.input_terminated"):
        return
    with contextlib.suppress(OSError, ParseException):
        while left > 0 and time.monotonic() < deadline and (data := request.environ["wsgi.input"].read(BLOCK)):
            left -= len(data)


class _Received:
    """The body as it comes over the wire. Says so when the client leaves before its end."""

    def __init__(self) -> None:
        # Flask's own stream does not notice a body that ends early when the server marks it as terminated.
        self._stream = cast(IO[bytes], request.environ["wsgi.input"])
        self._has_end = bool(request.environ.get("wsgi.input_terminated"))
        self._expected = request.content_length
        self._seen = 0

    def read(self, size: int = -1) -> bytes:
        if self._expected is None and not self._has_end:
            return b""
        size = BLOCK if size < 0 else size
        if self._expected is not None:
            size = min(size, self._expected - self._seen)
        try:
            data = self._stream.read(size) if size else b""
        except TimeoutError as error:
            raise Refused(408, "timeout", "Too slow", "The body did not come in time: send it again.") from error
        except (OSError, ParseException) as error:
            raise broken("The body ended early, or its chunks cannot be read: send it again.") from error
        self._seen += len(data)
        if size and not data and self._expected is not None:
            raise broken(f"The body ended after {self._seen} of {self._expected} bytes: send it again.")
        return data


class Body:
    """The unpacked body."""

    def __init__(self, most_bytes: float, setting: str) -> None:
        self._most, self._setting = int(most_bytes), setting
        self._seen = 0
        received = cast(IO[bytes], _Received())
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding in ("identity", "") and (request.content_length or 0) > self._most:
            raise self._too_large()
        if encoding in ("gzip", "x-gzip"):
            self._source: IO[bytes] = cast(IO[bytes], gzip.GzipFile(fileobj=received))
        elif encoding == "zstd":
            options = {int(zstd.DecompressionParameter.window_log_max): WINDOW_LOG}
            self._source = cast(IO[bytes], zstd.ZstdFile(received, options=options))
        elif encoding in ("identity", ""):
            self._source = received
        else:
            raise Refused(
                415, "content_encoding", "Unknown content encoding",
                f"The body is packed as {encoding!r}: send it plain, or packed with gzip or zstd.",
                "Content-Encoding", {"Accept-Encoding": "gzip, zstd"},
            )  # fmt: skip

    def read(self, size: int = BLOCK) -> bytes:
        """At most so many bytes; none at the end."""
        try:
            data = self._source.read(size)
        except (zlib.error, gzip.BadGzipFile, zstd.ZstdError, EOFError) as error:
            raise broken(f"The body cannot be unpacked ({error}): pack it again.", "Content-Encoding") from error
        self._seen += len(data)
        if self._seen > self._most:
            raise self._too_large()
        return data

    def blocks(self) -> Iterator[bytes]:
        while data := self.read():
            yield data

    def whole(self) -> bytes:
        return b"".join(self.blocks())

    def _too_large(self) -> Refused:
        advice = (
            "send the items as JSONL (application/x-ndjson)" if self._setting == "max_body_mb" else "divide the job"
        )
        return too_large(
            f"The body is larger than {self._most / 1e6:g} MB unpacked (ASSAY_{self._setting.upper()}): {advice}."
        )
