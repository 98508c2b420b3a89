"""Results by request hash, in the cache Redis. It may lose anything at any time: nothing but time depends on it.

Failures are never put here. A cache that is away is a cache that has nothing: said in the log, and work goes on.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from config import keys
from tasks.jobs.model import Result

log = logging.getLogger(__name__)

#: Keys looked up in one command: 300,000 at once stall Redis for everybody, 1,000 do not.
PAGE = 1000


def canonical(value: Any) -> str:
    """The same text for the same meaning, whatever the order of keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def request_hash(kind: str, stage: str, key: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical({"kind": kind, "stage": stage, "key": key}).encode()).hexdigest()


class Cache:
    def __init__(self, redis: Redis, lifetime_s: int) -> None:
        self._redis = redis
        self._lifetime_s = lifetime_s

    def get(self, requests: Sequence[str]) -> dict[str, Result]:
        """What is there, by hash."""
        found: dict[str, Result] = {}
        for start in range(0, len(requests), PAGE):
            page = requests[start : start + PAGE]
            try:
                values = self._redis.mget([keys.cached(request) for request in page])
            except RedisError as error:
                log.warning("the cache does not answer, computing instead: %s", error)
                return found
            found |= {request: _read(value) for request, value in zip(page, values, strict=True) if value}
        return found

    def put(self, results: Mapping[str, Result]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for request, result in results.items():
            pipeline.set(keys.cached(request), _write(result), ex=self._lifetime_s)
        try:
            pipeline.execute()
        except RedisError as error:
            log.warning("the cache does not answer, results are not kept in it: %s", error)


def _write(result: Result) -> str:
    assert result.error is None, "failures are never cached"
    body = {"score": result.score, "parts": result.parts, "value": result.value}
    return json.dumps({name: value for name, value in body.items() if value is not None})


def _read(text: str | bytes) -> Result:
    return Result(**json.loads(text), cached=True)
