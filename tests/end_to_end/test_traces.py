"""Traces of the real processes, as a collector receives them over the wire."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support.chat_api import ChatApi, Fault
from tests.support.collector import Collector, Received
from tests.support.ports import free_port
from tests.support.programs import Program, wait_until
from tests.support.redis_server import RedisServer

#: Texts that no span may contain: the words of users and of the API, and credentials.
PROMPT, ANSWER, KEY, HEADER = "a-prompt-of-the-users", "the-answer-under-judgement", "sk-Zt9Qw3Lm7Xv2", "Hn5Rk8-header"
SAID = "what-the-API-said"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROFILES = """
[profiles.main]
base_url = "{url}"
api_key_env = "THE_KEY"
models = ["judge"]
headers = {{ "X-Also" = "{header}" }}
"""


class Stand:
    """A web process, an API worker and a CPU worker that send their traces to the same collector."""

    def __init__(self, run: Callable[..., Program], system: System, api: ChatApi, traces_url: str) -> None:
        profiles = system.journal.parent / "profiles.toml"
        profiles.write_text(PROFILES.format(url=api.url, header=HEADER))
        told = {"ASSAY_TRACES_URL": traces_url, "ASSAY_PROFILES_FILE": str(profiles), "THE_KEY": KEY}
        self.system, self.status = system, 0
        self.workers = system.launch("api", ASSAY_API_WORKERS_MAX="1", **told)
        self.cpu = system.launch("cpu", **told)
        self.web = Served(run, system.state.url, ASSAY_CACHE_URL=system.cache.url, **told)
        system.wait_for_workers(2)

    def judge(self, count: int, **headers: str) -> str:
        items = [{"id": str(n), "prompt": f"{PROMPT} {n}", "response": f"{ANSWER} {n}"} for n in range(count)]
        body = {"kind": "judge", "items": items, "spec": {"profile": "main"}, "metadata": {"note": PROMPT}}
        return self.submit(body | {"cache": "off"}, **headers)

    def submit(self, body: dict[str, Any], **headers: str) -> str:
        self.status, job = self.web.ask("POST", "/v1/jobs", body, **headers)
        assert self.status in (200, 202), job  # a small job may end before the answer
        return str(job["id"])


@contextmanager
def standing(run: Callable[..., Program], folder: Path, traces_url: str) -> Iterator[tuple[Stand, ChatApi]]:
    with (
        RedisServer(folder / "state") as state,
        RedisServer(folder / "cache", "cache") as cache,
        ChatApi() as api,
    ):
        api.reply = {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"{SAID}. Score: 7"},
                                  "finish_reason": "stop"}]}  # fmt: skip
        system = System(run, state, cache, folder / "journal")
        yield Stand(run, system, api, traces_url), api
        system.stop()


def test_one_trace_leads_from_the_request_through_its_chunks_to_every_call_without_text_or_key(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    with Collector() as collector, standing(run, tmp_path, collector.url) as (stand, api):
        failed_once: set[str] = set()

        def fault(body: dict[str, Any]) -> Fault | None:
            question = body["messages"][-1]["content"]
            if f"{ANSWER} 0" not in question or failed_once:
                return None
            failed_once.add(question)
            return Fault(500, {"error": {"message": f"{SAID}: {KEY}"}})

        api.fault = fault
        job = stand.judge(5, traceparent=f"00-{TRACE}-{CALLER}-01")
        ended = stand.system.finish(job)
        assert (ended.ok, len(api.seen)) == (5, 6), ended

        def is_whole() -> bool:
            found = collector.of(TRACE)
            return sum(span.attributes.get("assay.items", 0) for span in found) == 5 and len(calls(found)) == 6

        wait_until(is_whole, "the collector has every span of the job")
        spans = collector.of(TRACE)
        (request,) = [span for span in spans if span.kind == "server"]
        chunks = [span for span in spans if span.kind == "consumer"]
        assert (request.name, request.parent, request.service) == ("POST /v1/jobs", CALLER, "assay-web")
        assert request.attributes == {
            "http.request.method": "POST", "http.route": "/v1/jobs", "http.response.status_code": stand.status,
            "assay.job.id": job,
        }  # fmt: skip
        assert {(span.name, span.parent, span.service) for span in chunks} == {("chunk judge", request.id, "assay-api")}
        assert sum(span.attributes["assay.items.ok"] for span in chunks) == 5
        assert {span.attributes["assay.worker"] for span in chunks} <= {"api.node1.0", "api.node1.1"}
        assert all(span.attributes["assay.chunk.id"].startswith(f"{job}.") for span in chunks)
        assert {(span.attributes["assay.kind"], span.attributes["assay.queue"]) for span in chunks} == {
            ("judge", "api")
        }
        assert {span.parent for span in calls(spans)} == {span.id for span in chunks}
        assert {span.name for span in calls(spans)} == {"chat judge"}
        (refused,) = [span for span in calls(spans) if span.failed]
        assert refused.attributes["http.response.status_code"] == 500
        again = [span for span in calls(spans) if span.attributes["assay.item.index"] == 0]
        assert sorted(span.attributes["http.request.resend_count"] for span in again) == [0, 1]
        assert {
            (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"])
            for span in calls(spans)
            if not span.failed
        } == {(10, 5)}

        whole = b"".join(collector.bodies)
        assert not [text for text in (PROMPT, ANSWER, SAID, KEY, HEADER) if text.encode() in whole]


def test_a_chunk_of_a_killed_worker_is_found_again_in_the_same_trace(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    with Collector() as collector, standing(run, tmp_path, collector.url) as (stand, api):
        api.fault = lambda _: Fault(hang_s=600)
        job = stand.judge(1, traceparent=f"00-{TRACE}-{CALLER}-01")
        wait_until(lambda: api.in_flight, "the call is under way")
        (worker,) = stand.system.parents("api")
        api.fault = lambda _: None
        os.kill(worker.pid, signal.SIGKILL)
        assert stand.system.finish(job).ok == 1
        wait_until(
            lambda: {"client", "consumer", "server"} <= {span.kind for span in collector.of(TRACE)},
            "the collector has the spans of the web process, of the chunk and of its call",
        )
        (chunk,) = [span for span in collector.of(TRACE) if span.kind == "consumer"]
        (request,) = [span for span in collector.of(TRACE) if span.kind == "server"]
        assert chunk.parent == request.id
        assert chunk.pid != worker.pid


def test_a_prefork_child_sends_its_last_spans_before_it_ends_and_unsampled_traces_are_not_kept(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    with Collector() as collector, standing(run, tmp_path, collector.url) as (stand, _):
        score = {"kind": "score", "items": [{"response": "5", "reference": "5"}], "spec": {
            "scorers": [{"name": "numeric_match"}]}, "cache": "off"}  # fmt: skip
        unwanted = stand.submit(score, traceparent=f"00-{TRACE[::-1]}-{CALLER}-00")
        stand.system.finish(unwanted)
        stand.system.finish(stand.submit(score, traceparent=f"00-{TRACE}-{CALLER}-01"))
        own = stand.submit(score, traceparent="nonsense")
        stand.system.finish(own)
        stand.cpu.stop()
        stand.web.program.stop()
        (chunk,) = [span for span in collector.of(TRACE) if span.kind == "consumer"]
        assert (chunk.service, chunk.attributes["assay.queue"]) == ("assay-cpu", "cpu")
        begun = [span for span in collector.spans if span.attributes.get("assay.job.id") == own]
        assert {span.kind for span in begun} == {"server", "consumer"}
        assert len({span.trace for span in begun}) == 1
        assert not collector.of(TRACE[::-1])
        assert unwanted not in str(collector.spans)


def test_jobs_do_not_wait_for_a_collector_that_is_away_and_each_process_says_so_once(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    with standing(run, tmp_path, f"http://127.0.0.1:{free_port()}") as (stand, _):
        for _ in range(3):
            assert stand.system.finish(stand.judge(3)).ok == 3
            stand.workers.wait_for("traces are dropped")
            stand.web.program.wait_for("traces are dropped")
        for program in (stand.workers, stand.web.program):
            program.stop()
            assert program.output.count("traces are dropped") == 1
            assert "opentelemetry" not in program.output
            assert "Traceback" not in program.output


def calls(spans: list[Received]) -> list[Received]:
    return [span for span in spans if span.kind == "client"]
