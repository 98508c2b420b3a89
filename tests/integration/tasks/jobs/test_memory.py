"""Memory of the state Redis: a small job takes little, and a full Redis still lets accepted work end and expire."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis
from redis.exceptions import RedisError

from config import keys
from tasks.jobs.model import JobRequest, Result
from tasks.jobs.state.outcome import settle
from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet
from tests.support.programs import wait_until

#: Maximum number of bytes that a job with one item takes beside its own spec, input and outcome.
JOB_BYTES = 3000


@contextmanager
def full(state: Redis) -> Iterator[None]:
    """Let Redis have more data than its `maxmemory` while the block runs."""
    state.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(RedisError, match="maxmemory"):
            state.set("anything", "x")
        yield
    finally:
        state.config_set("maxmemory", "0")


def job_keys(state: Redis, job: str) -> list[str]:
    return [str(key) for key in state.scan_iter(match=f"*{job}*", count=10_000)]


@pytest.mark.parametrize(
    ("kind", "spec", "item"),
    [
        ("simulated", {}, {"id": "a", "x": 1}),
        ("score", {"scorers": [{"name": "numeric_match"}]}, {"id": "a", "response": "5", "reference": "5"}),
        (
            "score",
            {
                "scorers": [{"name": "numeric_match", "options": {"tolerance": 1e-6}}],
                "penalties": [{"name": "group_length"}],
            },
            {"id": "a", "group_id": "g", "response": "5", "reference": "5", "response_tokens": 1},
        ),
    ],
)
def test_a_job_with_one_item_takes_little_memory(
    fleet: Fleet, state: Redis, kind: str, spec: dict[str, object], item: dict[str, object]
) -> None:
    hand = fleet.hire("device" if kind == "simulated" else "cpu")
    job = fleet.core.submitter.submit(JobRequest(kind=kind, items=[item], spec=spec))
    assert fleet.finish(job, hand).ok == 1, fleet.rows(job)
    events = keys.job_events(job)
    assert 0 < state.ttl(events) <= 60, "the events of an ended job expire"
    state.delete(events)
    assert state.object("encoding", keys.job(job)) in ("ziplist", "listpack"), "the job's hash is compact"
    taken = sum(int(state.memory_usage(key) or 0) for key in job_keys(state, job))
    texts = [*state.hgetall(keys.job_definition(job)).values(), *state.hgetall(keys.job_blocks(job)).values()]
    own = sum(map(len, [*texts, *state.hgetall(keys.job_outcomes(job, "0")).values()]))
    assert taken - own <= JOB_BYTES, {key: state.memory_usage(key) for key in job_keys(state, job)}


def test_a_full_redis_counts_results_and_refuses_new_jobs(fleet: Fleet, state: Redis) -> None:
    hand = fleet.hire()
    job = fleet.submit(*({"x": x} for x in range(4)), spec={"result_bytes": 1000})
    chunks = hand.take()
    hand.begin(chunks)
    waiting = fleet.submit({"x": 9})
    expired = fleet.core.submitter.submit(JobRequest(kind="simulated", items=[{"x": 5}]), keep_s=0.001)
    fleet.core.cancel(expired)
    state.set("ballast", "x" * 2_000_000)
    with full(state):
        hand.core.registry.announce(hand.worker)  # a heartbeat
        with pytest.raises(RedisError, match="maxmemory"):
            fleet.submit({"x": 10})
        for chunk in chunks:
            settled = [settle(index, {}, Result(value="y" * 1000)) for index in chunk.items]
            hand.core.ledger.commit(chunk, hand.worker.name, 0.1, settled, over=True)
        fleet.core.cancel(waiting)
        with pytest.raises(RedisError, match="maxmemory"):
            fleet.tick()  # dispatch fails, after everything that frees memory
        assert job_keys(state, expired) == []
        assert (fleet.job(job).state, fleet.job(job).ok) == ("done", 4)
        assert fleet.job(waiting).state == "cancelled"
        fleet.core.purge(waiting)
        assert job_keys(state, waiting) == []
    state.delete("ballast")
    assert fleet.finish(fleet.submit({"x": 11}), hand).ok == 1


def test_submits_are_refused_while_redis_is_nearly_full(fleet: Fleet, state: Redis) -> None:
    fleet.settings = fleet.settings.model_copy(update={"redis_memory_share": 0.5})
    api, hand = Api(fleet), fleet.hire()
    job = api.submitted({"x": 1})
    state.set("ballast", "x" * 4_000_000)
    used = state.info("memory")["used_memory"]
    state.config_set("maxmemory", int(used * 1.5))
    try:
        wait_until(lambda: api.submit({"x": 2}).status_code == 503, "the usage is read again")
        reply = api.submit({"x": 3})
        assert is_problem(reply, 503)
        assert reply.json["type"] == "urn:assay:memory_full"
        assert reply.headers["Retry-After"] == "5"
        ready = api.client.get("/ready")
        assert ready.status_code == 503
        assert any("new jobs are refused above 50 %" in each for each in ready.json["missing"])
        assert fleet.finish(job, hand).ok == 1, "accepted jobs end"
        state.delete("ballast")
        wait_until(lambda: api.submit({"x": 4}).status_code == 202, "the usage is read again")
    finally:
        state.config_set("maxmemory", "0")
