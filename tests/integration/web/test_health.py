"""Health, readiness, lists of workers, devices and queues; and errors as problem documents."""

import pytest
from flask.testing import FlaskClient
from redis import Redis

from config.settings import DEVELOPMENT_NOTE, Settings
from tasks.worker_registry import Registry, Worker
from tests.conftest import NOWHERE
from web.app import create_app


@pytest.fixture
def client(settings: Settings) -> FlaskClient:
    return create_app(settings).test_client()


def announce(state: Redis, name: str, pool: str, **fields: object) -> None:
    worker = Worker(name, pool, "node1", "box", 1, "i-" + name, "l", **{"state": "ready"} | fields)  # type: ignore[arg-type]
    Registry(state, lifetime_s=600).announce(worker)


def test_health_is_the_word_ok(client: FlaskClient) -> None:
    reply = client.get("/health")
    assert (reply.status_code, reply.text, reply.mimetype) == (200, "ok", "text/plain")


def test_ready_names_pools_without_a_worker(client: FlaskClient, state: Redis) -> None:
    announce(state, "api.node1.0", "api")
    reply = client.get("/ready")
    assert reply.status_code == 503
    assert reply.json["ready"] is False
    assert reply.json["missing"] == ["no device worker is ready", "no cpu worker is ready"]


def test_ready_when_every_pool_has_a_worker(client: FlaskClient, state: Redis) -> None:
    for name, pool in (("gpu.node1.0", "device"), ("api.node1.0", "api"), ("cpu.node1.0", "cpu")):
        announce(state, name, pool)
    assert client.get("/ready").json == {"ready": True, "missing": [], "notes": [DEVELOPMENT_NOTE]}


def test_overview_and_readiness_warn_that_verdicts_are_simulated_without_an_api(settings: Settings) -> None:
    assert create_app(settings).test_client().get("/v1/overview").json["notes"] == [DEVELOPMENT_NOTE]
    (settings.data_dir / "profiles.toml").write_text("")
    configured = create_app(settings.model_copy(update={"profiles_file": settings.data_dir / "profiles.toml"}))
    assert configured.test_client().get("/v1/overview").json["notes"] == []
    assert configured.test_client().get("/submit").status_code == 200, "the page also works without a profile"
    assert configured.test_client().get("/ready").json["notes"] == []


def test_workers_devices_and_queues_are_shown(client: FlaskClient, state: Redis) -> None:
    announce(state, "gpu.node1.0", "device", queues=("gpu.node1.0",), slot=0, devices=("0", "1"), active=1)
    assert [worker["name"] for worker in client.get("/v1/workers").json["workers"]] == ["gpu.node1.0"]
    (device,) = client.get("/v1/devices").json["devices"]
    assert (device["queue"], device["devices"], device["busy"]) == ("gpu.node1.0", ["0", "1"], True)
    assert client.get("/v1/queues").json["queues"] == [
        {"queue": "api", "waiting": 0, "workers": [], "mode": "open"},
        {"queue": "benchmark", "waiting": 0, "workers": [], "mode": "open"},
        {"queue": "cpu", "waiting": 0, "workers": [], "mode": "open"},
        {"queue": "gpu.node1.0", "waiting": 0, "workers": ["gpu.node1.0"], "mode": "open"},
    ]


def test_waiting_messages_are_counted_over_all_priorities(client: FlaskClient, settings: Settings) -> None:
    from tasks.app import create_celery

    with create_celery(settings) as app:
        for priority in ("interactive", "normal", "bulk"):
            app.publish("assay.probe", "cpu", priority, probe_id="t")  # type: ignore[arg-type]
    assert {row["queue"]: row["waiting"] for row in client.get("/v1/queues").json["queues"]}["cpu"] == 3


def test_a_paused_or_draining_queue_shows_its_mode_until_it_is_resumed(client: FlaskClient, state: Redis) -> None:
    announce(state, "gpu.node1.0", "device", queues=("gpu.node1.0",), slot=0)
    for family in ("queues", "devices"):
        for action, mode in (("pause", "paused"), ("drain", "draining"), ("resume", "open")):
            reply = client.post(f"/v1/{family}/gpu.node1.0/{action}")
            assert (reply.status_code, reply.json["queue"], reply.json["mode"]) == (200, "gpu.node1.0", mode)
            rows = client.get(f"/v1/{family}").json[family]
            assert {row["queue"]: row["mode"] for row in rows}["gpu.node1.0"] == mode


@pytest.mark.parametrize("queue", ["gpu.node9.0", "nope", "celery", "%00"])
def test_an_unknown_queue_is_404(client: FlaskClient, state: Redis, queue: str) -> None:
    for family, action in (("queues", "pause"), ("devices", "drain"), ("queues", "resume")):
        reply = client.post(f"/v1/{family}/{queue}/{action}")
        assert (reply.status_code, reply.mimetype) == (404, "application/problem+json")
    assert client.post("/v1/devices/cpu/pause").status_code == 404
    assert list(state.scan_iter("assay:queue:*")) == []


@pytest.mark.parametrize(
    ("flower_host", "asked", "link"),
    [
        ("127.0.0.1", "localhost:6006", "http://127.0.0.1:5555/"),
        ("0.0.0.0", "127.0.0.1:6006", "http://127.0.0.1:5555/"),
        ("::1", "[::1]:6006", "http://[::1]:5555/"),
        ("0.0.0.0", "[::1]", "http://[::1]:5555/"),
    ],
)
def test_the_page_links_flower_at_an_address_that_its_reader_can_open(
    settings: Settings, flower_host: str, asked: str, link: str
) -> None:
    update = {"flower_host": flower_host, "flower_basic_auth": "a:b"}
    client = create_app(settings.model_copy(update=update)).test_client()
    assert f'href="{link}"' in client.get("/", headers={"Host": asked}).text


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nope", 404), ("POST", "/health", 405)])
def test_errors_are_problem_documents(client: FlaskClient, method: str, path: str, status: int) -> None:
    reply = client.open(path, method=method)
    assert (reply.status_code, reply.mimetype) == (status, "application/problem+json")
    assert reply.json["status"] == status
    assert reply.json["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/workers"),
        ("GET", "/v1/devices"),
        ("GET", "/v1/queues"),
        ("GET", "/v1/overview"),
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("GET", f"/v1/jobs/{'0' * 32}"),
        ("GET", f"/v1/jobs/{'0' * 32}/results"),
        ("GET", f"/v1/jobs/{'0' * 32}/events"),
        ("DELETE", f"/v1/jobs/{'0' * 32}"),
        ("POST", "/v1/queues/cpu/pause"),
    ],
)
def test_without_redis_the_answer_is_503_with_a_retry_after(method: str, path: str) -> None:
    body = {"kind": "simulated", "items": [{"x": 1}]} if method == "POST" else None
    reply = create_app(Settings(redis_url=NOWHERE)).test_client().open(path, method=method, json=body)
    assert (reply.status_code, reply.mimetype) == (503, "application/problem+json")
    assert "Redis at redis://127.0.0.1:1/0 does not answer" in reply.json["detail"]
    assert reply.headers["Retry-After"] == "5"


def test_without_redis_health_is_ok_and_ready_names_redis() -> None:
    client = create_app(Settings(redis_url=NOWHERE)).test_client()
    assert client.get("/health").text == "ok"
    reply = client.get("/ready")
    assert reply.status_code == 503
    assert len(reply.json["missing"]) == 1
    assert "does not answer" in reply.json["missing"][0]
