"""The blocking client. Every method is one call or one flow; what they mean is in `calls.py` and `flows.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from threading import Semaphore
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from assay import calls, flows, submission, upload
from assay.bar import Bar
from assay.calls import Call
from assay.connection import EVENT_STREAMS, Connection
from assay.handle import Handle
from assay.model import Calibration, JobView, Row, Scores
from assay.retry import Retry
from assay.transport import Transport

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from assay.submission import Options, Scorer
    from assay.upload import Items

T = TypeVar("T")


class Assay:
    """An Assay server. Threads may share one; a forked process needs its own.

    `url` and `token` default to the variables ASSAY_URL and ASSAY_TOKEN.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, retry: Retry | None = None) -> None:
        connection = Connection.of(url, token)
        self.url = connection.url
        self._transport = Transport(connection)
        self._retry = retry or Retry()
        self._seats = Semaphore(EVENT_STREAMS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def submit(self, kind: str, items: Items, spec: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Job:
        """Submit a job of any kind. A lost connection is retried with the same key: the job exists once."""
        with submission.prepared(kind, items, spec, options) as call:
            submitted = self.call(call)
        return Job(self, submitted.view, submitted.rows)

    def score(
        self,
        items: Items,
        scorers: Scorer | Sequence[Scorer],
        spec: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """Score responses: items have `prompt`, `response` and, for most scorers, `reference`; for `policy` they may
        have a `task`."""
        return self.submit("score", items, submission.scoring(scorers, spec), **options)

    def judge(
        self,
        items: Items,
        *,
        profile: str = "",
        rubric: str = "",
        spec: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """Have a model judge responses. `profile` names an API endpoint of the server's settings."""
        return self.submit("judge", items, submission.chosen(spec, profile=profile, rubric=rubric), **options)

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
        """Run a model over rows. `backend` is `local`, `huggingface`, `openai`, ...; `sampling` has `max_new_tokens`,
        `temperature`, `top_p`, ...; `spec` has the rest."""
        asked = submission.chosen(spec, backend=backend, model=model, sampling=sampling)
        return self.submit("inference", items, asked, **options)

    def job(self, job_id: str) -> Job:
        """A job that was submitted earlier, here or elsewhere."""
        return Job(self, self.call(calls.job(job_id)))

    def jobs(self, kind: str = "", state: str = "", limit: int | None = None) -> Iterator[JobView]:
        """Jobs, newest first; asked for page by page."""
        flow = flows.jobs(kind, state, limit, self._retry)
        return self._transport.iterate(flow)

    def queues(self) -> list[dict[str, Any]]:
        return self.call(calls.listing("queues"))

    def devices(self) -> list[dict[str, Any]]:
        return self.call(calls.listing("devices"))

    def workers(self) -> list[dict[str, Any]]:
        return self.call(calls.listing("workers"))

    def scorers(self) -> list[dict[str, Any]]:
        """The rule scorers the server has, with a JSON schema of their options."""
        return self.call(calls.listing("scorers"))

    def profiles(self) -> list[dict[str, Any]]:
        """The API profiles that judges may be asked through, with their limits and what they are doing."""
        return self.call(calls.listing("profiles"))

    def rewards(self) -> list[dict[str, Any]]:
        """The rewards that the server knows by name."""
        return self.call(calls.listing("rewards"))

    def pool_status(self) -> dict[str, Any]:
        """The policy servers: how many are connected, busy and broken, and each in `servers`."""
        return self.call(calls.pool_status())

    def benchmarks(self) -> dict[str, Any]:
        """What can be run, when it is, and which figures have got worse."""
        return self.call(calls.benchmarks())

    def run_benchmark(self, name: str, **options: Any) -> dict[str, Any]:
        """Run a benchmark now; options are `repetitions`, `size`, `profile` and `model`. Returns the run."""
        body = upload.of_bytes(json.dumps(options).encode(), "application/json")
        return self.call(calls.run_benchmark(name, body))

    def benchmark_run(self, run_id: str) -> dict[str, Any]:
        """A run: how far it is, its figures, the files of its report."""
        return self.call(calls.benchmark_run(run_id))

    def benchmark_file(self, run_id: str, name: str) -> bytes:
        return self.call(calls.benchmark_file(run_id, name))

    def call(self, call: Call[T]) -> T:
        """Any call of `assay.calls`, with retries."""
        return self._transport.run(flows.exchange(call, self._retry))


class Job(Handle):
    """A submitted job. `view` is what the server said last."""

    def __init__(self, client: Assay, view: JobView, rows: list[Row] | None = None) -> None:
        super().__init__(view, rows)
        self._client = client

    def refresh(self) -> Job:
        return self._changed(calls.job(self.id))

    def watch(self, timeout_s: float | None = None) -> Iterator[JobView]:
        """The view whenever it changes, until the job has ended. Survives lost connections."""
        for view in self._client._transport.iterate(
            flows.watch(self.id, timeout_s, self._client._retry, self._client._seats)
        ):
            self.view = view
            yield view

    def wait(
        self, timeout_s: float | None = None, *, progress: bool | None = None, raise_on_failure: bool = True
    ) -> Job:
        """Wait for the end. Shows a progress bar if stderr is a terminal, or as `progress` says.

        Raises JobFailed if the job failed or was cancelled (failed items alone do not), WaitTimeout when time is up.
        """
        if not self.ended:
            bar = Bar(progress)
            try:
                for view in self.watch(timeout_s):
                    bar.update(view)
            finally:
                bar.close()
        return self.checked() if raise_on_failure else self

    def results(self, start: int = 0, limit: int | None = None, *, wait: bool = True) -> Iterator[Row]:
        """Rows in input order, streamed, one per item once the job has ended.

        `wait=False` gives those there are now; items without an outcome are left out then.
        """
        if wait:
            self.wait(raise_on_failure=False)
        if self.kept is not None:
            return iter(self.kept[start : None if limit is None else start + limit])
        stop = self.stop_index(start, limit)
        return self._client._transport.iterate(flows.rows(self.id, start, limit, stop, self._client._retry))

    def follow(self, start: int = 0, timeout_s: float | None = None) -> Iterator[JobView | bytes]:
        """Of an inference job: its view, the lines of its output there are by then, and so on until it has ended.
        Lines are in input order, and each comes once."""
        for told in self._client._transport.iterate(flows.output(self.id, start, True, timeout_s, self._client._retry)):
            self.note(told)
            yield told

    def output(self, start: int = 0, *, wait: bool = True) -> Iterator[dict[str, Any]]:
        """Of an inference job: the rows of its output in input order, each as soon as it and all before it are there.

        `wait=False` gives those there are now.
        """
        for told in self._client._transport.iterate(flows.output(self.id, start, wait, None, self._client._retry)):
            if not self.note(told):
                yield json.loads(told)

    def statistics(self) -> dict[str, Any]:
        """Of an inference job: what each worker did, and all."""
        return self._client.call(calls.statistics(self.id))

    def scores(self) -> Scores:
        """All scores with their validity mask, once the job has ended."""
        return Scores.of(self.results())

    def calibration(self) -> Calibration:
        """Of a judge job: its scores beside the labels of its items, as far as they are judged."""
        return self._client.call(calls.calibration(self.id))

    def cancel(self) -> Job:
        """Stop it. Items that have an outcome keep it."""
        return self._changed(calls.cancel(self.id))

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
