"""The output and the statistics of inference jobs over HTTP."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.settings import Settings
from tasks.inference.backends import installed
from tests.integration.api import Api, is_problem
from tests.support import parrot
from tests.support.fleet import Fleet
from tests.support.programs import PATIENCE_S, wait_until

SPEC = {"backend": "parrot", "model": "grey"}


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Jobs of more than 120 rows are stored."""
    parrot.install(tmp_path / "packages", monkeypatch)
    shared = {"stored_items": 120, "storage_shared": True, "heartbeat_ttl_s": 600.0}
    fleet = Fleet(settings.model_copy(update=shared), tmp_path / "journal")
    yield fleet
    fleet.close()


def contexts(number: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"item_{n}",
            "original_item_id": f"original_{n // 2}",
            "query_index": n % 2,
            "dedup_key": f"question {n}_numpy.array",
            "query": f"question {n}",
            "target_api": "numpy.array",
            "dependencies": {"numpy": "1.16.6"},
            "retrieval_method": "exact_api_match",
            "context": "x" * n,
            "context_length": n,
            "retrieval_time": 0.25,
            "success": True,
        }
        for n in range(number)
    ]


def submit(api: Api, rows: list[dict[str, Any]], **spec: Any) -> str:
    body = "".join(json.dumps(row) + "\n" for row in rows)
    query = {"kind": "inference", "spec": json.dumps(SPEC | spec)}
    reply = api.client.post("/v1/jobs", data=body, content_type="application/x-ndjson", query_string=query)
    assert reply.status_code == 202, reply.text
    return str(reply.json["id"])


def output(api: Api, job: str, query: str = "") -> list[dict[str, Any]]:
    reply = api.client.get(f"/v1/jobs/{job}/output{query}")
    assert (reply.status_code, reply.mimetype) == (200, "application/x-ndjson"), reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


@pytest.mark.parametrize("number", [40, 330])
def test_the_output_has_a_row_for_each_input_row_in_order(api: Api, fleet: Fleet, number: int) -> None:
    hands = fleet.hire("device", 0), fleet.hire("device", 1), fleet.hire("cpu")
    rows = contexts(number)
    rows[3]["query"] = "this will fail"
    rows[4] |= {"success": False, "error": "no document", "query": None}
    job = submit(api, rows)
    fleet.finish(job, *hands)
    told = output(api, job)
    assert [row["id"] for row in told] == [row["id"] for row in rows]
    assert list(told[9]) == [
        "id", "original_item_id", "query_index", "dedup_key", "query", "target_api", "dependencies", "retrieval_method",
        "context_length", "answer", "retrieval_time", "inference_time", "total_time", "worker_rank", "success",
    ]  # fmt: skip
    assert told[9]["answer"] == "QUESTION 9 (9)"
    assert told[9]["total_time"] == pytest.approx(0.25 + told[9]["inference_time"])
    assert {row["worker_rank"] for row in told} == {0, 1}
    assert list(told[3]) == [
        "id", "original_item_id", "query_index", "dedup_key", "error", "exception_type", "processing_time",
        "worker_rank", "inference_type", "success",
    ]  # fmt: skip
    assert told[3]["error"] == "Inference error: RuntimeError: the parrot is not well"
    assert (told[3]["exception_type"], told[3]["inference_type"], told[3]["success"]) == (
        "RuntimeError",
        "parrot",
        False,
    )
    assert told[4]["error"] == "Context generation failed: no document"
    assert output(api, job, "?start=7") == told[7:]
    assert output(api, job, f"?start={number}") == []
    by_rank = [output(api, job, f"?rank={rank}") for rank in (0, 1, 2)]
    assert by_rank == [[row for row in told if row["worker_rank"] == rank] for rank in (0, 1, 2)]
    assert output(api, job, "?start=7&rank=1") == [row for row in told[7:] if row["worker_rank"] == 1]


@pytest.mark.parametrize("number", [40, 330])
def test_while_the_job_runs_the_output_ends_before_the_first_gap(api: Api, fleet: Fleet, number: int) -> None:
    first, second, _ = fleet.hire("device", 0), fleet.hire("device", 1), fleet.hire("cpu")
    job = submit(api, contexts(number))
    chunks = sorted(first.take(), key=lambda chunk: chunk.items)
    ahead = chunks[0].items[0]
    second.work()
    results = api.client.get(f"/v1/jobs/{job}/results?limit=1000").json["results"]
    assert len(results) > ahead, "rows behind the gap are done"
    assert [row["id"] for row in output(api, job)] == [f"item_{n}" for n in range(ahead)]
    assert output(api, job, f"?start={ahead}") == []


def test_a_hanging_device_delays_only_its_current_row(api: Api, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick, cpu = fleet.hire("device", 0), fleet.hire("device", 1), fleet.hire("cpu")
    begun, goes_on = threading.Event(), threading.Event()

    class Uneven:
        def generate_answer(self, query: str, context: str, retrieval_method: str) -> str:  # noqa: ARG002  # not needed
            if threading.current_thread().name == "slow":
                begun.set()
                goes_on.wait(PATIENCE_S)
            return query.upper()

    monkeypatch.setattr(installed, "class_of", lambda _: Uneven)
    installed.instance.cache_clear()
    job = submit(api, contexts(330))
    stands = threading.Thread(target=slow.work, name="slow")
    stands.start()
    try:
        assert begun.wait(PATIENCE_S)
        wait_until(
            lambda: fleet.finish_step(job, quick, cpu) and fleet.job(job).ok == 329, "the remaining rows are answered"
        )
    finally:
        goes_on.set()
        stands.join(PATIENCE_S)
    assert fleet.finish(job, quick, cpu).ok == 330
    told = output(api, job)
    assert [row["id"] for row in told] == [f"item_{n}" for n in range(330)]
    assert [row["worker_rank"] for row in told].count(0) >= 1


def test_the_rows_of_a_cancelled_job_have_an_error_each(api: Api) -> None:
    job = submit(api, contexts(3))
    api.client.delete(f"/v1/jobs/{job}")
    told = output(api, job)
    assert [(row["id"], row["success"], row["worker_rank"]) for row in told] == [
        (f"item_{n}", False, None) for n in range(3)
    ]
    assert told[0]["error"] == "Inference error: The job ended before this item was done."


@pytest.mark.parametrize("number", [40, 330])
def test_statistics_are_per_worker_and_in_total(api: Api, fleet: Fleet, number: int) -> None:
    hands = fleet.hire("device", 0), fleet.hire("device", 1), fleet.hire("cpu")
    rows = contexts(number)
    rows[3]["query"] = "this will fail"
    rows[5]["query"] = "silent"
    job = submit(api, rows)
    assert api.client.get(f"/v1/jobs/{job}/statistics").json["total"]["contexts"] == 0
    fleet.finish(job, *hands)
    told = api.client.get(f"/v1/jobs/{job}/statistics").json
    assert [(each["worker"], each["worker_rank"]) for each in told["workers"]] == [
        ("gpu.node1.0", 0),
        ("gpu.node1.1", 1),
    ]
    assert sum(each["contexts"] for each in told["workers"]) == told["total"]["contexts"] == number
    total = told["total"]
    assert (total["successes"], total["errors"]) == (number - 2, 2)
    assert total["success_rate"] == pytest.approx((number - 2) / number)
    assert total["reasons"] == {"backend_failed": 1, "empty_answer": 1}
    assert total["average_inference_time"] >= 0
    by_rank = [len(output(api, job, f"?rank={rank}")) for rank in (0, 1)]
    assert [each["contexts"] for each in told["workers"]] == by_rank


def test_a_job_of_another_kind_has_neither_output_nor_statistics(api: Api) -> None:
    job = api.submitted({"x": 1})
    for what in ("output", "statistics"):
        reply = api.client.get(f"/v1/jobs/{job}/{what}")
        assert is_problem(reply, 409)
        assert "of kind 'simulated'" in reply.json["detail"]
        assert is_problem(api.client.get(f"/v1/jobs/{'0' * 32}/{what}"), 404)
    assert is_problem(api.client.get(f"/v1/jobs/{job}/output?start=-1"), 422, "start")


def test_a_file_of_many_rows_is_read_in_pages(api: Api, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit(api, contexts(330))
    fleet.finish(job, fleet.hire("device"), fleet.hire("cpu"))
    sizes: list[int] = []
    payloads = api.app.extensions["assay"].core.payloads
    read = type(payloads).read

    def counted(self: Any, job: str, layout: str, indices: list[int]) -> Any:
        sizes.append(len(indices))
        return read(self, job, layout, indices)

    monkeypatch.setattr(type(payloads), "read", counted)
    assert len(output(api, job)) == 330
    assert sizes == [100, 100, 100, 30]


# Files in the forms that users have


def post(api: Api, body: bytes) -> Any:
    query = {"kind": "inference", "spec": json.dumps(SPEC)}
    return api.client.post("/v1/jobs", data=body, content_type="application/x-ndjson", query_string=query)


FINE = json.dumps(contexts(1)[0]).encode()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 422, "There are no items"),
        (b"\xef\xbb\xbf\r\n \n", 422, "There are no items"),
        ((FINE + b"\n") * 4999 + b"{\n" + FINE, 422, "Line 5000: is not JSON"),
        (FINE + b"\n\n\n" + b'["a"]', 422, "Line 4: is not a JSON object."),
        (FINE + b'\n{"query": "caf\xe9"}\n', 422, "Line 2: is not UTF-8: its byte 15 is 0xe9."),
        (FINE + b'\n{"query": "' + b"x" * 10_000_000 + b'"}', 413, "Line 2 is longer than 8 MB (ASSAY_MAX_ITEM_MB)"),
        (
            FINE + b'\n{"id": "a", "context": "b"}\n',
            422,
            "Line 2: `query`: is missing: give the row `query` or `messages`.",
        ),
        (b'{"query": 3}', 422, "Line 1: query: "),
        (b'{"query": "a", "id": 1.5}', 422, "Line 1: id"),
        (b'{"query": "a", "retrieval_time": -1}', 422, "Line 1: retrieval_time"),
        (b'{"query": "a", "score": 1e999}', 422, "Line 1: score: is not a finite number."),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_error_of_an_invalid_file_is_a_sentence_with_the_line_number(
    api: Api, body: bytes, status: int, said: str
) -> None:
    reply = post(api, body)
    assert is_problem(reply, status)
    assert said in reply.json["detail"]
    assert api.client.get("/v1/jobs").json["jobs"] == []


def test_unusual_but_valid_files_are_accepted(api: Api, fleet: Fleet) -> None:
    rows = contexts(4)
    twin = rows[1] | {"query": "another question", "dedup_key": None}
    asked = [rows[0], rows[1], twin, rows[1], rows[2] | {"id": None}, rows[3] | {"id": 7, "more": {"a": [1, "\u2028"]}}]
    body = b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(row, ensure_ascii=False).encode() for row in asked)
    job = post(api, body).json["id"]
    fleet.finish(job, fleet.hire("device"))
    told = [json.loads(line) for line in api.client.get(f"/v1/jobs/{job}/output").data.splitlines()]
    assert [row["id"] for row in told] == ["item_0", "item_1", "item_1", "item_1", None, 7]
    assert [row["answer"].split(" (")[0] for row in told] == [row["query"].upper() for row in asked]
    assert told[5]["more"] == {"a": [1, "\u2028"]}
