"""The sample queue of a rollout: put, get under a lease, acknowledge. Every change is one script, in `scripts/`.

Samples of a rollout's own workers are put with their commit, by the hooks in `scripts/include/rollout_hooks.lua`.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis import Redis

from config import keys
from tasks import lua, quick_json
from tasks.errors import Conflict, StorageUnavailable, UnknownJob
from tasks.jobs.model import Bundle
from tasks.jobs.state.large_values import LargeValues
from tasks.jobs.state.outcome import attached

log = logging.getLogger(__name__)

SCRIPTS = Path(__file__).with_name("scripts")
#: Bytes of samples that come with the step that hands them out; larger batches are read page by page.
INLINE_BYTES = 1 << 20
#: Samples of different prompts that are kept together until they are taken: a few, as they are read together too.
LOOSE_SAMPLES = 64
#: Bundles whose bodies are read in one command.
PAGE = 16


@dataclass(frozen=True, slots=True)
class Wish:
    """What a consumer asks for."""

    samples: int = 1
    least: int | None = None
    """Without so many there is no batch; all of them by default."""
    version: int | None = None
    """The trainer's; by default the last one it told."""
    whole: bool = False
    """Samples of one prompt come together; then there may be more than were asked for."""
    consumer: str = ""
    """One with a name holds one batch at a time: asking again gives back what was not acknowledged."""
    lease_s: float = 600.0
    acknowledge: str = ""
    """The batch it has used."""


@dataclass(frozen=True, slots=True)
class Part:
    """Samples of one bundle, all or some."""

    number: int
    first: int
    count: int
    oldest: int
    newest: int
    of: int
    """Samples of the whole bundle."""
    put_at: float
    body: str


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    """Empty: there were not enough samples."""
    acknowledged: int
    """Samples of the batch that was to be; 0 when it was before, -1 when it had gone back to the queue."""
    dropped: int
    """Samples that were too stale, since this consumer asked."""
    queued: int
    begun: int
    """Prompts that are generated now because of it."""
    version: int
    parts: Sequence[Part] = ()

    @property
    def samples(self) -> int:
        return sum(part.count for part in self.parts)


class SampleQueue:
    def __init__(self, state: Redis, values: LargeValues) -> None:
        self._state = state
        self._values = values
        self._put, self._get, self._settle = (
            state.register_script(lua.load(SCRIPTS / f"{name}.lua")) for name in ("put", "get", "settle")
        )

    def put(self, rollout: str, bundles: Sequence[Bundle], put_id: str) -> tuple[bool, int]:
        """Put all bundles into the queue or none. Idempotent by put_id. Returns whether there was room, and the number
        of samples that wait now. Raises Conflict when the rollout is over."""
        attachments = [self._values.shortened_attachment(rollout, attached(bundle, 0.0)) for bundle in bundles]
        samples = sum(bundle.samples for bundle in bundles)
        texts = (text for each in attachments for text in (each.about, each.body))
        done, queued = self._put(keys=[], args=[rollout, put_id, samples, *texts])
        if done == -2:
            raise _unknown(rollout)
        if done < 0:
            raise Conflict("The rollout is over: it takes no more samples.")
        return bool(done), int(queued)

    def get(self, rollout: str, wish: Wish, waited_s: float = 0.0) -> Batch:
        """A batch, if there is one now. What it acknowledges is acknowledged in any case."""
        least = wish.samples if wish.least is None else min(wish.least, wish.samples)
        reply = self._get(
            keys=[],
            args=[
                rollout,
                uuid4().hex,
                wish.samples,
                least,
                "" if wish.version is None else wish.version,
                int(wish.whole),
                wish.consumer,
                wish.lease_s,
                wish.acknowledge,
                f"{waited_s:.6f}",
                INLINE_BYTES,
            ],
        )
        if not reply:
            raise _unknown(rollout)
        (batch, acknowledged, dropped, queued, begun, version), stubs, flat = reply
        self._delete(rollout, stubs)
        parts = [_part(*flat[at : at + 3]) for at in range(0, len(flat), 3)]
        return Batch(str(batch), int(acknowledged), int(dropped), int(queued), int(begun), int(version), parts)

    def acknowledge(self, rollout: str, batch: str) -> tuple[int, int]:
        """How many samples that were, 0 when it was done before, -1 when the batch had gone back to the queue; and how
        many prompts are begun because of it."""
        reply = self._settle(keys=[], args=[rollout, batch, 1])
        if not reply:
            raise _unknown(rollout)
        number, begun, *stubs = reply
        self._delete(rollout, stubs)
        return int(number), int(begun)

    def give_back(self, rollout: str, batch: str) -> int:
        """How many samples wait again."""
        reply = self._settle(keys=[], args=[rollout, batch, 0])
        if not reply:
            raise _unknown(rollout)
        return int(reply[0])

    def texts(self, rollout: str, batch: Batch) -> Iterator[str]:
        """Each part as JSON, as a trainer reads it; those that did not come with the batch are read page by page."""
        missing = [part for part in batch.parts if not part.body]
        bodies: dict[int, str] = {}
        for part in batch.parts:
            if not part.body and part.number not in bodies:
                page = [missing.pop(0) for _ in range(min(PAGE, len(missing)))]
                found = self._state.hmget(keys.rollout_bodies(rollout), [str(each.number) for each in page])
                bodies = {each.number: str(body) for each, body in zip(page, found, strict=True)}
            body = self._values.resolved(rollout, part.body or bodies[part.number])
            yield _text(part, body)

    def _delete(self, folder: str, stubs: Sequence[str]) -> None:
        """Files of samples that are gone. One that cannot be deleted now goes with the rollout."""
        for stub in stubs:
            try:
                self._values.delete(folder, stub)
            except StorageUnavailable as error:
                log.warning("a file of used samples stays until its rollout is removed: %s", error)


def bundles_of(samples: Sequence[Any], version: int, about: Mapping[str, Any], is_group: bool) -> list[Bundle]:
    """Samples from outside: one bundle if they are of one prompt, else as few as may be."""
    size = len(samples) if is_group else LOOSE_SAMPLES
    pieces = [list(samples[at : at + size]) for at in range(0, len(samples), size)]
    return [Bundle(version, version, len(each), 0, {**about, "samples": each}, not is_group) for each in pieces]


def _unknown(rollout: str) -> UnknownJob:
    return UnknownJob(f"There is no rollout {rollout[:64]!r}; it may have expired.")


def _part(member: str, head: str, body: str) -> Part:
    number, _, places = member.partition(":")
    first, _, last = places.partition("-")
    about = json.loads(head)
    return Part(
        number=int(number),
        first=int(first),
        count=int(last) - int(first) + 1,
        oldest=about["oldest"],
        newest=about["newest"],
        of=about["samples"],
        put_at=about["put_at"],
        body=body,
    )


def _text(part: Part, body: str) -> str:
    if part.count < part.of:
        whole = quick_json.read(body)
        body = quick_json.write({**whole, "samples": whole["samples"][part.first : part.first + part.count]})
    return (
        f'{{"id":{part.number},"first":{part.first},"count":{part.count},"of":{part.of},"param_version":{part.oldest},'
        f'"newest_version":{part.newest},"put_at":{part.put_at},{body[1:]}'
    )
