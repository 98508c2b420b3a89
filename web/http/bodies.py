"""Streaming reader of a request's body: decompresses block by block and enforces a size limit.

A body of any size takes little memory.
"""

import contextlib
import gzip
import sys
import time
import zlib
from collections.abc import Iterator
from typing import IO, cast

from flask import Flask, Response, request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]

from web.http.http_error import HttpError, broken, too_large

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Bytes per read.
BLOCK = 1 << 16
#: Base-2 logarithm of the largest window of a zstd body: 8 MB, enough for compression levels up to 19.
WINDOW_LOG = 23
#: Limits on reading the rest of a body that is not needed: bytes, and seconds.
DRAIN_BYTES = 64 << 20
DRAIN_S = 5.0


def init_app(app: Flask) -> None:
    app.after_request(_drain)


def _drain(response: Response) -> Response:
    if request.method not in ("GET", "HEAD", "OPTIONS"):
        drain()
    return response


def drain() -> None:
    """Read the rest of a body that was rejected, or of which only the first items are needed: most clients do not read
    the response before they have sent the whole body."""
    deadline, left = time.monotonic() + DRAIN_S, DRAIN_BYTES
    if request.content_length is None and not request.environ.get("wsgi.input_terminated"):
        return
    with contextlib.suppress(OSError, ParseException):
        while left > 0 and time.monotonic() < deadline and (data := request.environ["wsgi.input"].read(BLOCK)):
            left -= len(data)


class _Received:
    """The body as it arrives over the wire. Raises HttpError when the client disconnects before its end."""

    def __init__(self) -> None:
        # Flask's own stream does not notice a truncated body when the server marks the input as terminated.
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
            raise HttpError(408, "timeout", "Too slow", "The body did not arrive in time: send it again.") from error
        except (OSError, ParseException) as error:
            raise broken("The body ended early, or its transfer chunks cannot be parsed: send it again.") from error
        self._seen += len(data)
        if size and not data and self._expected is not None:
            raise broken(f"The body ended after {self._seen} of {self._expected} bytes: send it again.")
        return data


class Body:
    """The decompressed body, up to a limit of bytes."""

    def __init__(self, max_bytes: float, setting: str) -> None:
        self._max_bytes, self._setting = int(max_bytes), setting
        self._seen = 0
        received = cast(IO[bytes], _Received())
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding in ("identity", "") and (request.content_length or 0) > self._max_bytes:
            raise self._too_large()
        if encoding in ("gzip", "x-gzip"):
            self._source: IO[bytes] = cast(IO[bytes], gzip.GzipFile(fileobj=received))
        elif encoding == "zstd":
            options = {int(zstd.DecompressionParameter.window_log_max): WINDOW_LOG}
            self._source = cast(IO[bytes], zstd.ZstdFile(received, options=options))
        elif encoding in ("identity", ""):
            self._source = received
        else:
            raise HttpError(
                415,
                "content_encoding",
                "Unknown content encoding",
                f"The body is compressed with {encoding!r}: send it plain, or compressed with gzip or zstd.",
                "Content-Encoding",
                {"Accept-Encoding": "gzip, zstd"},
            )

    def read(self, size: int = BLOCK) -> bytes:
        """Return up to `size` bytes; an empty result at the end. Raises HttpError."""
        try:
            data = self._source.read(size)
        except (zlib.error, gzip.BadGzipFile, zstd.ZstdError, EOFError) as error:
            raise broken(
                f"The body cannot be decompressed ({error}): compress it again.", "Content-Encoding"
            ) from error
        self._seen += len(data)
        if self._seen > self._max_bytes:
            raise self._too_large()
        return data

    def blocks(self) -> Iterator[bytes]:
        while data := self.read():
            yield data

    def whole(self) -> bytes:
        return b"".join(self.blocks())

    def _too_large(self) -> HttpError:
        advice = "send the items as JSONL (application/x-ndjson)" if self._setting == "max_body_mb" else "split the job"
        return too_large(
            f"The body is larger than {self._max_bytes / 1e6:g} MB decompressed "
            f"(ASSAY_{self._setting.upper()}): {advice}."
        )
