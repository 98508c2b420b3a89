"""The one door: validate, hash, look up, store, fill. A job is visible only when all of it is written."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from redis import Redis

from config import keys
from tasks import quick_json
from tasks.errors import Conflict, InvalidRequest, UnknownJob
from tasks.jobs.cache import Cache, canonical, request_hash
from tasks.jobs.dispatch import Dispatcher
from tasks.jobs.kinds import ChoosingKind, Kind, Kinds, TrialKind, Work, answers_of
from tasks.jobs.ledger import PARTS, Ledger, compress
from tasks.jobs.loop import Loop
from tasks.jobs.model import JobHead, JobRequest, Result, Stage
from tasks.jobs.outcome import settle
from tasks.jobs.outcomes import PART_ITEMS
from tasks.jobs.payloads import EACH, STAGING_S, Payloads
from tasks.jobs.storage import STORED, Storage
from tasks.jobs.trials import layout_of
from tasks.jobs.upload import Upload, as_lines, checked_lines
from tasks.registry import Registry
from tasks.tracing import current

#: Outcomes from the cache, groups, or appended items written in one script.
PAGE = 500
#: Ranges in one pending entry: filling reads and writes an entry whole.
RANGES = 200
#: Items of a stored job that have left the pending list and not been moved out of Redis yet: what bounds its memory.
WINDOW_ITEMS = 100_000
#: A first guess of the seconds it takes to move a part.
PART_COST_S = 0.2


class Door:
    def __init__(
        self, state: Redis, payloads: Payloads, storage: Storage, ledger: Ledger, cache: Cache, kinds: Kinds,
        registry: Registry, dispatcher: Dispatcher, job_ttl_s: float, idempotency_ttl_s: int, stored_items: int,
    ) -> None:  # fmt: skip
        self._state = state
        self._payloads = payloads
        self._storage = storage
        self._ledger = ledger
        self._cache = cache
        self._kinds = kinds
        self._registry = registry
        self._dispatcher = dispatcher
        self._job_ttl_s = job_ttl_s
        self._idempotency_ttl_s = idempotency_ttl_s
        self._stored_items = stored_items

    def submit(self, request: JobRequest, idempotency_key: str | None = None, token: str = "") -> str:
        """The id of the job: a new one, or the one this idempotency key made before.

        Raises InvalidRequest, and Conflict when the key was used with another body. A submit that was cut off leaves
        nothing that counts; repeating it with its key completes it under the same id. `token` names who asks.
        """
        kind, spec, stages = self._understood(request)
        if isinstance(kind, ChoosingKind):
            chosen = list(kind.choose(spec, iter(request.items), self._slots()))
            request = request.model_copy(update={"items": chosen})
        items = [_validated(kind.item_model, item, f"items[{index}]") for index, item in enumerate(request.items)]
        trials = kind.trials(spec) if isinstance(kind, TrialKind) else 1
        if trials > 1:
            self._require_few(len(items) * trials)
        if len(items) > self._stored_items:
            lines = as_lines(request.items)
            return self._submit_stored(request.head, kind, spec, stages, lines, idempotency_key, token)
        job = uuid4().hex
        if idempotency_key:
            body = hashlib.sha256(canonical(request.model_dump(mode="json")).encode()).hexdigest()
            job = self._reserve(idempotency_key, body, job)
            if self._state.exists(keys.job(job)):
                return job
        hits = self._look_up(kind, spec, stages, items) if request.cache == "use" else {}
        # Under a name of its own: the same request may be on its way twice, and only one of them becomes the job.
        staged = f"{job}~{uuid4().hex[:8]}"
        self._payloads.write(staged, request.items)
        total = len(items) * trials
        if trials > 1:
            self._ledger.enroll(staged, 0, [row - row % trials for row in range(total)], STAGING_S)
        elif any(stage.grouped for stage in stages):
            self._ledger.enroll(staged, 0, _groups(request.items), STAGING_S)
        settled = [settle(index, request.items[index], hits[index]) for index in sorted(hits)]
        for start in range(0, len(settled), PAGE):
            page = {each.index: each.outcome for each in settled[start : start + PAGE]}
            self._ledger.prefill(staged, stages[0].name, page, STAGING_S)
        missing = compress(row for row in range(total) if row not in hits)
        counts = {"total": total, "ok": len(hits), "cached": len(hits), "token": token, "layout": layout_of(trials)}
        self._create(job, staged, request, kind, spec, stages, missing, counts)
        if len(hits) < total:
            self._dispatcher.fill(stages[0].pool)
        return job

    def submit_lines(
        self, head: JobHead, lines: Iterable[bytes], idempotency_key: str | None = None, token: str = ""
    ) -> str:
        """As `submit`, with the items as lines of JSON, few of them held at a time. A wrong line is told by number."""
        kind, spec, stages = self._understood(head)
        checked = checked_lines(lines, kind.item_model)
        if isinstance(kind, ChoosingKind):
            checked = as_lines(kind.choose(spec, map(quick_json.read, checked), self._slots()))
        first = list(islice(checked, self._stored_items + 1))
        if not first:
            raise InvalidRequest("There are no items: send one JSON object a line.", field="items")
        if len(first) > self._stored_items:
            return self._submit_stored(head, kind, spec, stages, chain(first, checked), idempotency_key, token)
        request = JobRequest.model_construct(**dict(head), items=[json.loads(line) for line in first])
        return self.submit(request, idempotency_key, token)

    def _submit_stored(
        self, head: JobHead, kind: Kind[Any, Any], spec: BaseModel, stages: Sequence[Stage], lines: Iterable[bytes],
        idempotency_key: str | None, token: str,
    ) -> str:  # fmt: skip
        """What the cache has, workers look up when they come to it: a large job must not take long to submit."""
        if isinstance(kind, TrialKind) and kind.trials(spec) > 1:
            self._require_few(self._stored_items + 1)
        self._storage.require_reach(worker.host for worker in self._registry.workers() if worker.pool != "beat")
        upload = Upload(self._state, self._storage, self._ledger, job := uuid4().hex)
        upload.write(lines, is_grouped=any(stage.grouped for stage in stages))
        if idempotency_key:
            body = hashlib.sha256((canonical(head.model_dump(mode="json")) + upload.digest).encode()).hexdigest()
            try:
                job = self._reserve(idempotency_key, body, job)
            except Conflict:
                upload.abandon()
                raise
        more = {
            "total": upload.total,
            "layout": STORED + upload.name,
            "part_items": PART_ITEMS,
            "merged": 0,
            "inflight": upload.total,
            "window_items": WINDOW_ITEMS,
            "token": token,
        }
        stages = [*stages, Stage(PARTS, "cpu", cost_s=PART_COST_S)]
        if not self._create(job, upload.name, head, kind, spec, stages, f"0-{upload.total - 1}", more):
            upload.abandon()
        self._dispatcher.fill(stages[0].pool)
        return job

    # --- open-ended jobs ---

    def open(self, head: JobHead, keep_items: int) -> str:
        """A job without a total: items are appended while it runs, until it is closed. The outcomes of its last
        `keep_items` items are kept, older ones forgotten once they are settled."""
        kind, spec, stages = self._understood(head)
        if any(stage.grouped for stage in stages):
            raise InvalidRequest("An open-ended job cannot have a grouped stage.", field="spec.stages")
        job = uuid4().hex
        more = {"total": 0, "open": 1, "layout": EACH, "keep_items": max(1, keep_items)}
        self._create(job, f"{job}~", head, kind, spec, stages, "", more)
        return job

    def loop(
        self, head: JobHead, lines: Iterable[bytes], seed: int | None, keep_items: int,
        idempotency_key: str | None = None, token: str = "",
    ) -> str:  # fmt: skip
        """A rollout: an open-ended job whose items are these prompts, again and again; how many of them are begun is
        decided by the step that feeds it. Without prompts it has no items. Its id is a new one, or that of an earlier
        request with the same key, and is in its spec."""
        job = uuid4().hex
        named = head.model_copy(update={"spec": head.spec | {"rollout": job}})
        kind, _, _ = self._understood(named)
        staged, layout = f"{job}~", EACH
        checked = checked_lines(lines, kind.item_model)
        first = list(islice(checked, self._stored_items + 1))
        digest = hashlib.sha256(b"\n".join(first)).hexdigest()
        if len(first) > self._stored_items:
            self._storage.require_reach(worker.host for worker in self._registry.workers() if worker.pool != "beat")
            upload = Upload(self._state, self._storage, self._ledger, job)
            upload.write(chain(first, checked), is_grouped=False)
            staged, layout, digest = upload.name, str(Loop(upload.total, seed, STORED + upload.name)), upload.digest
        elif first:
            self._payloads.write(staged, [quick_json.read(line) for line in first])
            layout = str(Loop(len(first), seed, ""))
        if idempotency_key:
            body = hashlib.sha256((canonical(head.model_dump(mode="json")) + digest).encode()).hexdigest()
            job = self._reserve(idempotency_key, body, job)
        named = head.model_copy(update={"spec": head.spec | {"rollout": job}})
        _, spec, stages = self._understood(named)
        more = {"total": 0, "open": 1, "layout": layout, "keep_items": max(1, keep_items), "feeds": 1, "token": token}
        self._create(job, staged, named, kind, spec, stages, "", more)
        return job

    def append(self, job: str, items: Sequence[dict[str, Any]], token: str = "") -> int:
        """The index of the first of these items. Repeating a call with its token appends nothing twice."""
        name, first_stage = self._state.hmget(keys.job(job), ["kind", "stages"])
        if not name or not first_stage:
            raise UnknownJob(f"There is no job {job!r}; it may have expired.")
        model = self._kinds[str(name)].item_model
        for index, item in enumerate(items):
            _validated(model, item, f"items[{index}]")
        payloads = [line.decode() for line in as_lines(items)]
        token = token or uuid4().hex
        firsts = [
            self._ledger.append(job, f"{token}:{start}", payloads[start : start + PAGE])
            for start in range(0, len(payloads), PAGE)
        ]
        if not firsts or -1 in firsts:
            raise Conflict("The job takes no more items: it is closed or over." if firsts else "There are no items.")
        self._dispatcher.fill(json.loads(first_stage)[0]["pool"])
        return firsts[0]

    def close(self, job: str) -> str:
        """No more items come: the job ends when those it has are settled. Returns its state."""
        state = self._ledger.close(job)
        if not state:
            raise UnknownJob(f"There is no job {job!r}; it may have expired.")
        return state

    # --- what all of them share ---

    def _require_few(self, rows: int) -> None:
        """Items of several trials are not kept in the storage: they would be read and moved in other pieces."""
        if rows > self._stored_items:
            raise InvalidRequest(
                f"Items and trials make more than {self._stored_items:,} runs, which one job may have where items are "
                "run several times: send several jobs.",
                field="items",
            )

    def _slots(self) -> int:
        return sum(worker.pool == "device" for worker in self._registry.workers())

    def _understood(self, head: JobHead) -> tuple[Kind[Any, Any], BaseModel, list[Stage]]:
        kind = self._kinds[head.kind]
        spec = _validated(kind.spec_model, head.spec, "spec")
        kind.check(spec)
        stages = list(kind.stages(spec))
        _check_stages(stages)
        return kind, spec, stages

    def _reserve(self, key: str, body: str, job: str) -> str:
        reserved = self._state.set(
            keys.idempotency(key), f"{body} {job}", nx=True, get=False, ex=self._idempotency_ttl_s
        )
        if reserved:
            return job
        held = self._state.get(keys.idempotency(key))
        earlier, _, first_job = str(held or f"{body} {job}").partition(" ")
        if earlier != body:
            raise Conflict("This idempotency key was used for another request: use a new key for a new request.")
        return first_job

    def _look_up(
        self, kind: Kind[Any, Any], spec: BaseModel, stages: Sequence[Stage], items: Sequence[BaseModel]
    ) -> dict[int, Result]:
        """Answers the cache has, by index. Of several stages each asks for itself when it runs."""
        if len(stages) > 1:
            return {}
        answers, stage = answers_of(kind, stages[0]), stages[0].name
        requests: dict[int, str] = {}
        for index, item in enumerate(items):
            key = kind.key(spec, stage, item)
            if key is None:
                return {}
            requests[index] = request_hash(answers, stage, key)
        found = self._cache.get(answers, list(dict.fromkeys(requests.values())))
        return {
            index: kind.advance(spec, stage, Work(index, items[index]), found[request])
            for index, request in requests.items()
            if request in found
        }

    def _create(
        self, job: str, staged: str, head: JobHead, kind: Kind[Any, Any], spec: BaseModel, stages: Sequence[Stage],
        pending: str, more: Mapping[str, object],
    ) -> bool:  # fmt: skip
        """Make what was written under the name `staged` the job. False when there is one of this id already."""
        fields: dict[str, object] = {
            "state": "queued",
            "kind": kind.name,
            "spec": spec.model_dump_json(),
            "cache": head.cache,
            "priority": head.priority,
            "on_error": json.dumps(head.model_dump(mode="json")["on_error"]),
            "metadata": json.dumps(head.metadata),
            "ok": 0,
            "failed": 0,
            "cached": 0,
            "epoch": 0,
            "max_failed_share": head.allowed_failed_share,
            "deadline_s": head.deadline_s or "",
            "item_deadline_s": head.item_deadline_s or "",
            "keep_s": self._job_ttl_s,
            "batch_key": f"{kind.name}|{kind.batch_key(spec)}",
            "first": stages[0].name,
            "asks": int(any(stage.asks for stage in stages)),
            "stages": json.dumps([{"name": each.name, "pool": each.pool, "grouped": each.grouped} for each in stages]),
            **({"slots": head.slots} if head.slots else {}),
            **({"trace": context} if (context := current().context) else {}),
            **more,
        }
        for stage in stages:
            fields |= {
                f"pool:{stage.name}": stage.pool,
                f"grouped:{stage.name}": int(stage.grouped),
                f"cost:{stage.name}": stage.cost_s,
                f"batch_items:{stage.name}": stage.batch_items,
                f"least_items:{stage.name}": stage.least_items,
                f"streams:{stage.name}": int(stage.streams),
                f"most_out:{stage.name}": stage.most_out,
                f"pending:{stage.name}": 0,
            }
        ranges = pending.split(",") if pending else []
        entries = [(stages[0].name, ",".join(ranges[at : at + RANGES])) for at in range(0, len(ranges), RANGES)]
        return self._ledger.create(job, staged, fields, entries)


def _validated(model: type[BaseModel], value: object, where: str) -> BaseModel:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        path = where + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise InvalidRequest(f"{path}: {first['msg'].removeprefix('Value error, ')}", field=path) from error


def _check_stages(stages: Sequence[Stage]) -> None:
    if len({stage.name for stage in stages}) < len(stages):
        raise InvalidRequest("spec.stages: names must differ", field="spec.stages")
    if sum(stage.grouped for stage in stages) > 1 or stages[0].grouped:
        raise InvalidRequest("spec.stages: one stage may be grouped, and not the first", field="spec.stages")


def _groups(items: Sequence[dict[str, Any]]) -> list[int]:
    """The group of each item: the index of the first that has the same. An item without one is a group of its own."""
    first: dict[str, int] = {}
    groups = []
    for index, item in enumerate(items):
        group = item.get("group_id")
        groups.append(index if group is None else first.setdefault(str(group), index))
    return groups
