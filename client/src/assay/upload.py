"""Request bodies that can be sent again from their start: bytes in memory, or a list or a file streamed in blocks.

A generator can be read only once, so it is written to a temporary file first. Files are sent unchanged: the server
decompresses .gz and .zst files.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Callable, Union

from assay.calls import NDJSON

Item = Mapping[str, Any]
#: Dicts (a list, or any iterable of dicts), the path of a .jsonl, .jsonl.gz or .jsonl.zst file, the URL of a file
#: that the server reads itself, or a prepared Upload.
Items = Union[Iterable[Item], str, "os.PathLike[str]", "Upload"]

#: Bytes passed to the connection at a time.
CHUNK_BYTES = 256 * 1024
_ENCODINGS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class Upload:
    headers: Mapping[str, str]
    open: Callable[[], Iterator[bytes]]
    """Return an iterator over the body from its start; may be called again for a retry."""


def of_bytes(content: bytes, media_type: str) -> Upload:
    return Upload({"Content-Type": media_type, "Content-Length": str(len(content))}, lambda: iter((content,)))


def of_lines(lines: Callable[[], Iterable[bytes]]) -> Upload:
    """Upload of lines with their line ends; `lines` is called again each time the body is sent."""
    return Upload({"Content-Type": NDJSON}, lambda: _blocks_of_lines(lines()))


def of_sequence(items: Sequence[Item]) -> Upload:
    return Upload({"Content-Type": NDJSON}, lambda: _blocks_of_lines(encode(item, n) for n, item in enumerate(items)))


def of_path(path: str | os.PathLike[str]) -> Upload:
    headers = {"Content-Type": NDJSON, "Content-Length": str(os.stat(path).st_size)}
    encoding = _ENCODINGS.get(os.path.splitext(path)[1])
    if encoding:
        headers["Content-Encoding"] = encoding

    def chunks() -> Iterator[bytes]:
        with open(path, "rb") as file:
            yield from _blocks_of_file(file)

    return Upload(headers, chunks)


@contextlib.contextmanager
def spooled(lines: Iterable[bytes]) -> Iterator[Upload]:
    """Write lines that can be read only once to a temporary file, and delete the file when the context ends."""
    with tempfile.TemporaryFile() as file:
        for block in _blocks_of_lines(lines):
            file.write(block)
        headers = {"Content-Type": NDJSON, "Content-Length": str(file.tell())}

        def chunks() -> Iterator[bytes]:
            file.seek(0)
            return _blocks_of_file(file)

        yield Upload(headers, chunks)


def multipart(request: bytes, items: Upload) -> Upload:
    """Build a multipart body of the request and the items, for a spec that is too long for the query of a URL."""
    boundary = f"assay-{os.urandom(16).hex()}"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="request"\r\nContent-Type: application/json\r\n\r\n'
    ).encode() + request
    head += (
        f'\r\n--{boundary}\r\nContent-Disposition: form-data; name="items"; filename="items.jsonl"\r\n'
        f"Content-Type: {NDJSON}\r\n\r\n"
    ).encode()
    tail = f"\r\n--{boundary}--\r\n".encode()
    if "Content-Encoding" in items.headers:
        raise ValueError("This spec is too long to send with a compressed file: decompress the file first.")
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    if "Content-Length" in items.headers:
        headers["Content-Length"] = str(len(head) + int(items.headers["Content-Length"]) + len(tail))

    def chunks() -> Iterator[bytes]:
        yield head
        yield from items.open()
        yield tail

    return Upload(headers, chunks)


def encode(item: Item, index: int) -> bytes:
    """Serialize an item as a JSON line. Raise ValueError for a value that JSON cannot hold, such as NaN."""
    try:
        return json.dumps(item, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"Item {index} cannot be sent as JSON: {error}") from error


def _blocks_of_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    block = bytearray()
    for line in lines:
        block += line
        if len(block) >= CHUNK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _blocks_of_file(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(CHUNK_BYTES):
        yield block
