"""Throughput of each worker in items per second, computed from the counts of consecutive snapshots."""

from dataclasses import replace

from tasks.jobs.model import Job
from tasks.jobs.state.layout import Layout
from web.overview.throughput import GAP_S, WINDOW_S, ThroughputMeter

JOB = Job(
    id="a", kind="simulated", state="running", priority="normal", total=9, ok=0, failed=0, cached=0, epoch=0,
    paused=False, open=False, trimmed=0, layout=Layout(), reason="", reasons={}, workers={}, created_at=0.0,
    started_at=None, ended_at=None, metadata={}, fill=None, rate=None, eta_s=None, asks=False, usage=None,
)  # fmt: skip


def job(name: str, created_at: float = 0.0, **items: int) -> Job:
    shares = {worker: {"items": float(number), "seconds": 1.0} for worker, number in items.items()}
    return replace(JOB, id=name, created_at=created_at, workers=shares)


def test_items_finished_before_the_first_snapshot_do_not_count() -> None:
    pace = ThroughputMeter()
    assert pace.rates(100.0, [job("a", w=1000)]) == {}
    assert pace.rates(102.0, [job("a", w=1010)]) == {"w": 5.0}


def test_a_new_job_counts_from_zero_and_an_older_job_from_its_last_count() -> None:
    pace = ThroughputMeter()
    pace.rates(100.0, [])
    assert pace.rates(102.0, [job("new", 101.0, w=20), job("old", 50.0, w=7000)]) == {"w": 10.0}


def test_a_rate_covers_the_last_seconds_and_falls_after_work_ends() -> None:
    pace, at = ThroughputMeter(), 0.0
    for at in range(0, 30, 2):
        rates = pace.rates(100.0 + at, [job("a", w=10 * at)])
    assert rates == {"w": 10.0}
    for later in range(1, 8):
        rates = pace.rates(100.0 + at + 2 * later, [job("a", w=10 * at)])
    assert rates == {"w": 0.0}, f"nothing was done for {WINDOW_S} s"


def test_the_rate_restarts_after_a_gap_between_snapshots() -> None:
    pace = ThroughputMeter()
    pace.rates(100.0, [job("a", w=0)])
    assert pace.rates(101.0 + GAP_S, [job("a", w=100_000)]) == {}
