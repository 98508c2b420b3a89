"""Rollouts against their targets: `python -m bench.rollouts`. Takes about three minutes."""

import json
import time
from typing import Any
from uuid import uuid4

from redis import Redis

from bench.http import Client, gunicorn, show
from bench.stack import Stack, stack

BATCH, BYTES = 64, 2048


class QueueClient(Client):
    """Samples as a trainer puts and gets them, over one kept connection."""

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex} if body else {}
        self._connection.request(method, path, body, headers)
        reply = self._connection.getresponse()
        text = reply.read()
        assert reply.status in (200, 202), text
        answer: dict[str, Any] = json.loads(text)
        return answer


def queue_rate(stand: Stack) -> None:
    """The same samples put and got in batches: over HTTP, acknowledged; and pushed and popped on Redis itself."""
    samples = [json.dumps({"text": "x" * (BYTES - 12)}) for _ in range(BATCH)]
    body = f'{{"param_version":1,"samples":[{",".join(samples)}]}}'.encode()
    with gunicorn(stand) as (port, _), Redis.from_url(stand.url) as raw:
        client = QueueClient(port)
        path = f"/v1/rollouts/{client.call('POST', '/v1/rollouts', b'{}')['id']}/samples"
        last = ""

        def over_http() -> float:
            nonlocal last
            started = time.perf_counter()
            client.call("POST", path, body)
            query = f"?n={BATCH}&current_version=1&consumer=bench&acknowledge={last}"
            answer = client.call("GET", path + query)
            last = answer["batch"]
            assert answer["samples"] == BATCH
            return time.perf_counter() - started

        def on_redis() -> float:
            started = time.perf_counter()
            raw.rpush("raw", *samples)
            assert len(raw.lpop("raw", BATCH)) == BATCH
            return time.perf_counter() - started

        for _ in range(100):
            over_http(), on_redis()
        before = stand.core.state.info("memory")["used_memory"]
        ratios = []
        for _ in range(7):
            pairs = [(on_redis(), over_http()) for _ in range(200)]
            ours, theirs = sum(pair[1] for pair in pairs), sum(pair[0] for pair in pairs)
            ratios.append(theirs / ours)
        print(f"  {1000 * theirs / 200:.2f} ms on Redis, {1000 * ours / 200:.2f} ms over HTTP, for {BATCH} put and got")
        client.call("POST", f"{path.removesuffix('/samples')}/batches/{last}/acknowledge")
        after = stand.core.state.info("memory")["used_memory"]
        print(f"  Redis had {before / 1e6:.2f} MB before and {after / 1e6:.2f} MB after")
    show(f"put and get of {BATCH} samples of {BYTES} bytes over HTTP, share of the rate on Redis", ratios, ">= 0.5")


MEASURES = (queue_rate,)


def main() -> None:
    for measure in MEASURES:
        with stack() as stand:
            measure(stand)


if __name__ == "__main__":
    main()
