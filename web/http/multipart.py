"""Streaming parser of multipart uploads: first the part `request`, then the part `items`, which is never held whole."""

from collections.abc import Iterator

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.multipart import Data, Epilogue, Event, Field, File, MultipartDecoder, NeedData, Preamble

from web.http.bodies import Body
from web.http.http_error import broken, too_large

#: Limit of the part `request`, in bytes.
MAX_REQUEST_BYTES = 1_000_000
_ADVICE = "send a part `request` (JSON, without items), then a part `items` (JSONL), and no other part"


def read(body: Body, boundary: str) -> tuple[bytes, Iterator[bytes]]:
    """Return the part `request`, and an iterator over the blocks of the part `items`. Raises HttpError."""
    if not boundary:
        raise broken("The content type names no boundary between the parts: add `boundary=...`.", "Content-Type")
    events = _events(body, boundary)
    _expect(events, "request")
    request = b""
    for data in _data(events):
        request += data
        if len(request) > MAX_REQUEST_BYTES:
            raise too_large("The part `request` is larger than 1 MB: move items into the part `items`.", "request")
    _expect(events, "items")
    return request, _to_end(events)


def _events(body: Body, boundary: str) -> Iterator[Event]:
    decoder = MultipartDecoder(boundary.encode(), max_form_memory_size=None)
    try:
        for block in _with_end(body):
            decoder.receive_data(block)
            while not isinstance(event := decoder.next_event(), NeedData | Epilogue):
                yield event
            if isinstance(event, Epilogue):
                return
    except (ValueError, RequestEntityTooLarge) as error:
        raise broken(f"The multipart body cannot be parsed: {_ADVICE}.") from error


def _with_end(body: Body) -> Iterator[bytes | None]:
    yield from body.blocks()
    yield None


def _expect(events: Iterator[Event], name: str) -> None:
    for event in events:
        if isinstance(event, Preamble):
            continue
        if isinstance(event, Field | File) and event.name == name:
            return
        break
    raise broken(f"The part `{name}` is missing, or in the wrong order: {_ADVICE}.", name)


def _data(events: Iterator[Event]) -> Iterator[bytes]:
    for event in events:
        if isinstance(event, Data):
            if event.data:
                yield event.data
            if not event.more_data:
                return


def _to_end(events: Iterator[Event]) -> Iterator[bytes]:
    yield from _data(events)
    if any(isinstance(event, Field | File) for event in events):
        raise broken(f"The body has a part after `items`: {_ADVICE}.")
