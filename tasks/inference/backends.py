"""Backends of installed packages: an entry point of the group `assay.backends` names a class of this shape.

    class Parrot:
        def generate_answer(self, query: str, context: str, retrieval_method: str) -> str:
            return query

It is made once in a process, on first use, and called for one row at a time, on the queue of its `pool` (`device` if it
does not say).
"""

from functools import lru_cache
from importlib.metadata import entry_points
from typing import Literal, Protocol, cast

from tasks.errors import InvalidRequest

GROUP = "assay.backends"


class Backend(Protocol):
    def generate_answer(self, query: str, context: str, retrieval_method: str) -> str: ...


def names() -> list[str]:
    return sorted(each.name for each in entry_points(group=GROUP))


def pool_of(name: str) -> Literal["device", "api", "cpu"]:
    pool = getattr(_class(name), "pool", "device")
    if pool not in ("device", "api", "cpu"):
        raise InvalidRequest(f"spec.backend: {name} says it runs on {pool!r}, which is no pool", field="spec.backend")
    return cast(Literal["device", "api", "cpu"], pool)


@lru_cache(maxsize=32)
def backend(name: str) -> Backend:
    """The one of this process."""
    return _class(name)()


@lru_cache(maxsize=32)
def _class(name: str) -> type[Backend]:
    """Raises InvalidRequest for one that is not installed."""
    for each in entry_points(group=GROUP, name=name):
        return cast(type[Backend], each.load())
    known = ", ".join(("local", "huggingface", "openai", "togetherai", "vllm", *names()))
    raise InvalidRequest(f"spec.backend: there is no backend {name!r}; backends are {known}", field="spec.backend")
