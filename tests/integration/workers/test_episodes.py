"""Episodes with real policy servers and simulators: right and wrong instructions, faults, several at once."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from config.settings import Settings
from tasks.episodes.model import Episode, EpisodeSpec, Gymnasium, Libero, Success
from tasks.errors import (
    AssayError,
    EnvironmentFailed,
    EnvironmentMissing,
    EpisodeTimeout,
    NoLongerWanted,
    PolicyBroken,
    PolicyFailed,
    PolicyUnavailable,
    SimulatorLost,
)
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, wait_until
from workers.development_policy.control import Handle, running, several
from workers.environments.rendering import has_osmesa, rendering_environment
from workers.environments.simulator_pool import Simulators
from workers.environments.simulator_process import ProcessSimulator
from workers.policies.address import Address
from workers.policies.core import create_runner
from workers.policies.episode_runner import EpisodeRunner
from workers.policies.pool import Pool
from workers.policies.servers.addresses import server_urls

RENDERING = rendering_environment((), has_osmesa())
REACHER = Gymnasium(id="Reacher-v5")


@contextmanager
def runner_on(*urls: str, **options: Any) -> Iterator[EpisodeRunner]:
    simulators = Simulators(0, 60.0, RENDERING)
    pool = Pool([Address(url) for url in urls])
    try:
        yield EpisodeRunner(pool, simulators, **options)
    finally:
        pool.close()
        simulators.close()


@pytest.fixture(scope="module")
def development() -> Iterator[Handle]:
    with running() as handle:
        yield handle


@pytest.fixture
def server(development: Handle) -> Iterator[Handle]:
    yield development
    development.set(
        key="", share_error=0, share_shape=0, share_drop=0, hold=False, version="1", latency_ms=0, horizon=10
    )


@pytest.fixture
def runner(server: Handle) -> Iterator[EpisodeRunner]:
    with runner_on(server.url) as runner:
        yield runner


Results = dict[int, Episode | AssayError]


def run_all(
    runner: EpisodeRunner, specs: Sequence[EpisodeSpec], is_cancelled: Callable[[], bool] = lambda: False
) -> Results:
    """Run the episodes, and return the outcome of each."""
    waiting, results = deque(specs), Results()

    def more(room: int) -> list[EpisodeSpec]:
        return [waiting.popleft() for _ in range(min(room, len(waiting)))]

    runner.run(more, results.__setitem__, is_cancelled)
    return results


def outcome(runner: EpisodeRunner, **spec: Any) -> Episode | AssayError:
    (result,) = run_all(runner, [EpisodeSpec(**spec)]).values()
    return result


def ran(result: Episode | AssayError) -> Episode:
    assert isinstance(result, Episode), result
    return result


def test_the_right_instruction_succeeds_and_a_wrong_one_fails(runner: EpisodeRunner, server: Handle) -> None:
    right = ran(outcome(runner, task_id=2))
    assert right.success
    assert right.instruction == "reach the blue target"
    assert (right.server, right.policy, right.version) == (server.url, "assay-development", "1")
    assert len(right.inference_ms) == -(-right.steps // 5), "planned anew every five steps"
    wrong = ran(outcome(runner, task_id=2, instruction="reach the red target"))
    assert (wrong.success, wrong.steps, len(wrong.inference_ms)) == (False, 40, 8)


def test_equal_requests_give_equal_episodes_and_seeds_differ(runner: EpisodeRunner) -> None:
    steps = [ran(outcome(runner, seed=seed)).steps for seed in (1, 1, 2, 3, 4)]
    assert steps[0] == steps[1]
    assert len(set(steps)) > 1


def test_the_request_sets_replanning_and_step_limits(runner: EpisodeRunner) -> None:
    wrong = {"instruction": "stay", "max_steps": 12}
    assert len(ran(outcome(runner, replan_steps=3, **wrong)).inference_ms) == 4
    assert len(ran(outcome(runner, replan_steps=10, **wrong)).inference_ms) == 2
    assert isinstance(outcome(runner, replan_steps=11, **wrong), PolicyFailed), "it plans ten steps only"


@pytest.mark.parametrize(
    ("knobs", "kind"),
    [
        ({"share_shape": 1}, PolicyFailed),
        ({"share_error": 1}, PolicyBroken),
        ({"share_drop": 1}, PolicyUnavailable),
    ],
)
def test_an_episode_that_cannot_run_is_an_error_and_not_a_failed_episode(
    runner: EpisodeRunner, server: Handle, knobs: dict[str, float], kind: type[AssayError]
) -> None:
    server.set(**knobs)
    assert type(outcome(runner)) is kind


def test_a_bad_server_fails_only_its_own_episodes() -> None:
    with several(2) as (good, bad):
        bad.set(share_error=1)
        with runner_on(good.url, bad.url, f"ws://127.0.0.1:{free_port()}") as runner:
            results = run_all(runner, [EpisodeSpec(seed=seed) for seed in range(40)])
        assert sorted(results) == list(range(40))
        failed = [result for result in results.values() if not isinstance(result, Episode)]
        assert {type(error) for error in failed} <= {PolicyBroken}
        assert len(failed) == bad.counts()["calls"], "each faulty call of the server fails a single episode"
        episodes = [result for result in results.values() if isinstance(result, Episode)]
        assert len(episodes) > len(failed)
        assert all(episode.success and episode.server == good.url for episode in episodes)


def test_a_server_killed_during_an_episode_is_an_outage_and_the_episode_can_run_again() -> None:
    port = free_port()
    with runner_on(f"ws://127.0.0.1:{port}", wait_s=PATIENCE_S) as runner:
        with running(port=port, hold=True) as server:
            pending = _in_thread(lambda: outcome(runner, seed=5))
            wait_until(lambda: server.counts().get("in_flight") == 1, "the episode is under way")
            server.kill()
            lost = pending()
        assert isinstance(lost, PolicyUnavailable)
        with running(port=port):
            assert ran(outcome(runner, seed=5)).success


def test_an_episode_fails_if_its_server_restarts_with_a_different_policy() -> None:
    """An episode uses a single policy: its cache key names the policy that ran it."""
    port = free_port()
    with runner_on(f"ws://127.0.0.1:{port}", per_server=2) as runner:
        with running(port=port, hold=True, version="1") as server:
            both = _in_thread(lambda: run_all(runner, [EpisodeSpec(instruction="stay")] * 2))
            wait_until(
                lambda: server.counts().get("in_flight") == 1,
                "the first episode is under way, and the second waits for the server",
            )
            server.set(hold=False, latency_ms=200)
            wait_until(lambda: server.counts()["calls"] >= 4, "both have begun")
            server.kill()
        with running(port=port, version="2"):
            results = both()
    assert all(isinstance(result, PolicyUnavailable) for result in results.values()), results
    assert any("replaced by another" in str(result) for result in results.values())


def test_a_runner_follows_the_settings_of_its_process(server: Handle, settings: Settings) -> None:
    server.set(version="", key="s3cret")
    own = {"policy_urls": server.url, "policy_api_key": "s3cret", "policy_version": "mine"}
    given = settings.model_copy(update=own | {"policy_wait_s": PATIENCE_S})
    runner = create_runner(given, server_urls(given, slots=2), devices=())
    try:
        result = ran(outcome(runner))
        assert (result.success, result.policy, result.version) == (True, "assay-development", "mine")
        assert runner.pool.status()[0].version == "mine"
    finally:
        runner.close()


def test_without_a_server_episodes_fail_with_a_reason_after_the_wait() -> None:
    with runner_on(f"ws://127.0.0.1:{free_port()}", wait_s=0.3) as runner:
        results = run_all(runner, [EpisodeSpec(seed=seed) for seed in range(5)])
    assert len(results) == 5
    assert all(type(result) is PolicyUnavailable and "refused" in str(result) for result in results.values())


def test_a_cancelled_run_stops_during_an_episode_and_begins_no_more(server: Handle) -> None:
    server.set(hold=True)
    cancelled: list[bool] = []

    def is_cancelled() -> bool:
        """Cancel as soon as an episode waits for its first actions, which arrive later."""
        if not cancelled and server.counts().get("in_flight"):
            cancelled.append(True)
            server.set(hold=False, latency_ms=50)
        return bool(cancelled)

    with runner_on(server.url) as runner:
        results = run_all(runner, [EpisodeSpec(seed=seed, instruction="stay") for seed in range(50)], is_cancelled)
    assert results
    assert all(isinstance(result, NoLongerWanted) for result in results.values())
    assert len(results) < 10


def test_an_episode_past_its_deadline_is_timed_out_and_not_a_failure_of_the_policy(server: Handle) -> None:
    server.set(latency_ms=100)
    with runner_on(server.url, episode_s=0.25) as runner:
        result = outcome(runner, instruction="stay")
    assert isinstance(result, EpisodeTimeout)
    assert "did not end within" in str(result)


def test_episodes_wait_for_a_slow_server_while_it_answers(server: Handle) -> None:
    server.set(latency_ms=200)
    with runner_on(server.url, wait_s=0.1) as runner:
        pool = runner.pool
        pool.warm()
        wait_until(lambda: pool.status()[0].connected, "it is there")
        results = run_all(runner, [EpisodeSpec(seed=seed) for seed in range(4)])
    assert all(isinstance(result, Episode) for result in results.values()), results


def test_concurrent_runs_never_mix(server: Handle) -> None:
    with runner_on(server.url, per_server=4) as runner:
        colours = ("red", "green", "blue", "yellow")
        runs = [
            _in_thread(lambda task=task: run_all(runner, [EpisodeSpec(seed=n, task_id=task) for n in range(10)]))
            for task in range(4)
        ]
        for task, results in enumerate(runs):
            found = results()
            assert sorted(found) == list(range(10))
            assert {ran(result).instruction for result in found.values()} == {f"reach the {colours[task]} target"}


# --- Gymnasium and MuJoCo, headless ---


def test_reacher_runs_headless_and_succeeds_under_the_right_instruction_only(runner: EpisodeRunner) -> None:
    specs = [EpisodeSpec(environment=REACHER, seed=seed) for seed in range(4)]
    results = [ran(result) for _, result in sorted(run_all(runner, specs).items())]
    assert all(result.success and result.steps < 50 for result in results)
    assert results[0].instruction == "move the fingertip to the target"
    again = [ran(result).steps for _, result in sorted(run_all(runner, specs).items())]
    assert again == [result.steps for result in results], "the seed decides"
    wrong = ran(outcome(runner, environment=REACHER, instruction="wave"))
    assert (wrong.success, wrong.steps) == (False, 50)


def test_a_video_shows_the_episode(runner: EpisodeRunner) -> None:
    light = ran(outcome(runner, video=True))
    assert light.video is not None
    assert Image.open(BytesIO(light.video)).size == (96, 96)
    filmed = ran(outcome(runner, environment=REACHER, video=True))
    assert filmed.video is not None
    picture = Image.open(BytesIO(filmed.video))
    assert (picture.format, picture.size) == ("WEBP", (224, 224))
    assert picture.n_frames > 2
    assert np.unique(np.asarray(picture.convert("L"))).size > 10, "the frames of the video differ"
    assert ran(outcome(runner)).video is None


@pytest.mark.parametrize(
    ("environment", "kind", "said"),
    [
        (Gymnasium(id="Nowhere-v9", success=Success(survives=True)), EnvironmentMissing, "Nowhere"),
        (Gymnasium(id="HalfCheetah-v5"), EnvironmentFailed, "has no success rule"),
        (Libero(), EnvironmentMissing, "LIBERO cannot be used on this worker"),
    ],
)
def test_an_unavailable_environment_is_reported_with_a_reason(
    runner: EpisodeRunner, environment: Any, kind: type[AssayError], said: str
) -> None:
    result = outcome(runner, environment=environment)
    assert type(result) is kind
    assert said in str(result)


def test_any_registered_gymnasium_id_runs_with_a_given_success_rule(runner: EpisodeRunner) -> None:
    pendulum = Gymnasium(id="Pendulum-v1", success=Success(total_reward=0.0))
    result = outcome(runner, environment=pendulum)
    assert type(result) is PolicyFailed, "it runs, and our script is no controller for it"
    assert "no controller takes" in str(result)


@pytest.mark.parametrize("id", ["Pusher-v5", "InvertedPendulum-v5", "CartPole-v1", "Reacher-v5"])
def test_adapters_convert_observations_and_actions_of_their_environments(id: str) -> None:
    simulator = ProcessSimulator(RENDERING)
    try:
        start = simulator.start(EpisodeSpec(environment=Gymnasium(id=id, images=id == "Pusher-v5"), seed=1))
        assert start.instruction
        assert all(value.size for value in start.observation.values())
        assert ("observation/image" in start.observation) == (id == "Pusher-v5")
        progress = simulator.advance(np.zeros((2, start.action_size)))
        assert (progress.steps, progress.done) == (2, False)
        assert progress.observation.keys() == start.observation.keys()
    finally:
        simulator.close()


# --- simulators in separate processes ---


def test_a_dead_simulator_fails_its_episode_and_the_next_episode_gets_a_new_process(server: Handle) -> None:
    with runner_on(server.url) as runner:
        server.set(hold=True)
        pending = _in_thread(lambda: outcome(runner, environment=REACHER))
        wait_until(lambda: server.counts().get("in_flight") == 1, "the episode is under way")
        (simulator,) = _simulators()
        os.kill(simulator.pid, signal.SIGKILL)
        server.set(hold=False)
        lost = pending()
        assert type(lost) is SimulatorLost
        assert ran(outcome(runner, environment=REACHER)).success


def test_a_simulator_that_hangs_is_killed_at_its_deadline() -> None:
    simulator = ProcessSimulator(RENDERING, advance_s=0.3)
    try:
        start = simulator.start(EpisodeSpec(environment=REACHER))
        os.kill(simulator.pid, signal.SIGSTOP)
        with pytest.raises(SimulatorLost, match="did not answer"):
            simulator.advance(np.zeros((5, start.action_size)))
        assert simulator.is_lost
        assert not psutil.pid_exists(simulator.pid)
    finally:
        simulator.close()


def test_simulators_are_reused_by_later_episodes_and_end_when_idle() -> None:
    simulators = Simulators(least=1, idle_s=0.2, environment=RENDERING)
    try:
        with simulators.take(REACHER) as first, simulators.take(REACHER) as second:
            assert isinstance(first, ProcessSimulator)
            assert isinstance(second, ProcessSimulator)
            pids = {first.pid, second.pid}
            assert simulators.count == 2
        with simulators.take(REACHER) as again:
            assert isinstance(again, ProcessSimulator)
            assert again.pid in pids
        wait_until(lambda: simulators.count == 1, "one simulator is kept, and the other has ended")
        wait_until(lambda: sum(psutil.pid_exists(pid) for pid in pids) == 1, "its process too")
    finally:
        simulators.close()
    assert not _simulators()


def test_simulators_end_with_their_owner_process(run: Any) -> None:
    code = """
import time
from config.settings import Settings
from tasks.episodes.model import EpisodeSpec, Gymnasium
from workers.environments.simulator_process import ProcessSimulator
simulator = ProcessSimulator({"MUJOCO_GL": "egl"})
simulator.start(EpisodeSpec(environment=Gymnasium()))
print("started", flush=True)
time.sleep(600)
"""
    owner = run("python", "-c", code)
    owner.wait_for("started")
    owner.stop(signal.SIGKILL)
    assert owner.survivors() == []


def _simulators() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "workers.environments" in child.cmdline()]


def _in_thread(work: Any) -> Any:
    """Start the function in a thread. The returned function waits for its result."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return lambda: future.result(2 * PATIENCE_S)
