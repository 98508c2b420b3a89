"""RabbitMQ as the broker, with real worker processes: jobs of every kind, kill -9, and restarts of the broker."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from config import keys
from config.queues import PRIORITIES
from tasks.composition import create_core
from tasks.jobs.model import JobRequest
from tasks.probe import ask
from tests.end_to_end.system import System
from tests.end_to_end.test_flower import ask as ask_flower
from tests.support import tiny_models
from tests.support.judge_api import JudgeApi
from tests.support.ports import free_port, free_ports
from tests.support.programs import PATIENCE_S, Program, wait_until
from tests.support.rabbitmq_server import MISSING, RabbitMqServer
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

Run = Callable[..., Program]
FORMS = ("classic", "quorum")
#: Queues of the fixture `system`.
QUEUES = ("cpu", "gpu.node1.0", "gpu.node1.1")
PROFILES = '[profiles.main]\nbase_url = "{url}"\nmodels = ["development"]\n'


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMqServer]:
    with RabbitMqServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def started(run: Run, tmp_path: Path) -> Iterator[Callable[..., System]]:
    """Make a system on its own Redis servers, whose broker is a virtual host of RabbitMQ."""
    with RedisServer(tmp_path / "state") as state, RedisServer(tmp_path / "cache", "cache") as cache:
        systems = []

        def start(broker: RabbitMqServer, form: str, *pools: str) -> System:
            url = broker.new_host()
            system = System(run, state, cache, tmp_path / "journal", broker_url=url, rabbitmq_queues=form)
            systems.append(system)
            for pool in pools:
                system.launch(pool)
            return system

        yield start
        for system in systems:
            system.stop()


@pytest.fixture
def system(started: Callable[..., System], rabbitmq: RabbitMqServer, form: str) -> System:
    """A system with two device slots and a CPU worker."""
    system = started(rabbitmq, form, "device", "cpu")
    system.wait_for_workers(3)
    return system


#: A form that a test has among the slow tests, because the default run has the other form of it.
SLOW_CLASSIC = pytest.mark.parametrize(
    "form", [pytest.param("classic", marks=pytest.mark.slow), "quorum"], indirect=True
)
SLOW_QUORUM = pytest.mark.parametrize(
    "form", ["classic", pytest.param("quorum", marks=pytest.mark.slow)], indirect=True
)


def items(number: int) -> list[dict[str, Any]]:
    return [{"x": x} for x in range(number)]


def incarnations(system: System) -> set[str]:
    return {worker.incarnation for worker in system.core.registry.workers()}


@SLOW_QUORUM
def test_jobs_of_every_kind_are_run(
    started: Callable[..., System], rabbitmq: RabbitMqServer, form: str, run: Run, tmp_path: Path
) -> None:
    system = started(rabbitmq, form)
    tiny_models.write(tmp_path / "models" / "tiny")
    first_port = free_ports(2)[0]
    with JudgeApi(run) as api:
        profiles = tmp_path / "profiles.toml"
        profiles.write_text(PROFILES.format(url=api.url))
        models = tmp_path / "models"
        changes = {"profiles_file": profiles, "models_dir": models, "policy_port": first_port}
        system.settings = system.settings.model_copy(update=changes)
        system.core = create_core(system.settings, system.celery)
        for pool in ("policies", "device", "api", "cpu"):
            system.launch(
                pool,
                ASSAY_PROFILES_FILE=str(profiles),
                ASSAY_MODELS_DIR=str(models),
                ASSAY_POLICY_PORT=str(first_port),
            )

        def connected() -> int:
            return sum(server.connected for each in system.core.registry.workers() for server in each.policies)

        wait_until(lambda: connected() == 2, "both policy servers are connected")
        system.wait_for_workers(4)
        workers = incarnations(system)
        policy = {"scorers": [{"name": "policy", "options": {"trials": 1, "task_id": 0}}]}
        sums = [{"prompt": f"{n}+{n}?", "response": f"It is {2 * n}.", "reference": str(2 * n)} for n in range(40)]
        jobs = [
            JobRequest(kind="score", items=sums, spec={"scorers": [{"name": "numeric_match"}]}),
            JobRequest(kind="judge", items=sums, spec={"profile": "main", "mode": "reference"}),
            JobRequest(kind="inference", items=[{"query": f"What is {n}?", "context": ""} for n in range(20)],
                       spec={"model": "tiny", "sampling": {"max_new_tokens": 8}}),
            JobRequest(kind="score", items=[{"response": f"reach the {colour} target"} for colour in ("red", "blue")],
                       spec=policy),
        ]  # fmt: skip
        ids = [system.core.submitter.submit(job) for job in jobs]
        ended = [system.finish(job) for job in ids]
        assert [(job.state, job.failed) for job in ended] == [("done", 0)] * 4, [system.rows(job)[:2] for job in ids]
        assert {row["score"] for row in system.rows(ids[0])} == {1.0}
        assert api.calls == 40
        assert all(row["value"]["answers"] for row in system.rows(ids[2]))
        assert [row["score"] for row in system.rows(ids[3])] == [1.0, 0.0]
        assert workers <= incarnations(system), "no worker has restarted"


def test_interactive_overtakes_bulk(system: System) -> None:
    system.core.pause_queue("gpu.node1.1")  # a single device computes the items one by one
    spec = {"cost_s": 0.5, "batch_items": 1}
    bulk = system.submit(*items(60), spec=spec, priority="bulk")
    system.wait_for_progress(bulk, 2)
    interactive = system.submit(*[{"x": f"urgent {n}"} for n in range(3)], spec=spec, priority="interactive")
    before = len(system.computed())
    assert system.finish(interactive).ok == 3
    last = max(at for at, line in enumerate(system.computed()) if "urgent" in line)
    assert last < before + 3 + 6, "only the chunk that ran already, of about 1.5 s, comes before"
    assert system.job(bulk).is_active
    system.core.cancel(bulk)


def test_a_classic_queue_delivers_messages_of_a_higher_priority_first(
    started: Callable[..., System], rabbitmq: RabbitMqServer
) -> None:
    system = started(rabbitmq, "classic")
    for priority in reversed(PRIORITIES):
        system.celery.publish("assay.probe", "cpu", priority, probe_id=priority)
    wait_until(lambda: system.celery.queued("cpu") == 3, "every message has arrived")
    with system.celery.connection() as connection, connection.channel() as channel:
        received = [channel.basic_get("cpu", no_ack=True).body for _ in PRIORITIES]
    assert [json.loads(body)[1]["probe_id"] for body in received] == list(PRIORITIES)


def test_messages_are_counted_whatever_their_priority(
    started: Callable[..., System], rabbitmq: RabbitMqServer, form: str
) -> None:
    system = started(rabbitmq, form)
    assert system.celery.queued("cpu") == 0, "no worker has declared it"
    for priority in PRIORITIES:
        system.celery.publish("assay.probe", "cpu", priority, probe_id=priority)
    wait_until(lambda: system.celery.queued("cpu") == 3, "every message is counted")
    assert system.celery.queued("api") == 0
    system.launch("cpu")
    wait_until(lambda: system.celery.queued("cpu") == 0, "a worker takes them")
    assert all(system.core.state.blpop([keys.probe(each)], timeout=int(PATIENCE_S)) for each in PRIORITIES)


@SLOW_CLASSIC
def test_a_worker_killed_in_the_middle_of_a_job_loses_nothing(system: System) -> None:
    job = system.submit(*items(300), spec={"cost_s": 0.01, "batch_items": 10})
    system.wait_for_progress(job, 20)
    os.kill(system.children()[0].pid, signal.SIGKILL)
    system.wait_for_progress(job, 100)
    parent = system.parents()[0]
    for process in [parent, *parent.children(recursive=True)]:
        process.kill()
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", 300, 0)


@SLOW_QUORUM
@pytest.mark.parametrize("how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_rabbitmq_restarted_in_the_middle_of_a_job(
    system: System, rabbitmq: RabbitMqServer, form: str, how: signal.Signals
) -> None:
    if form == "quorum":
        # RabbitMQ 3.10 saves the name of a new quorum queue some time after its declaration. A node that is killed
        # before has no leader for the queue any more, and consumers of it wait forever. An orderly stop saves it.
        rabbitmq.stop(signal.SIGTERM)
        rabbitmq.start()
    job = system.submit(*items(400), spec={"cost_s": 0.01, "batch_items": 10})
    system.wait_for_progress(job, 50)
    rabbitmq.stop(how)
    rabbitmq.start()
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", 400, 0)
    for queue in QUEUES:
        # A probe may be lost while the broker starts, and unlike a chunk it is not announced again.
        wait_until(
            lambda queue=queue: ask(system.celery, system.core.state, queue, 5),
            f"the worker of {queue} hears its queue again",
        )


@SLOW_QUORUM
def test_an_item_that_outlasts_the_delivery_timeout_is_computed_once(
    started: Callable[..., System], form: str, tmp_path: Path
) -> None:
    with RabbitMqServer(tmp_path / "impatient", consumer_timeout=2000, channel_tick_interval=1000) as impatient:
        system = started(impatient, form, "device")
        system.wait_for_workers(2)
        workers = incarnations(system)
        job = system.submit(*items(1), spec={"cost_s": 8})
        system.launchers[0].wait_for("Connection to broker lost")
        assert system.finish(job).ok == 1
        for queue in ("gpu.node1.0", "gpu.node1.1"):
            assert ask(system.celery, system.core.state, queue, PATIENCE_S), f"the worker of {queue} hears its queue"
        assert len(system.computed()) == 1
        assert incarnations(system) == workers


@pytest.mark.slow
def test_flower_shows_the_tasks_of_workers_on_rabbitmq(system: System) -> None:
    port = free_port()
    system.launch("flower", ASSAY_FLOWER_PORT=str(port))
    wait_until(lambda: ask_flower(port, "/healthcheck")[0] == 200, "Flower answers")

    def has_chunk() -> bool:
        job = system.submit(*items(1))
        system.finish(job)
        return job in ask_flower(port, "/api/tasks")[1]

    wait_until(has_chunk, "Flower has heard of a chunk")
    assert [ask_flower(port, page)[0] for page in ("/workers", "/tasks", "/broker")] == [200] * 3
