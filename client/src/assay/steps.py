"""Steps of a flow, and their outcomes: the interface between protocol logic and input/output.

A flow is a generator with the logic of retries, streams and waiting, written once. It yields steps and is sent their
outcomes; `transport.py` performs the steps, blocking or with asyncio. A lost connection is an outcome too: the flow
decides whether to retry.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from assay.calls import Call
from assay.errors import UnexpectedReply

T = TypeVar("T")


@dataclass(frozen=True)
class Exchange:
    """Send a call and read the whole response. Outcome: Reply or ConnectionLost."""

    call: Call[Any]


@dataclass(frozen=True)
class Open:
    """Send a call and read only the headers of a successful response. Outcome: Reply or ConnectionLost."""

    call: Call[Any]


@dataclass(frozen=True)
class Read:
    """Read the next bytes of the response that was opened last. Outcome: bytes, None at its end, or ConnectionLost."""


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Emit:
    """Yield a value to the caller that iterates over the flow."""

    value: Any


Step = Union[Exchange, Open, Read, Pause, Emit]
Flow = Generator[Step, Any, T]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """Header names are in lower case."""
    content: bytes = b""

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip()

    def json(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError as error:
            shown = self.content[:200].decode("utf-8", "replace")
            raise UnexpectedReply(f"Expected JSON, got {self.media_type or 'no content type'}: {shown!r}") from error


@dataclass(frozen=True)
class ConnectionLost:
    """The connection was lost before the whole response arrived."""

    cause: Exception
    sent: bool = True
    """Whether the server may have received the request."""
