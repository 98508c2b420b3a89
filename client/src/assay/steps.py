"""What a flow asks of the outside, and what it gets back.

A flow is a generator: the logic of retries, streams and waiting, written once. It yields steps and is sent their
outcomes; `transport.py` performs the steps, blocking or not. A lost connection is an outcome too: the flow decides.
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
    """Send a call and read the whole answer. Gives a Reply or Lost."""

    call: Call[Any]


@dataclass(frozen=True)
class Open:
    """Send a call and read only the head of a good answer. Gives a Reply or Lost."""

    call: Call[Any]


@dataclass(frozen=True)
class Read:
    """The next bytes of the answer that was opened last. Gives bytes, None at its end, or Lost."""


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Emit:
    """Hand a value to whoever iterates."""

    value: Any


Step = Union[Exchange, Open, Read, Pause, Emit]
Flow = Generator[Step, Any, T]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    content: bytes = b""

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip()

    def json(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError as error:
            shown = self.content[:200].decode("utf-8", "replace")
            raise UnexpectedReply(f"Expected JSON, got {self.media_type or 'something'}: {shown!r}") from error


@dataclass(frozen=True)
class Lost:
    """No answer, or not all of it."""

    cause: Exception
    sent: bool = True
    """Whether the server may have got the request."""
