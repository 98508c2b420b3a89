"""A storage that is full or away, with a single CPU worker: jobs that need it wait, and the jobs of other users run."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from config import keys
from tasks.connections import redact
from tasks.jobs.model import JobHead, JobRequest
from tasks.jobs.state.storage_faults import StorageStatus
from tests.end_to_end.system import System
from tests.support.programs import Program, wait_until
from tests.support.redis_server import RedisServer
from tests.support.storage_outage import full, replaced_by_a_file, small_disk

#: Three parts.
NUMBER = 12_000


@pytest.fixture
def one_worker(run: Callable[..., Program], tmp_path: Path) -> Iterator[System]:
    with RedisServer(tmp_path / "state") as state, RedisServer(tmp_path / "cache", "cache") as cache:
        system = System(run, state, cache, tmp_path / "journal")
        system.launch("cpu", ASSAY_CPU_WORKERS_MIN="1", ASSAY_CPU_WORKERS_MAX="1")
        system.wait_for_workers(1)
        yield system
        system.stop()


@pytest.mark.parametrize("outage", [full, replaced_by_a_file])
def test_a_stored_job_waits_for_its_storage_while_a_small_job_runs_on_the_same_worker(
    one_worker: System, tmp_path: Path, outage: Callable[[Path], AbstractContextManager[None]]
) -> None:
    system, folder = one_worker, tmp_path / "storage"
    status = StorageStatus(system.core.state, redact(system.settings.storage_url))
    with ExitStack() as stack:
        if outage is full:
            stack.enter_context(small_disk(folder))
        spec = {"stages": [{"name": "run", "pool": "cpu"}], "cost_s": 0.0002}
        lines = (b'{"id": "item-%d", "x": %d}' % (x, x) for x in range(NUMBER))
        stored = system.core.submitter.submit_lines(JobHead(kind="simulated", spec=spec), lines, token="one")
        assert system.job(stored).layout.is_stored
        with outage(folder):
            wait_until(lambda: any(note.endswith((" wait", " waits")) for note in status.notes()), "work is parked")
            for number in range(3):
                items = [{"prompt": "2 + 2", "response": "4", "reference": str(each + number)} for each in range(5)]
                request = JobRequest(kind="score", spec={"scorers": [{"name": "exact_match"}]}, items=items)
                small = system.finish(system.core.submitter.submit(request, token="another"))
                assert (small.state, small.ok) == ("done", 5)
            assert system.job(stored).is_active
            assert system.job(stored).failed == 0
        ended = system.finish(stored)
        assert (ended.state, ended.ok, ended.failed) == ("done", NUMBER, 0)
        rows = system.rows(stored)
        assert [row["id"] for row in rows] == [f"item-{index}" for index in range(NUMBER)]
        assert {row["worker"] for row in rows} == {row["worker"] for row in system.rows(small.id)}, "the same worker"
        assert set(Counter(system.computed()).values()) == {1}, "no item was computed twice"
        assert system.core.state.keys(keys.job_outcomes(stored, "*")) == []
        wait_until(lambda: not status.notes(), "the fault is forgotten")
