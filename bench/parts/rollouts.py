"""Benchmark of rollouts: throughput of the sample queue, and steps per hour of asynchronous training.

`python -m bench rollouts`; takes about five minutes.
"""

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

from bench.baselines.ideal_async_training import Run, seconds
from bench.parts.http import Client, gunicorn, show
from bench.processes.stack import Stack, measure_all
from bench.report.figures import brief, line, note
from config import keys
from tasks.rollouts.simulation import Simulation, reward_seconds

BATCH, BYTES = 64, 2048


class QueueClient(Client):
    """HTTP client that puts and gets samples as a trainer does, over a keep-alive connection."""

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


def queue_rate(stack: Stack) -> None:
    """Compare put and get of batches over HTTP, with acknowledgements, with push and pop of the same bytes on Redis.

    Measured twice: with bytes that are serialized beforehand, which shows the transport alone, and with tokens and
    log-probabilities that both sides serialize and parse, as a trainer does."""
    chance = random.Random(1)
    plain = [{"text": "x" * (BYTES - 12)} for _ in range(BATCH)]
    drawn = [
        {"token_ids": [chance.randrange(50_000) for _ in range(75)], "logprobs": [-chance.random() for _ in range(75)]}
        for _ in range(BATCH)
    ]
    with gunicorn(stack) as (port, _), Redis.from_url(stack.url) as raw:
        client = QueueClient(port)
        _rates(client, raw, f"/v1/rollouts/{client.call('POST', '/v1/rollouts', b'{}')['id']}", plain, True, rounds=1)
        before = _memory_without_rollouts(stack)
        for name, samples, is_serialized in (
            ("serialized beforehand", plain, True),
            ("serialized and parsed", drawn, False),
        ):
            path = f"/v1/rollouts/{client.call('POST', '/v1/rollouts', b'{}')['id']}"
            ratios = _rates(client, raw, path, samples, is_serialized)
            about = f"{BATCH} samples of {len(json.dumps(samples)) // BATCH} bytes, {name},"
            show(f"put and get of {about} over HTTP, share of the rate on Redis", ratios, ">= 0.5")
        after = _memory_without_rollouts(stack)
    line("memory of Redis after the rollouts were removed, over before", after / before, "<= 1.05")


def _memory_without_rollouts(stack: Stack) -> int:
    for rollout in stack.core.state.smembers(keys.rollouts()):
        stack.core.cancel(str(rollout))
        stack.core.ledger.remove(str(rollout))
    time.sleep(2)  # buffers of connections shrink gradually
    return int(stack.core.state.info("memory")["used_memory"])


def _rates(
    client: QueueClient, raw: Redis, path: str, samples: list[Any], is_serialized: bool, rounds: int = 7
) -> list[float]:
    written = [json.dumps(sample) for sample in samples]
    body = f'{{"param_version":1,"samples":[{",".join(written)}]}}'.encode()
    last = ""

    def over_http() -> float:
        nonlocal last
        started = time.perf_counter()
        client.call("POST", f"{path}/samples", body if is_serialized else json.dumps({"samples": samples}).encode())
        query = f"?n={BATCH}&current_version=1&consumer=bench&acknowledge={last}"
        text = client.text("GET", f"{path}/samples{query}")
        answer = json.loads(text) if not is_serialized else {}
        took = time.perf_counter() - started
        answer = answer or json.loads(text)
        last = answer["batch"]
        assert answer["samples"] == BATCH
        return took

    def on_redis() -> float:
        started = time.perf_counter()
        raw.rpush("raw", *(written if is_serialized else map(json.dumps, samples)))
        found: Any = raw.lpop("raw", BATCH)
        assert len(found if is_serialized else [json.loads(each) for each in found]) == BATCH
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
#: Durations within a step, in units: generation 4, reward 2, training 3. Rewards have a long tail.
TIMES = Simulation(generate_s=4 * UNIT_S * AT_ONCE / PROMPTS, reward_s=2 * UNIT_S, tail=1.0, at_once=AT_ONCE)


def train(client: Assay, staleness: int) -> float:
    """Run a trainer that sleeps instead of training. Returns the seconds from the rollout's start to its last step."""
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


def async_training(stack: Stack) -> None:
    """Measure the steps per hour at each staleness, and compare them with the simulated upper bound."""
    steps_per_hour: dict[int, float] = {}
    with stack.workers(1, api=1), gunicorn(stack) as (port, _), Assay(f"http://127.0.0.1:{port}") as client:
        for staleness in (0, 1, 2, 4, 8)[:: brief(1, 2)]:
            bound = seconds(
                Run(STEPS, PROMPTS, AT_ONCE, TIMES.generate_s, 3 * UNIT_S, partial(reward_seconds, TIMES), staleness)
            )
            took = train(client, staleness)
            steps_per_hour[staleness] = 3600 * STEPS / took
            rate = steps_per_hour[staleness]
            note(f"staleness {staleness}: {rate:.0f} steps/hour, upper bound {3600 * STEPS / bound:.0f}")
            line(f"asynchronous run of staleness {staleness}, share of the upper bound", bound / took, ">= 0.9")
    line("asynchronous run of staleness 2 over synchronous, steps/hour", steps_per_hour[2] / steps_per_hour[0], ">= 2")


MEASURES = (queue_rate, async_training)


def main() -> int:
    return measure_all(*MEASURES)


if __name__ == "__main__":
    sys.exit(main())
