"""The processes of the launcher: pinned to devices, restarted, scaled, and a single worker for each slot."""

import json
import os
import signal
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis

from config.settings import Settings
from tasks.app import AssayCelery, create_celery
from tasks.probe import ask
from tasks.worker_registry import Registry, Worker
from tests.support import fake_nvidia_smi, fake_pynvml
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program, is_alive, wait_until
from tests.support.redis_server import RedisServer
from workers.processes.flower import TASKS
from workers.processes.supervisor import EXIT_MISCONFIGURED, EXIT_NAME_TAKEN

Run = Callable[..., Program]


@pytest.fixture
def app(settings: Settings) -> Iterator[AssayCelery]:
    with create_celery(settings) as celery:
        yield celery


@pytest.fixture
def registry(state: Redis) -> Registry:
    return Registry(state, lifetime_s=6)


def ready(registry: Registry, pool: str) -> list[Worker]:
    return [worker for worker in registry.workers() if worker.pool == pool and worker.state == "ready"]


def wait_for_ready(registry: Registry, pool: str, count: int, timeout_s: float = PATIENCE_S) -> list[Worker]:
    wait_until(lambda: len(ready(registry, pool)) == count, f"{count} {pool} workers", timeout_s)
    return ready(registry, pool)


def test_eight_gpus_are_divided_among_four_workers_and_each_sees_its_own(
    run: Run, redis_url: str, registry: Registry, app: AssayCelery, state: Redis, tmp_path: Path
) -> None:
    path = f"{fake_nvidia_smi.install(tmp_path / 'bin', 8)}:{os.environ['PATH']}"
    launcher = run(
        "python", "-m", "workers.launch", "device",
        ASSAY_REDIS_URL=redis_url, ASSAY_NODE="node1", ASSAY_SLOTS="4", PATH=path,
        PYTHONPATH=fake_pynvml.install(tmp_path / "modules"),
    )  # fmt: skip
    workers = wait_for_ready(registry, "device", 4)
    pairs = ["0,1", "2,3", "4,5", "6,7"]
    assert [",".join(worker.devices) for worker in workers] == pairs
    for slot, pair in enumerate(pairs):
        queue = f"gpu.node1.{slot}"
        launcher.wait_for(rf"{queue} sees devices {pair}\n")
        answer = ask(app, state, queue, timeout_s=PATIENCE_S)
        assert answer is not None
        assert answer["worker"] == queue
        assert answer["environment"]["CUDA_VISIBLE_DEVICES"] == pair, "the child that does the work sees it too"
        assert answer["pid"] != workers[slot].pid == answer["parent_pid"], "prefork: the parent does no work"

    def told() -> list[Worker]:
        return [each for each in registry.workers() if each.gpus and each.memory_mb and each.cpu_s and each.busy_s]

    wait_until(
        lambda: len(told()) == 4, "every worker reports its memory and CPU time, and that it was busy with the probe"
    )
    assert [[gpu.uuid for gpu in each.gpus] for each in told()][1] == ["GPU-0002-fake", "GPU-0003-fake"]
    assert launcher.stop() == 0
    assert registry.workers() == [], "workers delete their records when they stop"


@pytest.mark.slow
def test_eight_gpus_for_eight_workers(run: Run, redis_url: str, registry: Registry, tmp_path: Path) -> None:
    path = f"{fake_nvidia_smi.install(tmp_path / 'bin', 8)}:{os.environ['PATH']}"
    launcher = run("python", "-m", "workers.launch", "device", ASSAY_REDIS_URL=redis_url, ASSAY_NODE="node1", PATH=path)
    workers = wait_for_ready(registry, "device", 8)
    assert [worker.devices for worker in workers] == [(str(slot),) for slot in range(8)]
    assert launcher.stop() == 0


def test_cpu_slots_divide_the_threads(
    run: Run, redis_url: str, registry: Registry, app: AssayCelery, state: Redis
) -> None:
    run("python", "-m", "workers.launch", "device", ASSAY_REDIS_URL=redis_url, ASSAY_NODE="node1", ASSAY_SLOTS="cpu:1")
    wait_for_ready(registry, "device", 1)
    answer = ask(app, state, "gpu.node1.0", timeout_s=PATIENCE_S)
    assert answer is not None
    assert answer["environment"] == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}


def test_a_killed_worker_comes_back_as_a_new_incarnation(run: Run, redis_url: str, registry: Registry) -> None:
    launcher = run(
        "python", "-m", "workers.launch", "device", "--slot", "1", ASSAY_REDIS_URL=redis_url, ASSAY_NODE="node1"
    )
    (first,) = wait_for_ready(registry, "device", 1)
    assert first.name == "gpu.node1.1"
    children = psutil.Process(first.pid).children()
    os.kill(first.pid, signal.SIGKILL)
    wait_until(
        lambda: [w.incarnation for w in ready(registry, "device")] not in ([], [first.incarnation]),
        "a new incarnation is ready",
    )
    launcher.wait_for("gpu.node1.1 died with signal SIGKILL; starting it again in 0.5 s")
    wait_until(lambda: not any(map(is_alive, children)), "the dead worker's child is gone")
    assert launcher.stop() == 0


def test_a_killed_worker_leaves_no_folder_for_temporary_files(
    run: Run, redis_url: str, registry: Registry, tmp_path: Path
) -> None:
    (folder := tmp_path / "temporary").mkdir()
    launcher = run("python", "-m", "workers.launch", "cpu", ASSAY_REDIS_URL=redis_url, TMPDIR=str(folder))
    (first,) = wait_for_ready(registry, "cpu", 1)
    psutil.Process(first.pid).kill()
    wait_until(
        lambda: [each.pid for each in ready(registry, "cpu")] not in ([], [first.pid]), "the worker has restarted"
    )
    assert launcher.stop() == 0
    assert list(folder.iterdir()) == []


def test_a_slot_that_does_not_exist_is_named(run: Run, redis_url: str) -> None:
    launcher = run(
        "python", "-m", "workers.launch", "device", "--slot", "7", ASSAY_REDIS_URL=redis_url, ASSAY_NODE="node1"
    )
    assert launcher.wait() == EXIT_MISCONFIGURED
    assert "Slot 7 does not exist: node node1 has slots 0 to 1. ASSAY_SLOTS sets their number." in launcher.output
    assert "Traceback" not in launcher.output


def test_an_unknown_pool_is_named(run: Run) -> None:
    launcher = run("python", "-m", "workers.launch", "gpu")
    assert launcher.wait() == 2
    assert "invalid choice: 'gpu'" in launcher.output
    assert "device" in launcher.output


def test_a_wrong_setting_is_named(run: Run) -> None:
    launcher = run("python", "-m", "workers.launch", "device", ASSAY_SLOTS="many")
    assert launcher.wait() == EXIT_MISCONFIGURED
    assert launcher.output == "ASSAY_SLOTS: must be a number of workers such as 4, or cpu:4 (it is 'many')\n"


def test_a_second_launcher_for_a_slot_says_so_and_leaves_but_another_node_is_fine(
    run: Run, redis_url: str, registry: Registry
) -> None:
    def launch(node: str) -> Program:
        return run(
            "python", "-m", "workers.launch", "device", "--slot", "0",
            ASSAY_REDIS_URL=redis_url, ASSAY_NODE=node, ASSAY_HEARTBEAT_TTL_S="10",
        )  # fmt: skip

    launch("node1")
    (holder,) = wait_for_ready(registry, "device", 1)
    second, elsewhere = launch("node1"), launch("node2")
    assert second.wait() == EXIT_NAME_TAKEN
    assert f"gpu.node1.0 runs already (pid {holder.pid} on" in second.output
    elsewhere.wait_for("gpu.node2.0.* ready")
    assert [worker.name for worker in wait_for_ready(registry, "device", 2)] == ["gpu.node1.0", "gpu.node2.0"]


def test_a_launcher_survives_a_redis_that_is_killed_and_comes_back(run: Run, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        launcher = run("python", "-m", "workers.launch", "cpu", ASSAY_REDIS_URL=server.url, ASSAY_NODE="node1")
        launcher.wait_for("cpu.node1.0@node1 ready")
        server.stop(signal.SIGKILL)
        launcher.wait_for("no heartbeat: Redis at .* does not answer")
        server.start()
        launcher.wait_for("heartbeat is back")
        with server.client() as state:
            (worker,) = wait_for_ready(Registry(state, lifetime_s=6), "cpu", 1)
        assert psutil.Process(worker.pid).ppid() == launcher.process.pid, "the same launcher still has its worker"
        assert "Traceback" not in launcher.output


def test_a_worker_told_to_stop_while_redis_does_not_answer_does_not_start(run: Run, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        assert server.process
        server.process.send_signal(signal.SIGSTOP)
        worker = run("python", "-m", "workers.main", "cpu", ASSAY_REDIS_URL=server.url, ASSAY_NODE="node1")
        process = psutil.Process(worker.process.pid)
        wait_until(lambda: any(each.raddr for each in process.net_connections()), "the worker has connected to Redis")
        process.terminate()
        server.process.send_signal(signal.SIGCONT)
        assert worker.wait() == 0
        assert "ready" not in worker.output


def test_beat_comes_back_after_it_and_its_launcher_were_killed(run: Run, redis_url: str, registry: Registry) -> None:
    environment = {"ASSAY_REDIS_URL": redis_url, "ASSAY_NODE": "node1", "ASSAY_HEARTBEAT_TTL_S": "3"}
    first = run("python", "-m", "workers.launch", "beat", **environment)
    (old,) = wait_for_ready(registry, "beat", 1)
    first.process.kill()
    psutil.Process(old.pid).kill()
    run("python", "-m", "workers.launch", "beat", **environment)
    wait_until(lambda: [w.pid for w in ready(registry, "beat")] not in ([], [old.pid]), "a new beat")


def test_a_busy_worker_whose_launcher_is_gone_ends_and_its_slot_is_taken_over(
    run: Run, redis_url: str, registry: Registry, app: AssayCelery
) -> None:
    environment = {
        "ASSAY_REDIS_URL": redis_url, "ASSAY_NODE": "node1", "ASSAY_HEARTBEAT_TTL_S": "3", "ASSAY_STOP_GRACE_S": "3",
    }  # fmt: skip
    first = run("python", "-m", "workers.launch", "device", "--slot", "0", **environment)
    (old,) = wait_for_ready(registry, "device", 1)
    (child,) = psutil.Process(old.pid).children()
    child.suspend()  # it stays busy for ever
    app.publish("assay.probe", "gpu.node1.0", "normal", probe_id="stuck")
    wait_until(lambda: [w.active for w in ready(registry, "device")] == [1], "the worker has taken the task")
    first.descendants()
    first.stop(signal.SIGKILL)
    run("python", "-m", "workers.launch", "device", "--slot", "0", "--slot", "0", **environment)
    wait_until(lambda: [w.pid for w in ready(registry, "device")] not in ([], [old.pid]), "the slot is taken over")
    assert first.survivors() == []


def test_a_launcher_started_again_after_kill_9_takes_over(run: Run, redis_url: str, registry: Registry) -> None:
    environment = {"ASSAY_REDIS_URL": redis_url, "ASSAY_NODE": "node1", "ASSAY_HEARTBEAT_TTL_S": "3"}
    first = run("python", "-m", "workers.launch", "device", "--slot", "0", **environment)
    (old,) = wait_for_ready(registry, "device", 1)
    first.descendants()
    first.stop(signal.SIGKILL)
    second = run("python", "-m", "workers.launch", "device", "--slot", "0", **environment)
    second.wait_for("gpu.node1.0.* ready")
    assert first.survivors() == [], "the killed launcher's workers are gone"
    assert [worker.incarnation for worker in ready(registry, "device")] != [old.incarnation]


def test_api_tasks_share_one_asyncio_loop_per_process(
    run: Run, redis_url: str, registry: Registry, app: AssayCelery, state: Redis
) -> None:
    run("python", "-m", "workers.launch", "api", ASSAY_REDIS_URL=redis_url, ASSAY_NODE="node1")
    wait_for_ready(registry, "api", 1)
    answers = [answer for _ in range(12) if (answer := ask(app, state, "api", timeout_s=PATIENCE_S))]
    assert len(answers) == 12
    assert len({(answer["pid"], answer["loop"]) for answer in answers}) == 1
    (worker,) = ready(registry, "api")
    assert {answer["pid"] for answer in answers} == {worker.pid}, "threads: no children"


def test_queued_work_starts_a_second_worker_and_idleness_ends_it(
    run: Run, redis_url: str, registry: Registry, app: AssayCelery
) -> None:
    launcher = run(
        "python", "-m", "workers.launch", "cpu",
        ASSAY_REDIS_URL=redis_url, ASSAY_NODE="node1", ASSAY_SCALE_DOWN_IDLE_S="2",
    )  # fmt: skip
    (first,) = wait_for_ready(registry, "cpu", 1)
    (child,) = psutil.Process(first.pid).children()
    child.suspend()  # it does not finish the first message, so the second waits
    for probe_id in ("runs", "waits"):
        app.publish("assay.probe", "cpu", "normal", probe_id=probe_id)
    try:
        launcher.wait_for("work waits for cpu: starting worker 1")
        launcher.wait_for("cpu.node1.1@node1 ready")
        wait_until(lambda: app.queued("cpu") == 0, "the second worker takes the task")
    finally:
        child.resume()
    launcher.wait_for("worker 1 of cpu is idle: stopping it")
    assert [worker.name for worker in wait_for_ready(registry, "cpu", 1)] == ["cpu.node1.0"]
    assert launcher.stop() == 0


def test_interactive_work_goes_first(run: Run, redis_url: str, app: AssayCelery, state: Redis) -> None:
    for name, priority in (("slow-lane", "bulk"), ("middle", "normal"), ("fast-lane", "interactive")):
        app.publish("assay.probe", "cpu", priority, probe_id="order-" + name)  # type: ignore[arg-type]
    seen: list[str] = []
    with state.monitor() as monitor:
        run(
            "python",
            "-m",
            "workers.launch",
            "cpu",
            ASSAY_REDIS_URL=redis_url,
            ASSAY_NODE="node1",
            ASSAY_CPU_WORKERS_MAX="1",
        )
        for event in monitor.listen():
            if event["command"].startswith("RPUSH assay:probe:order-"):
                seen.append(event["command"].split()[1].removeprefix("assay:probe:order-"))
                if len(seen) == 3:
                    break
    assert seen == ["fast-lane", "middle", "slow-lane"]


def test_flower_remembers_the_last_tasks_only(run: Run, redis_url: str, app: AssayCelery) -> None:
    port, login = free_port(), "who:secret"
    run(
        "python", "-m", "workers.launch", "flower",
        ASSAY_REDIS_URL=redis_url, ASSAY_FLOWER_PORT=str(port), ASSAY_FLOWER_BASIC_AUTH=login,
    )  # fmt: skip

    def remembered() -> set[str]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/tasks")
        request.add_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return set(json.loads(reply.read()))
        except OSError:
            return set()

    def tell(task: str) -> None:
        dispatcher.send("task-received", uuid=task, name="assay.chunk")

    with app.events.default_dispatcher(hostname="gpu.node1.0@node1") as dispatcher:  # type: ignore[attr-defined]

        def is_listening() -> bool:
            tell("first")
            return "first" in remembered()

        wait_until(is_listening, "Flower listens")
        for number in range(TASKS):
            tell(f"task-{number}")
        wait_until(lambda: f"task-{TASKS - 1}" in remembered(), "Flower has received the last event")
    assert "first" not in remembered()
