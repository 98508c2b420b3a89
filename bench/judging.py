"""Judging against its targets: `python -m bench.judging`. Takes about three minutes.

The development API answers after 200 ms. All ways ask it the same questions with the same client.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient, OpenAI

from bench.spread import brief, in_turn, line, note, repeat
from bench.stack import Stack, stack
from tasks.jobs.core import create_core
from tasks.jobs.model import JobRequest
from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.judging.prompts import prompts
from tasks.judging.rubrics import Rubrics
from workers.development_api.handle import running

NUMBER, IN_FLIGHT, LATENCY_MS = 2000, 128, 200
SPEC = {"profile": "main", "mode": "reference", "use_schema": "never"}
PROFILE = """
[profiles.main]
base_url = "{url}"
models = ["development"]
concurrency = 128
concurrency_start = 128
"""


def items(number: int, first: int) -> list[dict[str, Any]]:
    return [
        {"id": str(n), "prompt": "How many are there?", "response": f"There are {n}.", "reference": str(n)}
        for n in range(first, first + number)
    ]


def questions(number: int, first: int) -> list[Any]:
    """What our judge would ask, rendered ahead: the other ways are not charged for it."""
    spec = JudgeSpec.model_validate(SPEC)
    rubric = Rubrics(None).find_for(spec.rubric, spec.mode)
    rendered = (prompts(spec, rubric, JudgeItem.model_validate(item)) for item in items(number, first))
    return [[dict(message) for message in each[0].messages] for each in rendered]


async def _plain(url: str, asked: list[Any]) -> None:
    places = asyncio.Semaphore(IN_FLIGHT)
    async with AsyncOpenAI(base_url=url, api_key="none", http_client=DefaultAioHttpClient(), max_retries=0) as client:

        async def ask(messages: Any) -> None:
            async with places:
                await client.chat.completions.create(
                    model="development",
                    messages=messages,
                    temperature=0,
                    max_tokens=1024,
                )

        await asyncio.gather(*(ask(messages) for messages in asked))


def plain(url: str, first: int) -> float:
    """Items a second of an asyncio program with no queue, cache or limiter."""
    asked = questions(NUMBER, first)
    started = time.perf_counter()
    asyncio.run(_plain(url, asked))
    return NUMBER / (time.perf_counter() - started)


def one_by_one(url: str, asked: list[Any]) -> None:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for messages in asked:
            client.chat.completions.create(model="development", messages=messages, temperature=0, max_tokens=1024)


def blocking_processes(url: str, first: int, processes: int, number: int) -> float:
    """Items a second of so many processes with one blocking call each."""
    asked = questions(number, first)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(abs, range(processes))  # started
        started = time.perf_counter()
        pool.starmap(one_by_one, [(url, asked[at::processes]) for at in range(processes)])
        return number / (time.perf_counter() - started)


class Judged:
    def __init__(self, stand: Stack) -> None:
        self._stand = stand
        self._next = 1_000_000

    def submit(self, number: int, **options: Any) -> str:
        """A job whose questions nobody has asked before: none is answered from the cache."""
        first, self._next = self._next, self._next + number
        return self._stand.core.door.submit(JobRequest(kind="judge", items=items(number, first), spec=SPEC, **options))

    def rate(self) -> float:
        started = time.perf_counter()
        self._stand.finish(self.submit(NUMBER))
        return NUMBER / (time.perf_counter() - started)

    def first_verdict_s(self) -> float:
        started = time.perf_counter()
        self._stand.finish(self.submit(1, priority="interactive"))
        return time.perf_counter() - started


def sleeping_device_s(stand: Stack) -> float:
    """Seconds of a job whose engine only sleeps, so that all it can lose is what is around the engine."""
    return stand.run([{"x": x} for x in range(300)], spec={"cost_s": 0.02, "batch_items": 5}, cache="off")


def beside(judged: Judged, stand: Stack) -> float:
    """The same while a judge job runs at full rate."""
    job = judged.submit(4 * NUMBER)
    seconds = sleeping_device_s(stand)
    assert stand.core.store.job(job).is_active, "the judge job ended first"
    stand.core.cancel(job)
    return seconds


@contextmanager
def judges(stand: Stack, url: str) -> Iterator[Judged]:
    profiles = stand.folder / "profiles.toml"
    profiles.write_text(PROFILE.format(url=url))
    stand.settings = stand.settings.model_copy(update={"profiles_file": profiles})
    stand.core = create_core(stand.settings, stand.celery)
    with stand.workers(1, api=2):
        yield Judged(stand)


def main() -> None:
    with running(latency_ms=LATENCY_MS) as api, stack() as stand:
        four = repeat(lambda: blocking_processes(api.url, 20_000, 4, brief(200, 40)), brief(3))
        alone = repeat(lambda: blocking_processes(api.url, 30_000, 1, brief(40, 10)), brief(3))
        with judges(stand, api.url) as judged:
            plain(api.url, 0), judged.rate()  # warm
            bare, ours = in_turn(lambda: plain(api.url, 10_000), judged.rate, times=brief(3))
            waits = repeat(judged.first_verdict_s, brief(9))
            quiet, busy = in_turn(lambda: sleeping_device_s(stand), lambda: beside(judged, stand), times=brief(3))
    note(f"items/s: plain asyncio {bare}, ours {ours}, four blocking processes {four}, one {alone}")
    note(f"submit to verdict {waits} s; a device job by itself {quiet} s, beside a judge job {busy} s")
    line(f"{NUMBER:,} items, share of a plain asyncio program's rate", ours.over(bare), ">= 0.85")
    line("over four processes with a blocking call each", ours.over(four), ">= 3")
    line("over a synchronous loop", ours.over(alone), ">= 10")
    line("submit to first verdict, over the API's latency", waits.over(LATENCY_MS / 1000), "<= 1.25")
    line("a device job beside it, time over its own", busy.over(quiet), "<= 1.05")


if __name__ == "__main__":
    main()
