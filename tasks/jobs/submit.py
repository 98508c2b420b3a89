"""The one door: validate, hash, look up, store, fill. A job is visible only when all of it is written."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from redis import Redis

from config import keys
from tasks.errors import Conflict, InvalidRequest
from tasks.jobs.cache import Cache, canonical, request_hash
from tasks.jobs.dispatch import Dispatcher
from tasks.jobs.kinds import Kind, Kinds
from tasks.jobs.ledger import Ledger, compress
from tasks.jobs.model import JobRequest, Result, Stage
from tasks.jobs.outcome import settle
from tasks.jobs.store import STAGING_S, Store

#: Outcomes from the cache written in one script.
PAGE = 500
#: Ranges in one pending entry: filling reads and writes an entry whole.
RANGES = 200


class Door:
    def __init__(
        self, state: Redis, store: Store, ledger: Ledger, cache: Cache, kinds: Kinds, dispatcher: Dispatcher,
        job_ttl_s: float, idempotency_ttl_s: int,
    ) -> None:  # fmt: skip
        self._state = state
        self._store = store
        self._ledger = ledger
        self._cache = cache
        self._kinds = kinds
        self._dispatcher = dispatcher
        self._job_ttl_s = job_ttl_s
        self._idempotency_ttl_s = idempotency_ttl_s

    def submit(self, request: JobRequest, idempotency_key: str | None = None) -> str:
        """The id of the job: a new one, or the one this idempotency key made before.

        Raises InvalidRequest, and Conflict when the key was used with another body. A submit that was cut off leaves
        nothing that counts; repeating it with its key completes it under the same id.
        """
        kind = self._kinds[request.kind]
        spec = _validated(kind.spec_model, request.spec, "spec")
        items = [_validated(kind.item_model, item, f"items[{index}]") for index, item in enumerate(request.items)]
        job = uuid4().hex
        if idempotency_key:
            job = self._reserve(idempotency_key, request, job)
            if self._state.exists(keys.job(job)):
                return job
        stages = list(kind.stages(spec))
        _check_stages(stages)
        hits = self._look_up(kind, spec, stages, items) if request.cache == "use" else {}
        self._write(job, request, kind, spec, stages, hits)
        if len(hits) < len(items):
            self._dispatcher.fill(stages[0].pool)
        return job

    def _reserve(self, key: str, request: JobRequest, job: str) -> str:
        body = hashlib.sha256(canonical(request.model_dump(mode="json")).encode()).hexdigest()
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
        requests: dict[int, str] = {}
        for index, item in enumerate(items):
            key = kind.key(spec, stages[0].name, item)
            if key is None:
                return {}
            requests[index] = request_hash(kind.name, stages[0].name, key)
        found = self._cache.get(list(dict.fromkeys(requests.values())))
        return {index: found[request] for index, request in requests.items() if request in found}

    def _write(
        self,
        job: str,
        request: JobRequest,
        kind: Kind[Any, Any],
        spec: BaseModel,
        stages: Sequence[Stage],
        hits: dict[int, Result],
    ) -> None:
        # Under a name of its own: the same request may be on its way twice, and only one of them becomes the job.
        staged = f"{job}~{uuid4().hex[:8]}"
        self._store.write_items(staged, request.items)
        if any(stage.grouped for stage in stages):
            self._store.write_groups(staged, _groups(request.items))
        settled = [settle(index, request.items[index], hits[index]) for index in sorted(hits)]
        for start in range(0, len(settled), PAGE):
            page = {each.index: each.outcome for each in settled[start : start + PAGE]}
            self._ledger.prefill(staged, stages[0].name, page, STAGING_S)
        missing = compress(index for index in range(len(request.items)) if index not in hits)
        ranges = missing.split(",") if missing else []
        fields: dict[str, object] = {
            "state": "queued",
            "kind": kind.name,
            "spec": spec.model_dump_json(),
            "cache": request.cache,
            "priority": request.priority,
            "on_error": json.dumps(request.model_dump(mode="json")["on_error"]),
            "metadata": json.dumps(request.metadata),
            "total": len(request.items),
            "ok": len(hits),
            "failed": 0,
            "cached": len(hits),
            "epoch": 0,
            "max_failed_share": request.allowed_failed_share,
            "deadline_s": request.deadline_s or "",
            "keep_s": self._job_ttl_s,
            "batch_key": f"{kind.name}|{kind.batch_key(spec)}",
            "batch_items": kind.batch_items(spec),
            "stages": json.dumps([{"name": each.name, "pool": each.pool, "grouped": each.grouped} for each in stages]),
        }
        for stage in stages:
            fields |= {
                f"pool:{stage.name}": stage.pool,
                f"grouped:{stage.name}": int(stage.grouped),
                f"cost:{stage.name}": kind.cost_s(spec),
                f"pending:{stage.name}": 0,
            }
        pending = [(stages[0].name, ",".join(ranges[at : at + RANGES])) for at in range(0, len(ranges), RANGES)]
        self._ledger.create(job, staged, fields, pending)


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


def _groups(items: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Members by group; an item without a group is a group of its own."""
    members: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        group = item.get("group_id")
        members.setdefault(f"g:{group}" if group is not None else f"i:{index}", []).append(index)
    return members
