"""Request bodies: JSON, lines or multipart, compressed or plain; and the problem document for each invalid body."""

import gzip
import json
import sys
from typing import Any

import pytest

from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NDJSON = "application/x-ndjson"
JOB = {"kind": "simulated", "items": [{"x": 1}]}


def post(api: Api, body: bytes | str, content_type: str = "application/json", query: str = "", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.client.post(f"/v1/jobs{query}", data=body, content_type=content_type, headers=named)


def jobs(api: Api) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = api.client.get("/v1/jobs").json["jobs"]
    return listed


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"\xff\xfe", 400, None),
        (b'{"kind": "simulated", "items": [{"x": NaN}]}', 400, "items[0].x"),
        (b'{"kind": "simulated", "items": [{"x": {"y": [1, -Infinity]}}]}', 400, "items[0].x.y[1]"),
        (b'{"kind": "simulated", "items": [{"x": 1e999}]}', 400, "items[0].x"),
        (b'{"kind": "simulated", "items": [{}], "metadata": {"a": NaN}}', 400, "metadata.a"),
        (b'{"kind": "simulated", "items": [{}], "on_error": {"fill": NaN}}', 400, "on_error.fill"),
        (b'{"kind": "simulated", "items": [{"x": "\\ud800"}]}', 400, None),
        (b'{"kind": "simulated", "items": [{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}]}", 400, None),
        (b'{"kind": "simulated", "items": [{"x": ' + b"9" * 5000 + b"}]}", 400, None),
        (b"[]", 422, ""),
        (b"null", 422, ""),
        (b'"kind"', 422, ""),
        (b"{}", 422, "kind"),
        (b'{"kind": "nope", "items": [{}]}', 422, "kind"),
        (b'{"kind": 1, "items": [{}]}', 422, "kind"),
        (b'{"kind": "simulated"}', 422, "items"),
        (b'{"kind": "simulated", "items": []}', 422, "items"),
        (b'{"kind": "simulated", "items": {}}', 422, "items"),
        (b'{"kind": "simulated", "items": [{}, 3]}', 422, "items[1]"),
        (b'{"kind": "simulated", "items": [{}, {"y": 3}]}', 422, "items[1].y"),
        (b'{"kind": "simulated", "items": [{"cost_s": "x"}]}', 422, "items[0].cost_s"),
        (b'{"kind": "simulated", "items": [{}], "spec": {"cost_s": -1}}', 422, "spec.cost_s"),
        (b'{"kind": "simulated", "items": [{}], "spec": {"scorers": []}}', 422, "spec.scorers"),
        (b'{"kind": "simulated", "items": [{}], "priority": "high"}', 422, "priority"),
        (b'{"kind": "simulated", "items": [{}], "on_error": 3}', 422, "on_error"),
        (b'{"kind": "simulated", "items": [{}], "deadline_s": 0}', 422, "deadline_s"),
        (b'{"kind": "simulated", "items": [{}], "deadline": 5}', 422, "deadline"),
        (b'{"kind": "simulated", "items": [{}], "max_failed_share": 2}', 422, "max_failed_share"),
    ],
)
def test_the_problem_of_an_invalid_body_names_its_field_and_no_job_is_made(
    api: Api, body: bytes, status: int, field: str | None
) -> None:
    assert is_problem(post(api, body), status, field or None)
    assert jobs(api) == []


def test_nan_and_infinity_are_allowed_inside_strings(api: Api) -> None:
    assert post(api, b'{"kind": "simulated", "items": [{"x": "NaN, Infinity"}]}').status_code == 202


@pytest.mark.parametrize("content", ["text/plain", "application/xml", "application/x-www-form-urlencoded", ""])
def test_a_wrong_content_type_is_415_and_lists_the_accepted_types(api: Api, content: str) -> None:
    reply = post(api, json.dumps(JOB), content)
    assert is_problem(reply, 415, "Content-Type")
    assert NDJSON in reply.headers["Accept"]


@pytest.mark.parametrize("query", ["?wait=-1", "?wait=301", "?wait=x", "?wait=nan", "?wiat=3", "?kind=simulated"])
def test_the_problem_of_an_invalid_query_names_its_parameter(api: Api, query: str) -> None:
    reply = post(api, json.dumps(JOB), query=query)
    assert is_problem(reply, 422, query[1:].partition("=")[0])


def test_lines_become_items_in_order(api: Api, fleet: Fleet) -> None:
    body = "".join(json.dumps({"id": f"i{number}", "x": number}) + "\n" for number in range(1000))
    spec = json.dumps({"cost_s": 0, "cacheable": True})
    query = f"?kind=simulated&spec={spec}&priority=bulk&on_error=%7B%22fill%22%3A0.5%7D&metadata=%7B%22a%22%3A1%7D"
    reply = post(api, body, NDJSON, query)
    assert reply.status_code == 202, reply.text
    assert (reply.json["total"], reply.json["priority"], reply.json["metadata"]) == (1000, "bulk", {"a": 1})
    fleet.work(fleet.hire())
    rows = api.client.get(f"/v1/jobs/{reply.json['id']}/results").json["results"]
    assert [row["id"] for row in rows] == [f"i{number}" for number in range(1000)]


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        (b'{"x": 1}\n{"x": \n{"x": 3}', 422, 2),
        (b'{"x": 1}\n[1]\n', 422, 2),
        (b'{"x": 1}\n{"x": 2}\n{"x": NaN}\n', 422, 3),
        (b'{"x": 1}\n{"x": 1e999}\n', 422, 2),
        (b'{"x": 1}\n\n \r\n{"y": 2}\n', 422, 4),
        (b'{"x": 1}\n{"y": 2}\n', 422, 2),
        (b'\xef\xbb\xbf{"x": 1}\r\n{"x": 1, "cost_s": -1}\r\n', 422, 2),
        (b'{"x": 1}\n' + b"[" * 10000 + b"\n", 422, 2),
        (b"\n\xff\n", 422, 2),
        (b"", 422, None),
        (b"\n\n", 422, None),
    ],
)
def test_the_problem_of_an_invalid_line_has_its_number(api: Api, body: bytes, status: int, line: int | None) -> None:
    reply = post(api, body, NDJSON, "?kind=simulated")
    assert is_problem(reply, status)
    assert reply.json.get("line") == line
    assert jobs(api) == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "kind"),
        ("?kind=nope", "kind"),
        ("?kind=simulated&spec=%7B", "spec"),
        ("?kind=simulated&spec=[]", "spec"),
        ("?kind=simulated&spec=%7B%22cost_s%22%3A-1%7D", "spec.cost_s"),
        ("?kind=simulated&on_error=maybe", "on_error"),
        ("?kind=simulated&deadline_s=0", "deadline_s"),
        ("?kind=simulated&deadline_s=inf", "deadline_s"),
        ("?kind=simulated&metadata=3", "metadata"),
        ("?kind=simulated&kind=judge", "kind"),
    ],
)
def test_the_problem_of_an_invalid_parameter_beside_lines_names_it(api: Api, query: str, field: str) -> None:
    assert is_problem(post(api, b'{"x": 1}\n', NDJSON, query), 422, field)


def parts(*named: tuple[str, str]) -> tuple[bytes, str]:
    body = "".join(
        f'--cut\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n{text}\r\n'
        for name, text in named
    )
    return f"{body}--cut--\r\n".encode(), "multipart/form-data; boundary=cut"


def test_an_upload_has_its_request_first_and_then_its_items(api: Api) -> None:
    lines = "".join(json.dumps({"x": "y" * number}) + "\n" for number in range(2000))  # longer than a read block
    reply = post(api, *parts(("request", '{"kind": "simulated", "metadata": {"a": 1}}'), ("items", lines)))
    assert reply.status_code == 202, reply.text
    assert (reply.json["total"], reply.json["metadata"]) == (2000, {"a": 1})


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (*parts(("items", '{"x": 1}\n'), ("request", '{"kind": "simulated"}')), 400),
        (*parts(("request", '{"kind": "simulated"}')), 400),
        (*parts(("request", '{"kind": "simulated"}'), ("items", "{}\n"), ("more", "")), 400),
        (*parts(("request", "{"), ("items", "{}\n")), 400),
        (*parts(("request", '{"kind": "simulated", "items": [{}]}'), ("items", "{}\n")), 422),
        (*parts(("request", '{"kind": "simulated"}'), ("items", "{}\n{\n")), 422),
        (b"no parts at all", "multipart/form-data; boundary=cut", 400),
        (b"--cut\r\n\r\n", "multipart/form-data", 400),
        (
            parts(("request", '{"kind": "simulated"}'), ("items", "{}\n"))[0][:-12],
            "multipart/form-data; boundary=cut",
            400,
        ),
    ],
)
def test_invalid_multipart_bodies_are_refused(api: Api, body: bytes, content_type: str, status: int) -> None:
    assert is_problem(post(api, body, content_type), status)
    assert jobs(api) == []


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_bodies_may_be_compressed(api: Api, name: str, pack: Any) -> None:
    assert post(api, pack(json.dumps(JOB).encode()), Content_Encoding=name).status_code == 202
    lines = b'{"x": 1}\n' * 500
    # Compressed in two pieces, as a streaming client may do.
    reply = post(api, pack(lines) + pack(lines), NDJSON, "?kind=simulated", Content_Encoding=name)
    assert (reply.status_code, reply.json["total"]) == (202, 1000)
    assert is_problem(post(api, pack(lines)[:-6], NDJSON, "?kind=simulated", Content_Encoding=name), 400)
    assert is_problem(post(api, b"not compressed", Content_Encoding=name), 400, "Content-Encoding")


def test_an_unknown_compression_is_415_and_lists_the_supported_ones(api: Api) -> None:
    reply = post(api, json.dumps(JOB), Content_Encoding="br")
    assert is_problem(reply, 415, "Content-Encoding")
    assert reply.headers["Accept-Encoding"] == "gzip, zstd"


def small(fleet: Fleet, **limits: float) -> Api:
    fleet.settings = fleet.settings.model_copy(update=limits)
    return Api(fleet)


def test_the_problem_of_too_many_json_items_recommends_lines(fleet: Fleet) -> None:
    api = small(fleet, max_items=3)
    reply = api.submit(*[{"x": 1}] * 4)
    assert is_problem(reply, 413, "items")
    assert NDJSON in reply.json["detail"]
    assert post(api, b'{"x": 1}\n' * 4, NDJSON, "?kind=simulated").status_code == 202


def test_a_body_that_is_too_large_is_refused_compressed_or_plain(fleet: Fleet) -> None:
    api = small(fleet, max_body_mb=0.01, max_upload_mb=0.02)
    body = json.dumps({"kind": "simulated", "items": [{"x": "y" * 20_000}]}).encode()
    assert is_problem(post(api, body), 413)
    for name, pack in (("gzip", gzip.compress), ("zstd", zstd.compress)):
        assert is_problem(post(api, pack(body), Content_Encoding=name), 413)
    assert is_problem(post(api, b'{"x": 1}\n' * 3000, NDJSON, "?kind=simulated"), 413)
    assert jobs(api) == []


def test_spec_and_metadata_are_limited_in_size(api: Api) -> None:
    assert is_problem(api.submit({"x": 1}, metadata={"a": "b" * 100_000}), 413, "metadata")
    assert is_problem(api.submit({"x": 1}, spec={"a": "b" * 1_000_000}), 413, "spec")
    head = json.dumps({"kind": "simulated", "metadata": {"a": "b" * 100_000}})
    assert is_problem(post(api, *parts(("request", head), ("items", "{}\n"))), 413, "metadata")


def test_the_problem_of_a_too_large_item_names_it(fleet: Fleet) -> None:
    api = small(fleet, max_item_mb=0.001)
    assert is_problem(api.submit({"x": 1}, {"x": "y" * 2000}), 413, "items[1]")
    long = b'{"x": 1}\n{"x": "' + b"y" * 200_000 + b'"}\n'
    assert is_problem(post(api, long, NDJSON, "?kind=simulated"), 413, "line 2")
    # A line without an end must not be buffered without a limit.
    assert is_problem(post(api, long.rstrip(b'"}\n'), NDJSON, "?kind=simulated"), 413, "line 2")
