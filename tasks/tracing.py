"""Traces of a job, from its request to its API calls: what the rest of Assay sees of them.

Where `ASSAY_TRACES_URL` is unset nothing is traced, and OpenTelemetry is not even imported; `otlp.py` is the other
case. A span says ids, names, counts and types of errors. It never says what users or APIs wrote, nor a key: whoever may
read traces may not read that.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

from config.settings import Settings

Attributes = Mapping[str, str | int | float | bool]
Role = Literal["server", "consumer", "client"]


class Span(Protocol):
    """A stretch of work that is told of when it has ended."""

    @property
    def context(self) -> str:
        """What its parts name as their parent, anywhere: the header `traceparent`. Empty: nothing is traced."""

    def note(self, attributes: Attributes) -> None: ...

    def fail(self, kind: str) -> None:
        """`kind`: a type of error, not its message."""

    def end(self) -> None: ...


class Tracer(Protocol):
    @property
    def is_on(self) -> bool: ...

    def begin(self, name: str, role: Role, attributes: Attributes, parent: str = "", links: Sequence[str] = ()) -> Span:
        """`parent`, `links`: contexts of other spans. Without a parent it is the first of its trace."""

    def close(self) -> None:
        """Tell what has ended, within a few seconds; then this process traces no more."""


class _NoSpan:
    context = ""

    def note(self, attributes: Attributes) -> None: ...

    def fail(self, kind: str) -> None: ...

    def end(self) -> None: ...


class _NoTracer:
    is_on = False

    def begin(self, *_: object, **__: object) -> Span:
        return NO_SPAN

    def close(self) -> None: ...


NO_SPAN: Span = _NoSpan()
NO_TRACER: Tracer = _NoTracer()
_current: ContextVar[Span] = ContextVar("span", default=NO_SPAN)


def create_tracer(settings: Settings, service: str) -> Tracer:
    """`service`: which of Assay's processes this is, as traces name it. Connects to nothing yet."""
    if not settings.traces_url:
        return NO_TRACER
    from tasks.otlp import OtlpTracer  # an extra, which may not be installed

    return OtlpTracer(settings.traces_url, settings.traces_share, f"assay-{service}")


def current() -> Span:
    """What this code is part of."""
    return _current.get()


def make_current(span: Span) -> None:
    """For this thread, until it is told another; `inside` is for a stretch of code."""
    _current.set(span)


@contextmanager
def inside(span: Span) -> Iterator[None]:
    """What is begun here, and in coroutines started here, is part of this span."""
    before = _current.set(span)
    try:
        yield
    finally:
        _current.reset(before)
