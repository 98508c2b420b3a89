"""Sample queue of a rollout: put, get under a lease, acknowledge. Every change is atomic: a Lua script in `scripts/`.

Samples that workers generate are put together with the commit of their chunk, by the hooks in
`scripts/include/rollout_hooks.lua`.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
#: Maximum bytes of samples in the reply of `get.lua`; larger batches are read page by page.
INLINE_BYTES = 1 << 20
#: Maximum samples of different prompts in a bundle: few, because a bundle is read as a whole.
LOOSE_SAMPLES = 64
#: Number of bundles that a command reads together.
PAGE = 16


@dataclass(frozen=True, slots=True)
class Wish:
    """Request of a consumer for a batch of samples."""

    samples: int = 1
    least: int | None = None
    """Minimum samples of a batch; with fewer in the queue, the batch is empty. By default equal to `samples`."""
    version: int | None = None
    """Current version of the trainer; by default the version that it reported last."""
    whole: bool = False
    """Whether samples of a prompt stay together; the batch may then have more samples than requested."""
    consumer: str = ""
    """Name of the consumer, which holds at most a single batch: a new request returns its unacknowledged batch to the
    queue."""
    lease_s: float = 600.0
    acknowledge: str = ""
    """Id of the batch that the consumer has used."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive samples of a bundle, or the whole bundle."""

    member: str
    """Its name in the queue."""
    number: int
    first: int
    count: int
    oldest: int
    newest: int
    of: int
    """Number of samples of the whole bundle."""
    put_at: float
    body: str


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    """Empty when the queue had too few samples."""
    acknowledged: int
    """Number of samples acknowledged by this request; 0 if the batch was acknowledged before, -1 if it had returned to
    the queue."""
    dropped: int
    """Samples that this request dropped as too stale."""
    queued: int
    begun: int
    """Prompts that this request allowed to begin."""
    version: int
    parts: Sequence[Part] = ()

    @property
    def samples(self) -> int:
        return sum(part.count for part in self.parts)


class SampleQueue:
    def __init__(self, state: Redis, values: LargeValues) -> None:
        self._state = state
        self._values = values
        self._put, self._get, self._settle, self._drop_lost = (
            state.register_script(lua.load(SCRIPTS / f"{name}.lua")) for name in ("put", "get", "settle", "drop_lost")
        )

    def put(self, rollout: str, bundles: Sequence[Bundle], put_id: str) -> tuple[bool, int]:
        """Put bundles into the queue, atomically. Idempotent by `put_id`. Returns whether the queue had room, and the
        number of queued samples. Raises Conflict when the rollout has ended."""
        attachments = [self._values.shortened_attachment(rollout, attached(bundle, 0.0)) for bundle in bundles]
        samples = sum(bundle.samples for bundle in bundles)
        texts = (text for each in attachments for text in (each.about, each.body))
        done, queued = self._put(keys=[], args=[rollout, put_id, samples, *texts])
        if done == -2:
            raise _unknown(rollout)
        if done < 0:
            raise Conflict("The rollout has ended: it takes no more samples.")
        return bool(done), int(queued)

    def get(self, rollout: str, wish: Wish, waited_s: float = 0.0) -> Batch:
        """Lease a batch, which is empty if the queue has too few samples. The acknowledgement takes effect in either
        case. Samples whose bodies are lost are dropped, and the next samples take their place."""
        batch = self._lease(rollout, wish, waited_s)
        while lost := self._lost(rollout, batch):
            dropped = int(self._drop_lost(keys=[], args=[rollout, batch.id, *(part.member for part in lost)]))
            log.error("rollout %s: the bodies of %d samples are lost; the samples are dropped", rollout, dropped)
            earlier, batch = batch, self._lease(rollout, wish, waited_s)
            # A later call finds the acknowledged batch acknowledged already.
            batch = replace(
                batch,
                acknowledged=max(earlier.acknowledged, batch.acknowledged),
                dropped=earlier.dropped + batch.dropped,
                begun=earlier.begun + batch.begun,
            )
        return batch

    def _lease(self, rollout: str, wish: Wish, waited_s: float) -> Batch:
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

    def _lost(self, rollout: str, batch: Batch) -> list[Part]:
        """Return the parts of a batch whose bodies do not exist, in Redis or in the storage."""
        unread = [part for part in batch.parts if not part.body]
        pipeline = self._state.pipeline(transaction=False)
        for part in unread:
            pipeline.hexists(keys.rollout_bodies(rollout), str(part.number))
        lost = [part for part, exists in zip(unread, pipeline.execute(), strict=True) if not exists]
        return lost + [part for part in batch.parts if part.body and not self._values.exists(rollout, part.body)]

    def acknowledge(self, rollout: str, batch: str) -> tuple[int, int]:
        """Acknowledge a batch. Idempotent. Returns the number of its samples (0 if it was acknowledged before, -1 if it
        had returned to the queue), and the number of prompts that begin because of it."""
        reply = self._settle(keys=[], args=[rollout, batch, 1])
        if not reply:
            raise _unknown(rollout)
        number, begun, *stubs = reply
        self._delete(rollout, stubs)
        return int(number), int(begun)

    def give_back(self, rollout: str, batch: str) -> int:
        """Return a batch to the queue. Returns the number of its samples."""
        reply = self._settle(keys=[], args=[rollout, batch, 0])
        if not reply:
            raise _unknown(rollout)
        return int(reply[0])

    def texts(self, rollout: str, batch: Batch) -> Iterator[str]:
        """Yield each part as JSON, in the format for trainers; bodies missing from the batch are read page by page."""
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
        """Delete the files of used or dropped samples. A file that cannot be deleted is removed with the rollout."""
        for stub in stubs:
            try:
                self._values.delete(folder, stub)
            except StorageUnavailable as error:
                log.warning("cannot delete a file of used samples; it is removed with its rollout: %s", error)


def bundles_of(samples: Sequence[Any], version: int, about: Mapping[str, Any], is_group: bool) -> list[Bundle]:
    """Pack samples from a client into bundles: a single bundle for a group, else as few bundles as possible."""
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
        member=member,
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
