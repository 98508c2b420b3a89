"""Rollouts against their targets: `python -m bench.rollouts`. Takes about five minutes."""

import json
import random
import sys
import time
from functools import partial
from statistics import median
from typing import Any
from uuid import uuid4

from assay import Assay
from assay.rollouts import FullyAsyncRollouter, ParameterSynchronizer
from redis import Redis

from bench.async_bound import Run, seconds
from bench.http import Client, gunicorn, show
from bench.spread import brief, line, note
from bench.stack import Stack, measure_all
from config import keys
from tasks.rollouts.simulation import Simulation, reward_seconds

BATCH, BYTES = 64, 2048


class QueueClient(Client):
    """Samples as a trainer puts and gets them, over one kept connection."""

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.text(method, path, body))
        return answer

    def text(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex} if body else {}
        self._connection.request(method, path, body, headers)
        reply = self._connection.getresponse()
        text = reply.read()
        assert reply.status in (200, 202), text
        return text


def queue_rate(stand: Stack) -> None:
    """The same samples put and got in batches: over HTTP, acknowledged; and pushed and popped on Redis itself. Once as
    bytes that are ready, once as a trainer has them: tokens and log-probabilities, written and read on both sides."""
    chance = random.Random(1)
    plain = [{"text": "x" * (BYTES - 12)} for _ in range(BATCH)]
    drawn = [
        {"token_ids": [chance.randrange(50_000) for _ in range(75)], "logprobs": [-chance.random() for _ in range(75)]}
        for _ in range(BATCH)
    ]
    with gunicorn(stand) as (port, _), Redis.from_url(stand.url) as raw:
        client = QueueClient(port)
        _rates(client, raw, f"/v1/rollouts/{client.call('POST', '/v1/rollouts', b'{}')['id']}", plain, True, rounds=1)
        before = _memory_without_rollouts(stand)
        for name, samples, is_ready in (("ready as bytes", plain, True), ("written and read", drawn, False)):
            path = f"/v1/rollouts/{client.call('POST', '/v1/rollouts', b'{}')['id']}"
            ratios = _rates(client, raw, path, samples, is_ready)
            about = f"{BATCH} samples of {len(json.dumps(samples)) // BATCH} bytes, {name},"
            show(f"put and get of {about} over HTTP, share of the rate on Redis", ratios, ">= 0.5")
        after = _memory_without_rollouts(stand)
    line("memory of Redis after them and their rollouts, over before", after / before, "<= 1.05")


def _memory_without_rollouts(stand: Stack) -> int:
    for rollout in stand.core.state.smembers(keys.rollouts()):
        stand.core.cancel(str(rollout))
        stand.core.ledger.remove(str(rollout))
    time.sleep(2)  # buffers of connections shrink by and by
    return int(stand.core.state.info("memory")["used_memory"])


def _rates(
    client: QueueClient, raw: Redis, path: str, samples: list[Any], is_ready: bool, rounds: int = 7
) -> list[float]:
    written = [json.dumps(sample) for sample in samples]
    body = f'{{"param_version":1,"samples":[{",".join(written)}]}}'.encode()
    last = ""

    def over_http() -> float:
        nonlocal last
        started = time.perf_counter()
        client.call("POST", f"{path}/samples", body if is_ready else json.dumps({"samples": samples}).encode())
        query = f"?n={BATCH}&current_version=1&consumer=bench&acknowledge={last}"
        text = client.text("GET", f"{path}/samples{query}")
        answer = json.loads(text) if not is_ready else {}
        took = time.perf_counter() - started
        answer = answer or json.loads(text)
        last = answer["batch"]
        assert answer["samples"] == BATCH
        return took

    def on_redis() -> float:
        started = time.perf_counter()
        raw.rpush("raw", *(written if is_ready else map(json.dumps, samples)))
        found: Any = raw.lpop("raw", BATCH)
        assert len(found if is_ready else [json.loads(each) for each in found]) == BATCH
        return time.perf_counter() - started

    for _ in range(100):
        over_http(), on_redis()
    ratios = []
    for _ in range(brief(rounds)):
        pairs = [(on_redis(), over_http()) for _ in range(brief(150, 20))]
        theirs, ours = (median(pair[side] for pair in pairs) for side in (0, 1))
        ratios.append(theirs / ours)
    print(f"  {1000 * theirs:.2f} ms on Redis, {1000 * ours:.2f} ms over HTTP in the last round")
    return ratios


UNIT_S = 0.4
STEPS, PROMPTS, AT_ONCE = 12, 16, 8
#: Generation : reward : training = 4 : 2 : 3, in units, of a step; rewards have a long tail.
TIMES = Simulation(generate_s=4 * UNIT_S * AT_ONCE / PROMPTS, reward_s=2 * UNIT_S, tail=1.0, at_once=AT_ONCE)


def train(client: Assay, staleness: int) -> float:
    """Seconds of a run of a trainer that only sleeps, from the rollout's begin to the end of the last step."""
    spec = {"simulated": TIMES.model_dump(), "n": 1, "train_batch_size": PROMPTS, "max_staleness": staleness}
    started = time.perf_counter()
    rollouter = FullyAsyncRollouter(spec, [{"prompt": "x"}], client=client, interrupt="finish")
    queue, synchronizer = rollouter.queue(consumer="bench"), ParameterSynchronizer(rollouter)
    for version in range(STEPS):
        assert queue.get_samples(PROMPTS, timeout=60, current_param_version=version)
        time.sleep(3 * UNIT_S)
        assert synchronizer.sync_weights(version + 1, b"weights")
    elapsed = time.perf_counter() - started
    rollouter.end()
    return elapsed


def async_training(stand: Stack) -> None:
    """Steps an hour at each staleness, beside what is possible with these times."""
    hour: dict[int, float] = {}
    with stand.workers(1, api=1), gunicorn(stand) as (port, _), Assay(f"http://127.0.0.1:{port}") as client:
        for staleness in (0, 1, 2, 4, 8)[:: brief(1, 2)]:
            bound = seconds(
                Run(STEPS, PROMPTS, AT_ONCE, TIMES.generate_s, 3 * UNIT_S, partial(reward_seconds, TIMES), staleness)
            )
            took = train(client, staleness)
            hour[staleness] = 3600 * STEPS / took
            note(f"staleness {staleness}: {hour[staleness]:.0f} steps/hour, {3600 * STEPS / bound:.0f} possible")
            line(f"asynchronous run of staleness {staleness}, share of what is possible", bound / took, ">= 0.9")
    line("asynchronous run of staleness 2 over synchronous, steps/hour", hour[2] / hour[0], ">= 2")


MEASURES = (queue_rate, async_training)


def main() -> int:
    return measure_all(*MEASURES)


if __name__ == "__main__":
    sys.exit(main())
