"""The asyncio client: the same calls and flows as in `client.py`, awaited."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from threading import Semaphore
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from assay import calls, flows, submission, upload
from assay.base_job import BaseJob
from assay.calls import Call
from assay.connection import MAX_EVENT_STREAMS, Connection
from assay.model import Calibration, JobView, Row, Scores
from assay.progress_bar import ProgressBar
from assay.retry import Retry
from assay.transport import AsyncTransport

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from assay.submission import Options, Scorer
    from assay.upload import Items

T = TypeVar("T")


class AsyncAssay:
    """Asyncio client of an Assay server; methods as in `Assay`. An instance belongs to a single event loop."""

    def __init__(self, url: str | None = None, token: str | None = None, *, retry: Retry | None = None) -> None:
        connection = Connection.of(url, token)
        self.url = connection.url
        self._transport = AsyncTransport(connection)
        self._retry = retry or Retry()
        self._event_streams = Semaphore(MAX_EVENT_STREAMS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def submit(
        self, kind: str, items: Items, spec: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> AsyncJob:
        """As `Assay.submit`. A generator of items is read in the event loop, so it must not block."""
        with submission.submit_call(kind, items, spec, options) as call:
            submitted = await self.call(call)
        return AsyncJob(self, submitted.view, submitted.rows)

    async def score(
        self,
        items: Items,
        scorers: Scorer | Sequence[Scorer],
        spec: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncJob:
        return await self.submit("score", items, submission.score_spec(scorers, spec), **options)

    async def judge(
        self,
        items: Items,
        *,
        profile: str = "",
        rubric: str = "",
        spec: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncJob:
        return await self.submit("judge", items, submission.spec_with(spec, profile=profile, rubric=rubric), **options)

    async def infer(
        self,
        items: Items,
        *,
        model: str = "",
        backend: str = "",
        sampling: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncJob:
        full_spec = submission.spec_with(spec, backend=backend, model=model, sampling=sampling)
        return await self.submit("inference", items, full_spec, **options)

    async def job(self, job_id: str) -> AsyncJob:
        return AsyncJob(self, await self.call(calls.job(job_id)))

    def jobs(self, kind: str = "", state: str = "", limit: int | None = None) -> AsyncIterator[JobView]:
        return self._transport.iterate(flows.jobs(kind, state, limit, self._retry))

    async def queues(self) -> list[dict[str, Any]]:
        return await self.call(calls.listing("queues"))

    async def devices(self) -> list[dict[str, Any]]:
        return await self.call(calls.listing("devices"))

    async def workers(self) -> list[dict[str, Any]]:
        return await self.call(calls.listing("workers"))

    async def scorers(self) -> list[dict[str, Any]]:
        return await self.call(calls.listing("scorers"))

    async def profiles(self) -> list[dict[str, Any]]:
        return await self.call(calls.listing("profiles"))

    async def rewards(self) -> list[dict[str, Any]]:
        return await self.call(calls.listing("rewards"))

    async def pool_status(self) -> dict[str, Any]:
        return await self.call(calls.pool_status())

    async def benchmarks(self) -> dict[str, Any]:
        return await self.call(calls.benchmarks())

    async def run_benchmark(self, name: str, **options: Any) -> dict[str, Any]:
        body = upload.of_bytes(json.dumps(options).encode(), "application/json")
        return await self.call(calls.run_benchmark(name, body))

    async def benchmark_run(self, run_id: str) -> dict[str, Any]:
        return await self.call(calls.benchmark_run(run_id))

    async def benchmark_file(self, run_id: str, name: str) -> bytes:
        return await self.call(calls.benchmark_file(run_id, name))

    async def call(self, call: Call[T]) -> T:
        return await self._transport.run(flows.exchange(call, self._retry))


class AsyncJob(BaseJob):
    """A submitted job; the same methods as in `Job`, awaited."""

    def __init__(self, client: AsyncAssay, view: JobView, rows: list[Row] | None = None) -> None:
        super().__init__(view, rows)
        self._client = client

    async def refresh(self) -> AsyncJob:
        return await self._changed(calls.job(self.id))

    async def watch(self, timeout_s: float | None = None) -> AsyncIterator[JobView]:
        async for view in self._client._transport.iterate(
            flows.watch(self.id, timeout_s, self._client._retry, self._client._event_streams)
        ):
            self.view = view
            yield view

    async def wait(
        self, timeout_s: float | None = None, *, progress: bool | None = None, raise_on_failure: bool = True
    ) -> AsyncJob:
        if not self.ended:
            bar = ProgressBar(progress)
            try:
                async for view in self.watch(timeout_s):
                    bar.update(view)
            finally:
                bar.close()
        return self.require_success() if raise_on_failure else self

    async def results(self, start: int = 0, limit: int | None = None, *, wait: bool = True) -> AsyncIterator[Row]:
        if wait:
            await self.wait(raise_on_failure=False)
        if self.cached_rows is not None:
            for row in self.cached_rows[start : None if limit is None else start + limit]:
                yield row
            return
        end = self.end_index(start, limit)
        async for row in self._client._transport.iterate(flows.rows(self.id, start, limit, end, self._client._retry)):
            yield row

    async def follow(self, start: int = 0, timeout_s: float | None = None) -> AsyncIterator[JobView | bytes]:
        flow = flows.output(self.id, start, True, timeout_s, self._client._retry)
        async for event in self._client._transport.iterate(flow):
            self.accept_if_view(event)
            yield event

    async def output(self, start: int = 0, *, wait: bool = True) -> AsyncIterator[dict[str, Any]]:
        flow = flows.output(self.id, start, wait, None, self._client._retry)
        async for event in self._client._transport.iterate(flow):
            if not self.accept_if_view(event):
                yield json.loads(event)

    async def statistics(self) -> dict[str, Any]:
        return await self._client.call(calls.statistics(self.id))

    async def scores(self) -> Scores:
        return Scores.of([row async for row in self.results()])

    async def calibration(self) -> Calibration:
        return await self._client.call(calls.calibration(self.id))

    async def cancel(self) -> AsyncJob:
        return await self._changed(calls.cancel(self.id))

    async def purge(self) -> AsyncJob:
        """Cancel the job, and delete it with its results."""
        return await self._changed(calls.purge(self.id))

    async def repair(self) -> int:
        """Check a job that stands still, and repair it. Return the number of items that are pending again."""
        return await self._client.call(calls.repair(self.id))

    async def retry(self) -> AsyncJob:
        return await self._changed(calls.retry(self.id))

    async def pause(self) -> AsyncJob:
        return await self._changed(calls.pause(self.id))

    async def resume(self) -> AsyncJob:
        return await self._changed(calls.resume(self.id))

    async def _changed(self, call: Call[JobView]) -> AsyncJob:
        self.accept(await self._client.call(call))
        return self
