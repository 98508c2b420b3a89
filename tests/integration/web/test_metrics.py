"""`/metrics`: figures of jobs, queues, workers, APIs, rollouts and requests, summed over every process."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from config.profiles import Profile, Profiles
from config.settings import Settings
from tasks.connections import connect
from tasks.counters import BUCKETS, bucket
from tasks.providers.call import ApiCall
from tasks.worker_registry import Gpu
from tests.conftest import NOWHERE, ROOT
from tests.integration.api import Api, is_problem
from tests.support.chat_api import ChatApi, Fault
from tests.support.fleet import Fleet
from tests.support.metrics import Told
from tests.support.programs import wait_until
from tests.support.rollouts import SIMULATED, Stand
from web import tokens
from web.app import create_app
from web.metrics.catalogue import METRICS, rewritten
from web.metrics.collector import Collector, Scrape, exposition
from workers.providers.api_calls import ApiCalls


def scraped(api: Api) -> Told:
    reply = api.client.get("/metrics")
    assert (reply.status_code, reply.mimetype) == (200, "text/plain"), reply.text
    return Told(reply.text)


def test_counts_of_jobs_and_items_survive_the_removal_of_their_job(fleet: Fleet, api: Api) -> None:
    hand = fleet.hire()
    spec = {"cacheable": True}
    done = fleet.submit({"x": 1}, {"x": 2, "fail": True}, spec=spec)
    fleet.work(hand)
    again = fleet.submit({"x": 1}, spec=spec)
    cancelled = fleet.submit({"x": 3}, {"x": 4})
    fleet.core.cancel(cancelled)

    def check(told: Told) -> None:
        assert told.get("assay_jobs_submitted_total", kind="simulated") == 3
        assert told.get("assay_jobs_ended_total", kind="simulated", state="done") == 2
        assert told.get("assay_jobs_ended_total", kind="simulated", state="cancelled") == 1
        assert told.get("assay_job_seconds_count", kind="simulated") == 3
        assert told.get("assay_items_total", kind="simulated", status="ok") == 2, (
            "an item was computed, and a second came from the cache"
        )
        assert told.get("assay_items_total", kind="simulated", status="failed") == 1
        assert told.get("assay_items_total", kind="simulated", status="unfinished") == 2
        assert told.get("assay_items_cached_total", kind="simulated") == 1
        assert told.get("assay_item_errors_total", type="simulated_failure") == 1
        assert told.get("assay_work_items_total", kind="simulated", pool="device") == 2
        assert (told.get("assay_work_seconds_total", kind="simulated", pool="device") or 0) > 0

    assert all(fleet.job(job).state == "done" for job in (done, again))
    check(scraped(api))
    for job in (done, again, cancelled):
        assert fleet.core.ledger.remove(job)
    check(scraped(api))


def test_a_retried_item_counts_as_a_retry_and_once_as_an_item(fleet: Fleet, api: Api) -> None:
    hand = fleet.hire()
    job = fleet.submit({"x": 1, "fail_times": 1})
    fleet.work(hand)
    told = scraped(api)
    assert told.get("assay_item_retries_total", kind="simulated") == 1
    assert told.get("assay_items_total", kind="simulated", status="ok") is None

    def is_over() -> bool:
        fleet.tick()  # the tick returns the item to the queue after its pause
        return not fleet.finish_step(job, hand)

    wait_until(is_over, "the item is retried")
    told = scraped(api)
    assert told.get("assay_item_retries_total", kind="simulated") == 1
    assert told.get("assay_items_total", kind="simulated", status="ok") == 1


def test_queues_have_waiting_and_running_items_and_readers(fleet: Fleet, api: Api) -> None:
    fleet.submit({"x": 1}, {"x": 2}, priority="bulk")
    told = scraped(api)
    assert told.get("assay_pool_waiting_items", pool="device", priority="bulk") == 2
    assert told.get("assay_pool_waiting_jobs", pool="device", priority="bulk") == 1
    assert told.get("assay_pool_waiting_items", pool="cpu", priority="normal") == 0
    assert (told.get("assay_pool_waiting_seconds", pool="device") or 0) > 0
    assert told.get("assay_workers", pool="device", state="ready") == 0
    assert told.get("assay_jobs_active") == 1
    hand = fleet.hire()
    fleet.core.dispatcher.forget_fleet()
    fleet.core.dispatcher.fill("device")
    told = scraped(api)
    assert told.get("assay_pool_waiting_items", pool="device", priority="bulk") == 0
    assert told.get("assay_queue_chunks", queue="gpu.node1.0", state="waiting") == 1
    assert (told.get("assay_queue_oldest_seconds", queue="gpu.node1.0") or 0) > 0
    assert told.get("assay_queue_readers", queue="gpu.node1.0") == 1
    assert told.get("assay_queue_readers", queue="api") == 0
    hand.take()
    told = scraped(api)
    assert told.get("assay_queue_chunks", queue="gpu.node1.0", state="running") == 1
    assert told.get("assay_queue_oldest_seconds", queue="gpu.node1.0") == 0
    assert told.get("assay_running_items", queue="gpu.node1.0", kind="simulated") == 2
    assert told.get("assay_chunks_dispatched_total") == 1
    fleet.core.pause_queue("gpu.node1.0")
    assert scraped(api).get("assay_queue_held", queue="gpu.node1.0") == 1


def test_recovered_chunks_of_a_dead_process_are_counted(fleet: Fleet, api: Api) -> None:
    hand = fleet.hire()
    fleet.submit({"x": 1})
    assert hand.take()
    fleet.recovery.bury(hand.runner.incarnation)
    fleet.core.ledger.reclaim(hand.runner.incarnation, proven=True)  # called twice, as after a lost reply
    told = scraped(api)
    assert told.get("assay_processes_lost_total", proof="seen") == 1
    assert told.get("assay_chunks_recovered_total") == 1


def test_workers_have_figures_of_cpu_memory_and_gpus(fleet: Fleet, api: Api) -> None:
    hand = fleet.hire()
    gpus = (Gpu("0", "GPU-a", 0.75, 1024, 2048), Gpu("1", "MIG-b", None, 512, 2048))
    fleet.core.registry.announce(replace(hand.worker, memory_mb=3, cpu_s=4.5, busy_s=2.5, active=1, gpus=gpus))
    told = scraped(api)
    own = {"worker": "gpu.node1.0", "pool": "device"}
    assert told.get("assay_workers", pool="device", state="ready") == 1
    assert told.get("assay_worker_busy_seconds_total", **own) == 2.5
    assert told.get("assay_worker_cpu_seconds_total", **own) == 4.5
    assert told.get("assay_worker_memory_bytes", **own) == 3 << 20
    assert told.get("assay_gpu_utilisation", worker="gpu.node1.0", gpu="GPU-a") == 0.75
    assert told.get("assay_gpu_utilisation", worker="gpu.node1.0", gpu="MIG-b") is None, (
        "the driver reports no utilisation"
    )
    assert told.get("assay_gpu_memory_used_bytes", worker="gpu.node1.0", gpu="MIG-b") == 512 << 20


@pytest.fixture
def chat_api() -> Iterator[ChatApi]:
    with ChatApi() as api:
        yield api


def test_calls_of_apis_are_counted_with_their_time_tokens_and_cost(
    redis_url: str, settings: Settings, chat_api: ChatApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.providers.retry.BASE_S", 0.01)
    faults = [Fault(status=500)]
    chat_api.fault = lambda _: faults.pop() if faults else None
    fields = {"base_url": chat_api.url, "models": ["judge-1"], "price_in": 1.0, "price_out": 2.0}
    (tmp_path / "p.toml").write_text(
        "[profiles.main]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    )

    async def ask() -> None:
        profile = Profile.model_validate(fields | {"name": "main"})
        async with ApiCalls(Profiles(profile), redis_url, {}) as calls:
            for text in ("2+3?", "3+4?"):
                await calls(ApiCall(profile="main", messages=({"role": "user", "content": text},), job_id="j"))

    asyncio.run(ask())
    app = create_app(settings.model_copy(update={"profiles_file": tmp_path / "p.toml"}))
    told = Told(app.test_client().get("/metrics").text)
    assert told.get("assay_api_calls_total", profile="main", outcome="answered") == 2
    assert told.get("assay_api_calls_total", profile="main", outcome="failed") == 1
    assert told.get("assay_api_call_seconds_count", profile="main") == 3
    assert (told.get("assay_api_call_seconds_sum", profile="main") or 0) > 0
    assert (told.get("assay_api_tokens_total", profile="main", direction="completion") or 0) > 0
    assert (told.get("assay_api_cost_total", profile="main", currency="USD") or 0) > 0
    assert told.get("assay_api_in_flight", profile="main") == 0
    assert told.get("assay_api_circuit_open", profile="main") == 0
    assert (told.get("assay_api_limit", profile="main", limit="concurrency") or 0) > 0


def test_samples_of_rollouts_are_counted_and_outlive_them(fleet: Fleet, api: Api) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=2, **SIMULATED)
    stand.work(hand)
    batch = stand.get(4)
    told = scraped(api)
    assert told.get("assay_rollouts") == 1
    assert told.get("assay_rollout_samples", state="leased") == 4
    assert (told.get("assay_rollout_samples", state="queued") or 0) > 0
    assert (told.get("assay_rollout_sample_events_total", event="put") or 0) > 4
    assert told.get("assay_rollout_sample_age_versions") == 0
    stand.get(4, acknowledge=batch.id)
    fleet.core.cancel(stand.id)
    assert fleet.core.ledger.remove(stand.id)
    told = scraped(api)
    assert told.get("assay_rollouts") == 0
    assert told.get("assay_rollout_sample_events_total", event="acknowledged") == 4


def test_requests_are_counted_by_route_over_all_processes(fleet: Fleet, api: Api) -> None:
    other = Api(fleet)
    for client in (api.client, other.client):
        client.get("/v1/jobs/" + "0" * 32)
        client.get("/v1/workers")
        client.get("/made/up/" + "x" * 50)
        client.open("/v1/workers", method="BREW")
    other.app.extensions["assay"].request_metrics.flush()
    told = scraped(api)
    assert told.get("assay_http_requests_total", route="/v1/jobs/<job_id>", method="GET", status="4xx") == 2
    assert told.get("assay_http_requests_total", route="/v1/workers", method="GET", status="2xx") == 2
    assert told.get("assay_http_requests_total", route="none", method="GET", status="4xx") == 2
    assert told.get("assay_http_requests_total", route="none", method="other", status="4xx") == 2
    assert told.get("assay_http_request_seconds_count", route="/v1/workers") == 2
    assert "/made/up" not in api.client.get("/metrics").text


def test_requests_that_could_not_be_counted_are_counted_later(api: Api) -> None:
    traffic = api.app.extensions["assay"].request_metrics
    alive, traffic._state = traffic._state, connect(NOWHERE)
    api.client.get("/v1/workers")
    traffic.flush()
    traffic._state = alive
    assert scraped(api).get("assay_http_requests_total", route="/v1/workers", method="GET", status="2xx") == 1


def test_figures_of_a_redis_that_fails_midway_are_left_out() -> None:
    def fails(_: Scrape) -> None:
        raise RedisConnectionError("gone")

    def tells(samples: Scrape) -> None:
        samples.add("assay_redis_memory_bytes", 1.0, "state")

    told = exposition(Collector((), {"state": (tells, fails), "cache": (tells,)})).decode()
    assert told.count("assay_redis_memory_bytes{") == 1
    assert 'assay_redis_up{role="state"} 0.0' in told
    assert 'assay_redis_up{role="cache"} 1.0' in told


def test_without_redis_a_scrape_is_answered_and_reports_it() -> None:
    told = Told(create_app(Settings(redis_url=NOWHERE)).test_client().get("/metrics").text)
    assert told.get("assay_redis_up", role="state") == told.get("assay_redis_up", role="cache") == 0
    assert told.get("assay_jobs_active") is None
    assert "assay_build_info" in told.types


def test_metrics_need_a_token_if_tokens_are_set(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_TOKENS_FILE", str(tmp_path / "tokens.jsonl"))
    assert tokens.main(["add", "prometheus"]) == 0
    secret = capsys.readouterr().out.strip()
    fleet.settings = fleet.settings.model_copy(update={"tokens_file": tmp_path / "tokens.jsonl"})
    client = Api(fleet).client
    assert is_problem(client.get("/metrics"), 401)
    assert client.get("/metrics", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_every_metric_is_exported_by_the_code_and_documented() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "web/metrics").glob("*.py") if path.name != "catalogue.py")
    assert not [metric.name for metric in METRICS if f'"{metric.name}"' not in code]
    page = (ROOT / "docs/metrics.md").read_text()
    assert page == rewritten(page), "run `make docs`"


def test_exported_metrics_have_the_types_and_labels_of_the_catalogue(fleet: Fleet, api: Api) -> None:
    hand = fleet.hire()
    fleet.submit({"x": 1}, {"x": 2, "fail": True})
    fleet.work(hand)
    api.client.get("/v1/workers")
    told, known = scraped(api), {metric.name: metric for metric in METRICS}
    assert len(told.types) > 30
    for name, kind in told.types.items():
        assert kind == known[name].type, name
        assert all(labels == set(known[name].labels) for labels in told.labels(name)), name


@pytest.mark.parametrize("name", BUCKETS)
def test_a_bucket_contains_values_up_to_its_bound(name: str) -> None:
    for bound in BUCKETS[name]:
        assert float(bucket(name, bound)) == bound
    assert bucket(name, BUCKETS[name][-1] * 2) == "+Inf"
    assert bucket(name, 0.0) == f"{BUCKETS[name][0]:g}"
