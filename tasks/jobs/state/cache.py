"""Result cache: successful results by request hash, in the cache Redis.

Redis may evict any entry at any time; a lost entry costs only the time to compute it again. Failures are never cached.
While the cache Redis is unavailable every lookup is a miss: a warning is logged, and jobs continue without the cache.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from config import keys
from tasks import quick_json
from tasks.jobs.model import Result

log = logging.getLogger(__name__)

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

#: Keys looked up in one command: 300,000 at once stall Redis for every client, 1,000 do not.
PAGE = 1000
#: Number of recent request keys kept per item id, to explain cache misses.
ASKED_KEPT = 3
#: Longest text in a kept request key; a longer text is replaced by its length and hash.
ASKED_CHARS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """A result to be cached, with the request key that explains later misses and the labels by which it is purged."""

    result: Result
    stage: str
    key: Mapping[str, Any]
    item: str = ""
    """The item's id; empty when it has none."""
    labels: Mapping[str, str] = field(default_factory=dict)


def canonical(value: Any) -> str:
    """Serialize a value as canonical JSON: equal values have equal texts, whatever the order of their keys."""
    return _CANONICAL.encode(value)


def request_hash(kind: str, stage: str, key: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical({"kind": kind, "stage": stage, "key": key}).encode()).hexdigest()


class Cache:
    def __init__(self, redis: Redis, lifetime_s: int) -> None:
        self._redis = redis
        self._lifetime_s = lifetime_s

    def get(self, kind: str, requests: Sequence[str]) -> dict[str, Result]:
        """Return the cached results, by request hash. Misses are left out."""
        found: dict[str, Result] = {}
        for start in range(0, len(requests), PAGE):
            page = requests[start : start + PAGE]
            try:
                values = self._redis.mget([keys.cached(kind, request) for request in page])
            except RedisError as error:
                log.warning("the cache Redis is unavailable, so results are computed; check ASSAY_CACHE_URL: %s", error)
                return found
            found |= {request: _read(value) for request, value in zip(page, values, strict=True) if value}
        return found

    def put(self, kind: str, answers: Mapping[str, Answer]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for request, answer in answers.items():
            pipeline.set(keys.cached(kind, request), _write(answer), ex=self._lifetime_s)
            if answer.item:
                asked = keys.asked(kind, answer.stage, answer.item)
                pipeline.lpush(asked, quick_json.write({"request": request, "key": shortened(answer.key)}))
                pipeline.ltrim(asked, 0, ASKED_KEPT - 1)
                pipeline.expire(asked, self._lifetime_s)
        try:
            pipeline.execute()
        except RedisError as error:
            log.warning("the cache Redis is unavailable, so results are not cached; check ASSAY_CACHE_URL: %s", error)

    def has(self, kind: str, request: str) -> bool:
        return bool(self._redis.exists(keys.cached(kind, request)))

    def asked(self, kind: str, stage: str, item: str) -> list[dict[str, Any]]:
        """Return request hash and key of the last answers that were stored for an item of this id, newest first."""
        return [quick_json.read(each) for each in self._redis.lrange(keys.asked(kind, stage, item), 0, -1)]

    def size(self) -> dict[str, int]:
        """Return the number of keys in the cache Redis, its used memory and its memory limit."""
        info = self._redis.info("memory")
        return {"keys": self._redis.dbsize(), "bytes": info["used_memory"], "max_bytes": info["maxmemory"]}

    def purge(self, kind: str = "*", labels: Mapping[str, str] | None = None) -> int:
        """Remove the answers of a kind, or of every kind, that have the given labels. Scans every key, in pages.
        Returns the number of removed answers."""
        removed = 0
        for page in self._pages(keys.cached(kind, "*")):
            doomed = page
            if labels:
                values = self._redis.mget(page)
                doomed = [
                    name
                    for name, value in zip(page, values, strict=True)
                    if value and labels.items() <= quick_json.read(value).get("labels", {}).items()
                ]
            if doomed:
                removed += int(self._redis.unlink(*doomed))
        return removed

    def _pages(self, pattern: str) -> Iterator[list[str]]:
        page: list[str] = []
        for name in self._redis.scan_iter(pattern, count=PAGE):
            page.append(str(name))
            if len(page) >= PAGE:
                yield page
                page = []
        if page:
            yield page


def _write(answer: Answer) -> str:
    result = answer.result
    assert result.error is None, "failures are never cached"
    body = {"score": result.score, "parts": result.parts, "value": result.value, "labels": dict(answer.labels) or None}
    return quick_json.write({name: value for name, value in body.items() if value is not None})


def _read(text: str | bytes) -> Result:
    body = quick_json.read(text)
    body.pop("labels", None)
    return Result(**body, cached=True)


def shortened(value: Any) -> Any:
    """Return the value with long texts replaced by their length and hash, which suffices to tell that they differ."""
    if isinstance(value, str) and len(value) > ASKED_CHARS:
        return f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()[:16]}"
    if isinstance(value, Mapping):
        return {name: shortened(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(each) for each in value]
    return value
