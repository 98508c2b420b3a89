"""Items that the server fetches itself: a JSONL file at a URL below one of `ASSAY_INPUT_URLS`, and nowhere else."""

import gzip
import logging
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from pydantic import Field
from pydantic_core import from_json

from tasks.errors import InvalidRequest, StorageUnavailable
from tasks.jobs.model import JobHead
from web.bodies import BLOCK, WINDOW_LOG
from web.places import Places
from web.refusal import too_large

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

log = logging.getLogger(__name__)

FIELD = "items_url"
LOCAL = "file://"


class JobByUrl(JobHead):
    """One job whose items lie in a file."""

    items_url: str = Field(
        min_length=1,
        max_length=4000,
        description="A JSONL file (.gz and .zst are unpacked) below one of the server's `ASSAY_INPUT_URLS`.",
    )


def is_by_url(body: bytes) -> bool:
    """Whether this JSON names a URL instead of bringing its items. What is no JSON is not."""
    if b'"items_url"' not in body:  # nearly all: a body of megabytes is not read twice
        return False
    try:
        whole = from_json(body)
    except ValueError:
        return False
    if not isinstance(whole, dict) or FIELD not in whole:
        return False
    if "items" in whole:
        raise _refused("give `items` or `items_url`, not both.")
    return True


class Inputs:
    def __init__(self, prefixes: str, most_bytes: float) -> None:
        self._places = Places(prefixes, "ASSAY_INPUT_URLS", FIELD, "send the items themselves")
        self._most = int(most_bytes)

    @contextmanager
    def blocks(self, url: str) -> Iterator[Iterator[bytes]]:
        """What the file holds, unpacked. Raises InvalidRequest for a URL that may not be read."""
        prefix = self._places.prefix_of(url)
        with _open_local(url, prefix) if url.startswith(LOCAL) else _open_elsewhere(url) as file:
            if url.endswith(".gz"):
                yield self._read(cast(IO[bytes], gzip.GzipFile(fileobj=file)))
            elif url.endswith(".zst"):
                options = {int(zstd.DecompressionParameter.window_log_max): WINDOW_LOG}
                yield self._read(cast(IO[bytes], zstd.ZstdFile(cast(Any, file), options=options)))
            else:
                yield self._read(file)

    def _read(self, file: IO[bytes]) -> Iterator[bytes]:
        left = self._most
        while block := _next(file):
            left -= len(block)
            if left < 0:
                raise too_large(
                    f"items_url: the file is larger than {self._most / 1e6:g} MB unpacked (ASSAY_MAX_UPLOAD_MB): "
                    "divide the job.", FIELD,
                )  # fmt: skip
            yield block


def _next(file: IO[bytes]) -> bytes:
    try:
        return file.read(BLOCK)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
        raise _refused(f"cannot be unpacked ({error}).") from error
    except Exception as error:  # each kind of storage has errors of its own
        raise _unavailable(error) from error


def _open_local(url: str, prefix: str) -> IO[bytes]:
    """A file of this host, which must lie below the prefix without symbolic links, too."""
    path, root = (os.path.realpath(each.removeprefix(LOCAL)) for each in (url, prefix))
    if os.path.commonpath([path, root]) != root:
        raise _refused("leads, by a symbolic link, out of the places this server may read (ASSAY_INPUT_URLS).")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would hold the thread that opens it
            raise _refused("is not a file.")
        return open(path, "rb")
    except OSError as error:
        raise _refused(f"cannot be read ({error.strerror}).") from error


def _open_elsewhere(url: str) -> IO[bytes]:
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # 50 ms that a process need not spend

    try:
        filesystem, path = url_to_fs(url)
        return cast(IO[bytes], filesystem.open(path, "rb"))
    except FileNotFoundError as error:
        raise _refused("there is no such file.") from error
    except (ImportError, ValueError) as error:
        raise _refused(f"this server cannot read such a URL ({error}).") from error
    except Exception as error:  # each kind of storage has errors of its own
        raise _unavailable(error) from error


def _unavailable(error: Exception) -> StorageUnavailable:
    # What a storage says may hold a signed URL: that is for the log.
    log.warning("items of a URL cannot be read: %s", error)
    return StorageUnavailable(f"items_url: the file cannot be read now ({type(error).__name__}).")


def _refused(sentence: str) -> InvalidRequest:
    return InvalidRequest(f"{FIELD}: {sentence}", field=FIELD)
