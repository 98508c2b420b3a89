"""An inference job of any length does not make the memory of any process grow, measured on the real processes."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support import parrot
from tests.support.programs import PATIENCE_S, Program
from tests.support.redis_server import RedisServer

MB = 1 << 20
#: Characters of a question, which are also in its answer, and of a context: a process that keeps rows grows visibly.
QUESTION, CONTEXT = 1000, 3000


class Weighed:
    """A system of two device slots whose memory is measured, part by part."""

    def __init__(self, run: Callable[..., Program], folder: Path, state: RedisServer, cache: RedisServer) -> None:
        self._run, self._folder = run, folder
        packages = str(parrot.write_package(folder / "packages"))
        stored = {"PYTHONPATH": packages, "PARROT_S": "0.0002", "ASSAY_STORED_ITEMS": "200"}
        self._system = System(run, state, cache, folder / "journal")
        self._system.launch("device", **stored)
        self._system.launch("cpu", **stored)
        self._system.wait_for_workers(3)
        self._web = Served(
            run, state.url, ASSAY_CACHE_URL=cache.url, ASSAY_STORAGE_URL=self._system.settings.storage_url, **stored
        )

    def infer(self, number: int) -> dict[str, float]:
        """Answer this number of rows, and return the peak memory of each part in MB."""
        contexts, output = self._folder / "contexts.jsonl", self._folder / "output.jsonl"
        with contexts.open("w") as file:
            for n in range(number):
                query, context = f"{n:09} ".ljust(QUESTION, "q"), f"{n:09} ".ljust(CONTEXT, "c")
                file.write(json.dumps({"id": f"item_{n}", "query": query, "context": context}) + "\n")
        client = self._run(
            sys.executable, "-m", "assay", "infer", "--contexts_file", str(contexts), "--output_file", str(output),
            "--inference_type", "parrot", PYTHONPATH=str(ROOT / "client/src"),
            ASSAY_URL=f"http://127.0.0.1:{self._web.port}",
        )  # fmt: skip
        most: dict[str, float] = defaultdict(float)
        while client.process.poll() is None:
            for part, size in self._sizes(client):
                most[part] = max(most[part], size / MB)
            with suppress(subprocess.TimeoutExpired):
                client.process.wait(0.1)
        assert client.wait(PATIENCE_S) == 0, client.output[-3000:]
        assert f"Successful inferences: {number}\n" in client.output
        with output.open() as file:
            for n, line in zip(range(number), file, strict=True):
                assert json.loads(line)["id"] == f"item_{n}"
        return dict(most)

    def _sizes(self, client: Program) -> Iterator[tuple[str, int]]:
        programs = {"client": client, "web": self._web.program}
        programs |= {f"workers {n}": launcher for n, launcher in enumerate(self._system.launchers)}
        for part, program in programs.items():
            for process in (psutil.Process(program.process.pid), *program.descendants()):
                try:
                    yield part, process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
        for part, server in (("state", self._system.state), ("cache", self._system.cache)):
            with server.client() as redis:
                yield part, int(redis.info("memory")["used_memory"])

    def stop(self) -> None:
        self._system.stop()


@pytest.fixture
def weighed(run: Callable[..., Program], tmp_path: Path) -> Iterator[Weighed]:
    with RedisServer(tmp_path / "state") as state, RedisServer(tmp_path / "cache", "cache") as cache:
        weighed = Weighed(run, tmp_path, state, cache)
        yield weighed
        weighed.stop()


@pytest.mark.parametrize(
    ("few", "many", "most_mb"),
    [(3000, 20_000, 30), pytest.param(5000, 200_000, 30, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])],
)
def test_many_rows_take_no_more_memory_than_few(weighed: Weighed, few: int, many: int, most_mb: float) -> None:
    before = weighed.infer(few)
    after = weighed.infer(many)
    assert many * (QUESTION + CONTEXT) / MB > most_mb, "otherwise kept rows would not show"
    assert {part: round(size) for part, size in after.items() if size - before[part] > most_mb} == {}, before
