"""Cache explanation: tells why an item was a hit or a miss, and which fields of its key differ from the last answer
stored for an item of the same id."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from redis import Redis

from config import keys
from tasks.errors import InvalidRequest
from tasks.jobs.kind import Kinds, answer_namespace
from tasks.jobs.stage import Work
from tasks.jobs.state.cache import Cache, request_hash, shortened
from tasks.jobs.state.job_store import JobStore
from tasks.jobs.state.outcome_store import OutcomeStore
from tasks.jobs.state.payloads import Payloads


class CacheExplainer:
    def __init__(
        self, state: Redis, store: JobStore, payloads: Payloads, outcomes: OutcomeStore, cache: Cache, kinds: Kinds
    ) -> None:
        self._state = state
        self._store = store
        self._payloads = payloads
        self._outcomes = outcomes
        self._cache = cache
        self._kinds = kinds

    def explain(self, job_id: str, index: int) -> dict[str, Any]:
        """Return an explanation for each stage of the item. Raises UnknownJob, and InvalidRequest for an index that the
        job does not have."""
        job = self._store.job(job_id)
        row = index * job.trials  # with several trials, the first trial
        payload = self._payloads.read(job.id, job.layout, [row]).get(row)
        if payload is None:
            raise InvalidRequest(f"The job has no item {index}: it has {job.total} items.", field="index")
        ((_, line),) = self._outcomes.lines(job, row, row + 1)
        was_cached = bool(line) and bool(json.loads(str(line))["cached"])
        spec_text = self._state.hget(keys.job_definition(job_id), "spec")
        mode = self._state.hget(keys.job(job_id), "cache")
        kind = self._kinds[job.kind]
        spec = kind.spec_model.model_validate_json(str(spec_text))
        item = kind.item_model.model_validate(payload)
        name = str(payload.get("id") or "")
        stages = []
        for stage in kind.stages(spec):
            key = stage.key(Work(row, item, spec=spec))
            told: dict[str, Any] = {"stage": stage.name}
            if key is None:
                told["reason"] = "This stage is not cached: computing it is cheaper than a lookup."
            elif mode == "off":
                told["reason"] = "The job was submitted with `cache: off`."
            else:
                told |= self._compare(
                    answer_namespace(kind, stage), stage.name, name, key, was_cached, str(mode), line is None
                )
            stages.append(told)
        return {"job": job_id, "index": index, "id": name or None, "cached": was_cached, "stages": stages}

    def _compare(
        self, kind: str, stage: str, item: str, key: Mapping[str, Any], was_cached: bool, mode: str, is_pending: bool
    ) -> dict[str, Any]:
        request = request_hash(kind, stage, key)
        told: dict[str, Any] = {"request": request, "in_cache": self._cache.has(kind, request), "key": shortened(key)}
        asked = self._cache.asked(kind, stage, item) if item else []
        others = [each for each in asked if each["request"] != request]
        if was_cached:
            told["reason"] = "A hit: the same request had been answered before."
        elif mode == "refresh":
            told["reason"] = "Computed again, because the job was submitted with `cache: refresh`."
        elif others:
            told["differs"] = _difference(others[0]["key"], shortened(key))
            told["reason"] = "A miss: the last answer for this item was to a request that differs in " + (
                ", ".join(told["differs"]) or "texts that are too long to be stored"
            )
        elif sum(each["request"] == request for each in asked) > (0 if is_pending else 1):
            told["reason"] = "A miss: the same request was answered before, but its answer had expired or was evicted."
        elif item:
            told["reason"] = "A miss: no earlier answer for an item with this id is stored."
        else:
            told["reason"] = "A miss: the item has no id by which an earlier answer could be found."
        return told


def _difference(before: Any, now: Any) -> dict[str, Any]:
    old, new = dict(_leaves(before)), dict(_leaves(now))
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return {name: {"before": old.get(name), "now": new.get(name)} for name in changed}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and value:
        for at, each in enumerate(value):
            yield from _leaves(each, f"{path}[{at}]")
    else:
        yield path, value
