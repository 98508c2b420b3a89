"""The blocking client. Each method runs a call of `calls.py` or a flow of `flows.py`, where they are documented."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
from assay.transport import Transport

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from assay.submission import Options, Scorer
    from assay.upload import Items

T = TypeVar("T")


class Assay:
    """Blocking client of an Assay server. Thread-safe; a forked process needs its own instance.

    `url` and `token` default to the environment variables ASSAY_URL and ASSAY_TOKEN.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, retry: Retry | None = None) -> None:
        connection = Connection.of(url, token)
        self.url = connection.url
        self._transport = Transport(connection)
        self._retry = retry or Retry()
        self._event_streams = Semaphore(MAX_EVENT_STREAMS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def submit(self, kind: str, items: Items, spec: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Job:
        """Submit a job of any kind. Idempotent: a retry after a lost connection uses the same key, so the job exists
        only once."""
        with submission.submit_call(kind, items, spec, options) as call:
            submitted = self.call(call)
        return Job(self, submitted.view, submitted.rows)

    def score(
        self,
        items: Items,
        scorers: Scorer | Sequence[Scorer],
        spec: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """Submit a job of kind `score`. Items have `prompt`, `response` and, for most scorers, `reference`; for the
        scorer `policy` they may have a `task`."""
        return self.submit("score", items, submission.score_spec(scorers, spec), **options)

    def judge(
        self,
        items: Items,
        *,
        profile: str = "",
        rubric: str = "",
        spec: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """Submit a job of kind `judge`: a model judges responses. `profile` names an API in the server's settings."""
        return self.submit("judge", items, submission.spec_with(spec, profile=profile, rubric=rubric), **options)

    def infer(
        self,
        items: Items,
        *,
        model: str = "",
        backend: str = "",
        sampling: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """Submit a job of kind `inference`: run a model over rows. `backend` is `local`, `huggingface`, `openai`, ...;
        `sampling` has `max_new_tokens`, `temperature`, `top_p`, ...; `spec` has the other fields."""
        full_spec = submission.spec_with(spec, backend=backend, model=model, sampling=sampling)
        return self.submit("inference", items, full_spec, **options)

    def job(self, job_id: str) -> Job:
        """Return a job that was submitted earlier, by this program or by another."""
        return Job(self, self.call(calls.job(job_id)))

    def jobs(self, kind: str = "", state: str = "", limit: int | None = None) -> Iterator[JobView]:
        """Iterate over jobs, newest first; requests one page at a time."""
        flow = flows.jobs(kind, state, limit, self._retry)
        return self._transport.iterate(flow)

    def queues(self) -> list[dict[str, Any]]:
        return self.call(calls.listing("queues"))

    def devices(self) -> list[dict[str, Any]]:
        return self.call(calls.listing("devices"))

    def workers(self) -> list[dict[str, Any]]:
        return self.call(calls.listing("workers"))

    def scorers(self) -> list[dict[str, Any]]:
        """List the server's rule scorers, with a JSON schema of their options."""
        return self.call(calls.listing("scorers"))

    def profiles(self) -> list[dict[str, Any]]:
        """List the API profiles for judges, with their limits and current load."""
        return self.call(calls.listing("profiles"))

    def rewards(self) -> list[dict[str, Any]]:
        """List the rewards that are configured on the server by name."""
        return self.call(calls.listing("rewards"))

    def pool_status(self) -> dict[str, Any]:
        """Return the number of connected, busy and broken policy servers, and the state of each in `servers`."""
        return self.call(calls.pool_status())

    def benchmarks(self) -> dict[str, Any]:
        """Return the benchmarks that can be run, their schedule, and the figures with regressions."""
        return self.call(calls.benchmarks())

    def run_benchmark(self, name: str, **options: Any) -> dict[str, Any]:
        """Start a benchmark; options are `repetitions`, `size`, `profile` and `model`. Return the run."""
        body = upload.of_bytes(json.dumps(options).encode(), "application/json")
        return self.call(calls.run_benchmark(name, body))

    def benchmark_run(self, run_id: str) -> dict[str, Any]:
        """Return a benchmark run: its progress, its figures and the files of its report."""
        return self.call(calls.benchmark_run(run_id))

    def benchmark_file(self, run_id: str, name: str) -> bytes:
        return self.call(calls.benchmark_file(run_id, name))

    def call(self, call: Call[T]) -> T:
        """Perform any call of `assay.calls`, with retries."""
        return self._transport.run(flows.exchange(call, self._retry))


class Job(BaseJob):
    """A submitted job. `view` is the snapshot of the server's last response."""

    def __init__(self, client: Assay, view: JobView, rows: list[Row] | None = None) -> None:
        super().__init__(view, rows)
        self._client = client

    def refresh(self) -> Job:
        return self._changed(calls.job(self.id))

    def watch(self, timeout_s: float | None = None) -> Iterator[JobView]:
        """Yield the view after each change until the job has ended. Reconnects after a lost connection."""
        for view in self._client._transport.iterate(
            flows.watch(self.id, timeout_s, self._client._retry, self._client._event_streams)
        ):
            self.view = view
            yield view

    def wait(
        self, timeout_s: float | None = None, *, progress: bool | None = None, raise_on_failure: bool = True
    ) -> Job:
        """Wait until the job has ended. Show a progress bar if stderr is a terminal; `progress` overrides that.

        Raise JobFailed if the job failed or was cancelled (failed items alone do not raise), and WaitTimeout after
        `timeout_s`.
        """
        if not self.ended:
            bar = ProgressBar(progress)
            try:
                for view in self.watch(timeout_s):
                    bar.update(view)
            finally:
                bar.close()
        return self.require_success() if raise_on_failure else self

    def results(self, start: int = 0, limit: int | None = None, *, wait: bool = True) -> Iterator[Row]:
        """Stream the rows in input order: one per item, once the job has ended.

        `wait=False` yields the rows that exist now, without the items that have no outcome yet.
        """
        if wait:
            self.wait(raise_on_failure=False)
        if self.cached_rows is not None:
            return iter(self.cached_rows[start : None if limit is None else start + limit])
        end = self.end_index(start, limit)
        return self._client._transport.iterate(flows.rows(self.id, start, limit, end, self._client._retry))

    def follow(self, start: int = 0, timeout_s: float | None = None) -> Iterator[JobView | bytes]:
        """Yield the view of an inference job, then the output lines that exist by then; repeat until the job has ended.
        Lines are in input order, each exactly once."""
        flow = flows.output(self.id, start, True, timeout_s, self._client._retry)
        for event in self._client._transport.iterate(flow):
            self.accept_if_view(event)
            yield event

    def output(self, start: int = 0, *, wait: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the output rows of an inference job in input order, each as soon as every row up to it exists.

        `wait=False` yields the rows that exist now.
        """
        flow = flows.output(self.id, start, wait, None, self._client._retry)
        for event in self._client._transport.iterate(flow):
            if not self.accept_if_view(event):
                yield json.loads(event)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of an inference job: per worker, and in total."""
        return self._client.call(calls.statistics(self.id))

    def scores(self) -> Scores:
        """Wait for the end, and return every score with the validity mask."""
        return Scores.of(self.results())

    def calibration(self) -> Calibration:
        """Return the agreement of a judge job's scores with the labels of its items, over the items judged so far."""
        return self._client.call(calls.calibration(self.id))

    def cancel(self) -> Job:
        """Cancel the job. Items that already have an outcome keep it."""
        return self._changed(calls.cancel(self.id))

    def purge(self) -> Job:
        """Cancel the job, and delete it with its results."""
        return self._changed(calls.purge(self.id))

    def repair(self) -> int:
        """Check a job that stands still, and repair it. Return the number of items that are pending again."""
        return self._client.call(calls.repair(self.id))

    def retry(self) -> Job:
        """Run the failed items again."""
        return self._changed(calls.retry(self.id))

    def pause(self) -> Job:
        return self._changed(calls.pause(self.id))

    def resume(self) -> Job:
        return self._changed(calls.resume(self.id))

    def _changed(self, call: Call[JobView]) -> Job:
        self.accept(self._client.call(call))
        return self
