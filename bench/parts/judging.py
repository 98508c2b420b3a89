"""Benchmark of judging: throughput, latency and CPU time of judge jobs. `python -m bench judging`.

Takes about three minutes. The development API answers after 200 ms. Assay and the alternatives send it the same
prompts with the same HTTP client.

`python -m bench.parts.judging --cpu-only` measures only the CPU time of a judged item, in about 40 seconds, so that two
versions of the code can be run alternately.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient, OpenAI

from bench.processes.resource_usage import SystemCpu
from bench.processes.stack import Stack, running_stack
from bench.report.figures import brief, in_turn, line, note, repeat
from tasks.jobs.model import JobRequest
from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.judging.prompts import prompts
from tasks.judging.rubrics import Rubrics
from tasks.measurement.spread import spread_of
from workers.development_api.control import running

NUMBER, IN_FLIGHT, LATENCY_MS = 2000, 128, 200
SPEC = {"profile": "main", "mode": "reference", "use_schema": "never"}


def items(number: int, first: int) -> list[dict[str, Any]]:
    return [
        {"id": str(n), "prompt": "How many are there?", "response": f"There are {n}.", "reference": str(n)}
        for n in range(first, first + number)
    ]


def render_prompts(number: int, first: int) -> list[Any]:
    """Return the messages that our judge would send. Rendered ahead, so that the alternatives are not charged for
    it."""
    spec = JudgeSpec.model_validate(SPEC)
    rubric = Rubrics(None).find_for(spec.rubric, spec.mode)
    rendered = (prompts(spec, rubric, JudgeItem.model_validate(item)) for item in items(number, first))
    return [[dict(message) for message in each[0].messages] for each in rendered]


async def _plain(url: str, prompts: list[Any]) -> None:
    in_flight = asyncio.Semaphore(IN_FLIGHT)
    async with AsyncOpenAI(base_url=url, api_key="none", http_client=DefaultAioHttpClient(), max_retries=0) as client:

        async def ask(messages: Any) -> None:
            async with in_flight:
                await client.chat.completions.create(
                    model="development",
                    messages=messages,
                    temperature=0,
                    max_tokens=1024,
                )

        await asyncio.gather(*(ask(messages) for messages in prompts))


def plain(url: str, first: int) -> float:
    """Return the items per second of an asyncio program without queue, cache or rate limiter."""
    rendered = render_prompts(NUMBER, first)
    started = time.perf_counter()
    asyncio.run(_plain(url, rendered))
    return NUMBER / (time.perf_counter() - started)


def one_by_one(url: str, prompts: list[Any]) -> None:
    """Send the prompts sequentially, with blocking calls."""
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for messages in prompts:
            client.chat.completions.create(model="development", messages=messages, temperature=0, max_tokens=1024)


def blocking_processes(url: str, first: int, processes: int, number: int) -> float:
    """Return the items per second of `processes` processes with a blocking call in flight each."""
    rendered = render_prompts(number, first)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(abs, range(processes))  # wait until the processes have started
        started = time.perf_counter()
        pool.starmap(one_by_one, [(url, rendered[at::processes]) for at in range(processes)])
        return number / (time.perf_counter() - started)


class JudgeJobs:
    """Judge jobs on a stack, measured. Every job has new items, so that the cache answers no item."""

    def __init__(self, stack: Stack, launchers: Sequence[int]) -> None:
        self._stack, self._launchers = stack, launchers
        self._next = 1_000_000
        self.cpu: list[SystemCpu] = []
        """CPU time of each call of `rate`, in order."""

    def submit(self, number: int, **options: Any) -> str:
        first, self._next = self._next, self._next + number
        request = JobRequest(kind="judge", items=items(number, first), spec=SPEC, **options)
        return self._stack.core.submitter.submit(request)

    def rate(self) -> float:
        """Return the items per second of a job, from submit to end."""
        before, started = self._cpu(), time.perf_counter()
        self._stack.finish(self.submit(NUMBER))
        seconds = time.perf_counter() - started
        self.cpu.append(self._cpu() - before)
        return NUMBER / seconds

    def _cpu(self) -> SystemCpu:
        return SystemCpu.used_so_far(self._launchers, self._stack.url)

    def first_verdict_s(self) -> float:
        started = time.perf_counter()
        self._stack.finish(self.submit(1, priority="interactive"))
        return time.perf_counter() - started


def device_job_s(stack: Stack) -> float:
    """Return the seconds of a device job whose engine sleeps: any slowdown comes from the code around the engine."""
    return stack.run([{"x": x} for x in range(300)], spec={"cost_s": 0.02, "batch_items": 5}, cache="off")


def device_job_beside_judging_s(judge: JudgeJobs, stack: Stack) -> float:
    """Return the seconds of the same device job while a judge job runs at full rate."""
    job_id = judge.submit(4 * NUMBER)
    seconds = device_job_s(stack)
    assert stack.core.store.job(job_id).is_active, "the judge job ended first"
    stack.core.cancel(job_id)
    return seconds


@contextmanager
def running_judges(stack: Stack, url: str) -> Iterator[JudgeJobs]:
    """Start two API workers and a device worker that use the API at this URL."""
    stack.use_api(url)
    with stack.workers(1, api=2) as launchers:
        yield JudgeJobs(stack, launchers)


def print_cpu(measured: Sequence[SystemCpu]) -> None:
    """Print the CPU seconds per 1,000 judged items: the sum over our processes, and its parts."""
    thousands = NUMBER / 1000
    submitter = spread_of([each.submitter_s / thousands for each in measured])
    workers = spread_of([each.workers_s / thousands for each in measured])
    redis = spread_of([each.redis_s / thousands for each in measured])
    note(f"CPU s per 1,000 items: workers {workers}, submitting process {submitter}; Redis, not in the sum, {redis}")
    line(
        "CPU seconds of our processes per 1,000 judged items",
        spread_of([each.ours_s / thousands for each in measured]),
        "none",
    )


def main_cpu_only(repetitions: int) -> None:
    with running(latency_ms=LATENCY_MS) as api, running_stack() as stack, running_judges(stack, api.url) as judge:
        judge.rate()  # warm up
        rate = repeat(judge.rate, repetitions)
    note(f"items/s: {rate}")
    print_cpu(judge.cpu[1:])


def main() -> None:
    with running(latency_ms=LATENCY_MS) as api, running_stack() as stack:
        four = repeat(lambda: blocking_processes(api.url, 20_000, 4, brief(200, 40)), brief(3))
        alone = repeat(lambda: blocking_processes(api.url, 30_000, 1, brief(40, 10)), brief(3))
        with running_judges(stack, api.url) as judge:
            plain(api.url, 0), judge.rate()  # warm up
            judge.cpu.clear()
            bare, ours = in_turn(lambda: plain(api.url, 10_000), judge.rate, times=brief(3))
            waits = repeat(judge.first_verdict_s, brief(9))
            quiet, busy = in_turn(
                lambda: device_job_s(stack), lambda: device_job_beside_judging_s(judge, stack), times=brief(3)
            )
    note(f"items/s: plain asyncio {bare}, ours {ours}, four blocking processes {four}, a single process {alone}")
    note(f"submit to verdict {waits} s; a device job alone {quiet} s, beside a judge job {busy} s")
    line(f"{NUMBER:,} items, share of a plain asyncio program's rate", ours.over(bare), ">= 0.85")
    line("judging rate over four processes with a blocking call each", ours.over(four), ">= 3")
    line("judging rate over a synchronous loop", ours.over(alone), ">= 10")
    line("submit to first verdict, over the API's latency", waits.over(LATENCY_MS / 1000), "<= 1.25")
    line("a device job beside a judge job, time over the same job alone", busy.over(quiet), "<= 1.05")
    print_cpu(judge.cpu)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.parts.judging", description="Benchmark of judging.")
    parser.add_argument("--cpu-only", action="store_true", help="measure only the CPU seconds per 1,000 judged items")
    parser.add_argument("--repetitions", type=int, default=5, help="number of jobs that --cpu-only measures (5)")
    arguments = parser.parse_args()
    main_cpu_only(arguments.repetitions) if arguments.cpu_only else main()
