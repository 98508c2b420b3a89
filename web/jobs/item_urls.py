"""Items that the server reads itself from a JSONL file, at a URL below a prefix in `ASSAY_INPUT_URLS`."""

import gzip
import logging
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from pydantic_core import from_json

from tasks.errors import InvalidRequest, StorageUnavailable
from web.http.allowed_urls import AllowedUrls
from web.http.bodies import BLOCK, WINDOW_LOG
from web.http.http_error import too_large

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

log = logging.getLogger(__name__)

FIELD = "items_url"
LOCAL = "file://"


def is_by_url(body: bytes) -> bool:
    """Return whether this JSON names a URL instead of its items. A body that is not JSON returns False."""
    if b'"items_url"' not in body:  # most bodies: megabytes are not parsed twice
        return False
    try:
        whole = from_json(body)
    except ValueError:
        return False
    if not isinstance(whole, dict) or FIELD not in whole:
        return False
    if "items" in whole:
        raise _error("the job has `items` too; send only `items` or `items_url`.")
    return True


class ItemUrlReader:
    def __init__(self, prefixes: str, max_bytes: float) -> None:
        self._allowed = AllowedUrls(prefixes, "ASSAY_INPUT_URLS", FIELD, "send the items in the body")
        self._max_bytes = int(max_bytes)

    @contextmanager
    def blocks(self, url: str) -> Iterator[Iterator[bytes]]:
        """Open the file and yield an iterator over its decompressed blocks. Raises InvalidRequest for a URL that is not
        allowed."""
        prefix = self._allowed.prefix_of(url)
        with _open_local(url, prefix) if url.startswith(LOCAL) else _open_remote(url) as file:
            if url.endswith(".gz"):
                yield self._read(cast(IO[bytes], gzip.GzipFile(fileobj=file)))
            elif url.endswith(".zst"):
                options = {int(zstd.DecompressionParameter.window_log_max): WINDOW_LOG}
                yield self._read(cast(IO[bytes], zstd.ZstdFile(cast(Any, file), options=options)))
            else:
                yield self._read(file)

    def _read(self, file: IO[bytes]) -> Iterator[bytes]:
        left = self._max_bytes
        while block := _next(file):
            left -= len(block)
            if left < 0:
                raise too_large(
                    f"items_url: the file is larger than {self._max_bytes / 1e6:g} MB decompressed "
                    "(ASSAY_MAX_UPLOAD_MB): split the job.",
                    FIELD,
                )
            yield block


def _next(file: IO[bytes]) -> bytes:
    try:
        return file.read(BLOCK)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
        raise _error(f"cannot be decompressed ({error}); compress the file again.") from error
    except Exception as error:  # every storage library has error classes of its own
        raise _unavailable(error) from error


def _open_local(url: str, prefix: str) -> IO[bytes]:
    """Open a file of this host. With symbolic links resolved, it must still be below the prefix."""
    path, root = (os.path.realpath(each.removeprefix(LOCAL)) for each in (url, prefix))
    if os.path.commonpath([path, root]) != root:
        raise _error("leaves the folders that this server may read by a symbolic link (ASSAY_INPUT_URLS).")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block the thread
            raise _error("is not a file.")
        return open(path, "rb")
    except OSError as error:
        raise _error(f"cannot be read ({error.strerror}).") from error


def _open_remote(url: str) -> IO[bytes]:
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # the import takes 50 ms, and few processes need it

    try:
        filesystem, path = url_to_fs(url)
        return cast(IO[bytes], filesystem.open(path, "rb"))
    except FileNotFoundError as error:
        raise _error("the file does not exist.") from error
    except (ImportError, ValueError) as error:
        raise _error(f"this server cannot read this kind of URL ({error}).") from error
    except Exception as error:  # every storage library has error classes of its own
        raise _unavailable(error) from error


def _unavailable(error: Exception) -> StorageUnavailable:
    # The message of a storage may hold a signed URL: it goes to the log only.
    log.warning("the file of an items_url cannot be read: %s", error)
    return StorageUnavailable(
        f"items_url: the file cannot be read now ({type(error).__name__}); try again, or see the server's log."
    )


def _error(sentence: str) -> InvalidRequest:
    return InvalidRequest(f"{FIELD}: {sentence}", field=FIELD)
