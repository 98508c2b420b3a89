"""Base class of job kinds. A kind validates a job's spec and items, and defines the stages that its items pass.

Each kind is a separate package (`tasks/simulated` is the smallest), registered by one line in `tasks/kinds.py`. Its
code does not depend on queues, leases or the cache.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from pydantic import BaseModel
from redis import Redis

from config.profiles import Profiles
from config.settings import Settings
from tasks.errors import UnknownKind
from tasks.jobs.stage import Stage
from tasks.worker_registry import Registry

T = TypeVar("T")
SpecT = TypeVar("SpecT", bound=BaseModel)
ItemT = TypeVar("ItemT", bound=BaseModel)

#: Selects and changes the items of a job before they are validated and stored; keeps their order.
ItemSelector = Callable[[Iterator[dict[str, Any]]], Iterator[dict[str, Any]]]


class Installation:
    """Dependencies of kinds in this process; opens no connections by itself."""

    def __init__(self, settings: Settings, profiles: Profiles, state: Redis, registry: Registry) -> None:
        self.settings = settings
        self.profiles = profiles
        self.state = state
        self.registry = registry
        self._shared: dict[Callable[..., object], object] = {}

    def shared(self, make: "Callable[[Installation], T]") -> T:
        """Return `make(self)`, called once per installation, so that kinds share the same instance."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return cast(T, self._shared[make])


class Kind(ABC, Generic[SpecT, ItemT]):
    """A kind of job. Thread-safe; a single instance per process."""

    name: ClassVar[str]
    spec_model: type[SpecT]
    item_model: type[ItemT]
    retry_refusal: ClassVar[str] = ""
    """Reason why clients cannot retry failed items of this kind; empty if they can."""
    script_hooks: ClassVar[Path | None] = None
    """Lua module with the kind's hooks, which the ledger's scripts call, see `tasks/lua.py`."""

    @classmethod
    def create(cls, installation: Installation) -> Self:  # noqa: ARG003  # for kinds that need dependencies
        """Build the kind for this process."""
        return cls()

    def check(self, spec: SpecT) -> None:
        """Raise InvalidRequest if this installation lacks something that the spec names. Called at submission."""

    @abstractmethod
    def stages(self, spec: SpecT) -> Sequence[Stage[ItemT]]:
        """Return the stages of a job with this spec, in order. An item may skip stages, and never repeats one."""

    def labels(self, spec: SpecT) -> Mapping[str, str]:  # noqa: ARG002
        """Return the labels by which cached answers can be purged: model, rubric, profile."""
        return {}

    def batch_key(self, spec: SpecT) -> str:
        """Return a key that is equal for jobs whose items may share a batch; by default, for jobs of equal specs. A key
        of at most 32 characters keeps the job's hash compact, see `keys.job`."""
        return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:32]

    def item_selector(self, spec: SpecT, count_device_slots: Callable[[], int]) -> ItemSelector | None:  # noqa: ARG002
        """Return a function that selects or changes the items at submission; None to keep the items unchanged."""
        return None

    def trials(self, spec: SpecT) -> int:  # noqa: ARG002
        """Return the number of times that each item runs. With several trials a group consists of the trials of an
        item, and the item's own group id is ignored. The grouped stage must give every trial the same status, because
        the trials are counted as a single item."""
        return 1


#: Factory of a kind, called once per process; usually `Kind.create` of its class.
KindFactory = Callable[[Installation], Kind[Any, Any]]


class Kinds:
    """The job kinds of an installation, by name."""

    def __init__(self, kinds: Sequence[Kind[Any, Any]]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}

    def script_hooks(self) -> list[Path]:
        """Return the Lua modules with the hooks of the kinds."""
        return [kind.script_hooks for kind in self._kinds.values() if kind.script_hooks]

    def names(self) -> list[str]:
        return sorted(self._kinds)

    def __getitem__(self, name: str) -> Kind[Any, Any]:
        """Return the kind of this name. Raise UnknownKind if it does not exist."""
        try:
            return self._kinds[name]
        except KeyError:
            known = ", ".join(self.names())
            raise UnknownKind(f"There is no job kind {name!r}; kinds are {known}.", field="kind") from None


def full_batch_key(kind: Kind[SpecT, Any], spec: SpecT) -> str:
    """Return the kind's batch key with the name of the kind, so that batch keys of different kinds differ."""
    return f"{kind.name}|{kind.batch_key(spec)}"


def answer_namespace(kind: Kind[Any, Any], stage: Stage[Any]) -> str:
    """Return the kind under whose name the stage's answers are cached."""
    return stage.answers or kind.name
