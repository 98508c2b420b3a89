"""Traces inside a process: attributes of spans, links between chunks of a batch, and no cost without a collector."""

import logging
import os
import site
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from opentelemetry.trace import NoOpTracer

from config import keys
from config.settings import Settings, load_settings
from tasks.otlp import OtlpTracer
from tasks.tracing import close_tracer, create_tracer, current_traceparent, parent_context, traceparent_of
from tests.conftest import ROOT
from tests.integration.api import Api
from tests.support.collector import Collector
from tests.support.fleet import Fleet
from tests.support.programs import PATIENCE_S
from tests.unit.test_rooms import in_new_python
from web.app import create_app
from workers.processes.supervisor import EXIT_MISCONFIGURED

FIRST, SECOND = "1" * 32, "2" * 32
CALLER = "00f067aa0ba902b7"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for limit in ("TRY_S", "CLOSE_S"):  # time limits of an export request, and of the last export of a process
        monkeypatch.setattr(f"tasks.otlp.{limit}", PATIENCE_S)
    with Collector() as collector:
        yield collector


@pytest.fixture
def traced(settings: Settings, collector: Collector) -> Settings:
    return settings.model_copy(update={"traces_url": f"{collector.url}/v1/traces"})


def test_spans_of_chunks_in_a_shared_batch_link_to_each_other(
    traced: Settings, collector: Collector, tmp_path: Path
) -> None:
    fleet = Fleet(traced, tmp_path / "journal")
    api, hand = Api(fleet), fleet.hire()
    for trace in (FIRST, SECOND):
        items = [{"x": 1}, {"x": 2, "fail": True}]
        headers = {"traceparent": f"00-{trace}-{CALLER}-01"}
        reply = api.client.post("/v1/jobs", json={"kind": "simulated", "items": items}, headers=headers)
        assert reply.status_code == 202
    fleet.work(hand)
    assert current_traceparent() == "", "the trace context of a thread is cleared after its response"
    fleet.close()
    close_tracer(api.app.extensions["assay"].core.tracer)
    requests = {span.trace: span for span in collector.spans if span.kind == "server"}
    chunks = {span.trace: span for span in collector.spans if span.kind == "consumer"}
    assert chunks[FIRST].links == ((SECOND, requests[SECOND].id),)
    assert chunks[SECOND].links == ((FIRST, requests[FIRST].id),)
    for trace, chunk in chunks.items():
        assert chunk.parent == requests[trace].id
        told = {name: chunk.attributes[f"assay.{name}"] for name in ("queue", "worker", "items", "stage")}
        assert told == {"queue": "gpu.node1.0", "worker": "gpu.node1.0", "items": 2, "stage": "run"}
        assert (chunk.attributes["assay.items.ok"], chunk.attributes["assay.items.failed"]) == (1, 1)


def test_a_request_span_is_named_by_its_route_and_contains_no_text_of_the_client(
    traced: Settings, collector: Collector
) -> None:
    app = create_app(traced)
    client = app.test_client()
    for path in ("/health", "/nowhere/sk-secret?token=sk-secret", "/v1/jobs/sk-secret", f"/v1/jobs/{FIRST}"):
        client.get(path)
    close_tracer(app.extensions["assay"].core.tracer)
    told = [(span.name, span.attributes["http.response.status_code"]) for span in collector.spans]
    assert told == [("GET /health", 200), ("GET", 404), ("GET /v1/jobs/<job_id>", 404), ("GET /v1/jobs/<job_id>", 404)]
    assert [span.attributes.get("assay.job.id") for span in collector.spans] == [None, None, None, FIRST]
    assert b"sk-secret" not in b"".join(collector.bodies)


def test_ended_spans_are_sent_at_process_exit_and_a_fork_sends_its_own(collector: Collector) -> None:
    tracer = OtlpTracer(f"{collector.url}/v1/traces", 1.0, "assay-test")
    parent = tracer.start_span("parent")
    child = os.fork()
    if not child:
        tracer.start_span("child", parent_context(traceparent_of(parent))).end()
        tracer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    parent.end()
    tracer.close()
    sent = {span.name: span for span in collector.spans}
    assert sent["child"].parent == sent["parent"].id
    assert (sent["child"].pid, sent["parent"].pid) == (child, os.getpid())


def test_a_refusing_collector_is_logged_once_and_its_return_too(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tasks.otlp")
    tracer = OtlpTracer(collector.url.replace("://", "://user:secret@") + "/v1/traces", 1.0, "assay-test")
    for collector.refuses in (True, True, True, False, False):
        tracer.start_span("work").end()
        assert tracer._provider
        tracer._provider.force_flush()
    tracer.close()
    place = collector.url.replace("://", "://user:***@") + "/v1/traces"
    assert [record.getMessage() for record in caplog.records if record.name == "tasks.otlp"] == [
        f"traces are dropped: {place} does not accept them; jobs do not wait for it",
        f"traces are sent to {place} again",
    ]
    assert len(collector.spans) == 2


def test_own_traces_are_sampled_by_share_and_callers_traces_as_the_caller_decides(collector: Collector) -> None:
    tracer = OtlpTracer(f"{collector.url}/v1/traces", 0.0, "assay-test")
    tracer.start_span("ours").end()
    tracer.start_span("theirs", parent_context(f"00-{FIRST}-{CALLER}-01")).end()
    tracer.close()
    assert [span.name for span in collector.spans] == ["theirs"]


def test_without_a_collector_no_sdk_is_imported_and_no_trace_stored(api: Api, fleet: Fleet) -> None:
    program = "import sys, web.wsgi, workers.main, workers.providers.api_calls; print(*sys.modules)"
    # redis-py imports the metrics SDK where it is installed; only `tasks.otlp` imports the SDK that traces.
    unwanted = ("tasks.otlp", "opentelemetry.exporter", "opentelemetry.sdk.trace")
    assert not [name for name in in_new_python(program).split() if name.startswith(unwanted)]
    assert isinstance(create_tracer(fleet.settings, "web"), NoOpTracer)
    job = api.submitted({"x": 1})
    assert fleet.core.state.hget(keys.job(job), "trace") is None


def test_the_url_of_a_collector_may_omit_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, used in (
        ("http://there:4318", "http://there:4318/v1/traces"),
        ("http://there:4318/", "http://there:4318/v1/traces"),
        ("https://there/otlp/v1/traces", "https://there/otlp/v1/traces"),
    ):
        monkeypatch.setenv("ASSAY_TRACES_URL", given)
        assert load_settings().traces_url == used


@pytest.mark.parametrize(
    "program",
    ["workers.launch api", "workers.main api", "workers.up", "gunicorn --config web/gunicorn_config.py web.wsgi:app"],
)
def test_processes_name_the_command_that_installs_missing_trace_packages(program: str, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in (path for folder in site.getsitepackages() for path in Path(folder).iterdir()):
        if not path.name.startswith("opentelemetry"):
            (packages / path.name).symlink_to(path)
    # The API shares its namespace package with the extra, so its folders are linked one by one.
    api = metadata.distribution("opentelemetry-api")
    (packages / "opentelemetry").mkdir()
    for folder in {Path(file).parts[1] for file in map(str, api.files or ()) if file.startswith("opentelemetry/")}:
        (packages / "opentelemetry" / folder).symlink_to(str(api.locate_file(f"opentelemetry/{folder}")))
    environment = os.environ | {"PYTHONPATH": str(packages), "ASSAY_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-S", "-m", *program.split()]  # -S: without the packages of this environment
    told = subprocess.run(
        command, cwd=ROOT, env=environment | {"ASSAY_TRACES_URL": "http://user:secret@there:4318"},
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert told.returncode == EXIT_MISCONFIGURED, told.stderr
    (line,) = told.stderr.splitlines()
    assert line.startswith("ASSAY_TRACES_URL: traces need packages that are not installed: run `make tracing`")
    assert "secret" not in line
