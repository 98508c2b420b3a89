"""Items that the server reads from a URL: below permitted locations only, with every check of an upload."""

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ITEMS = [{"id": f"i{n}", "x": n} for n in range(300)]
LINES = "".join(json.dumps(item) + "\n" for item in ITEMS).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "inputs"
    (folder / "night").mkdir(parents=True)
    return folder


@pytest.fixture
def api(fleet: Fleet, folder: Path) -> Api:
    places = f"{folder.as_uri()}, memory://bucket/inputs"
    fleet.settings = fleet.settings.model_copy(update={"input_urls": places, "max_upload_mb": 0.1, "max_item_mb": 0.01})
    return Api(fleet)


def submit(api: Api, url: str, **more: Any) -> Any:
    return api.client.post("/v1/jobs", json={"kind": "simulated", "items_url": url} | more)


def test_a_file_of_a_url_becomes_the_items_of_a_job(api: Api, fleet: Fleet, folder: Path) -> None:
    (folder / "night" / "items.jsonl").write_bytes(b"\xef\xbb\xbf\n" + LINES.replace(b"\n", b"\r\n"))
    (folder / "items.jsonl.gz").write_bytes(gzip.compress(LINES))
    (folder / "items.jsonl.zst").write_bytes(zstd.compress(LINES))
    hand = fleet.hire()
    for name in ("night/items.jsonl", "items.jsonl.gz", "items.jsonl.zst"):
        reply = submit(api, f"{folder.as_uri()}/{name}", priority="bulk", cache="off")
        assert reply.status_code == 202, reply.text
        assert (reply.json["total"], reply.json["priority"]) == (300, "bulk")
        fleet.work(hand)
        rows = api.client.get(f"/v1/jobs/{reply.json['id']}/results").json["results"]
        assert [row["id"] for row in rows] == [item["id"] for item in ITEMS]


def test_a_file_of_a_bucket_is_read_like_a_local_file(api: Api) -> None:
    with fsspec.open("memory://bucket/inputs/items.jsonl", "wb") as file:
        file.write(LINES)
    assert submit(api, "memory://bucket/inputs/items.jsonl").json["total"] == 300
    assert is_problem(submit(api, "memory://bucket/inputs/other.jsonl"), 422, "items_url")
    assert is_problem(submit(api, "memory://bucket/inputs-of-others/items.jsonl"), 422, "items_url")


@pytest.mark.parametrize(
    "url",
    [
        "{folder}/../secret.jsonl",
        "{folder}/night/../../secret.jsonl",
        "{folder}/%2e%2e/secret.jsonl",
        "{folder}/./secret.jsonl",
        "{folder}/link.jsonl",
        "{folder}/linked/secret.jsonl",
        "{folder}-of-others/secret.jsonl",
        "{folder}/none.jsonl",
        "{folder}/night",
        "{folder}/pipe",
        "{folder}",
        "simplecache::{folder}/items.jsonl",
        "{folder}/items.jsonl::file:///etc/passwd",
        "{parent}/secret.jsonl",
        "file://host{path}/items.jsonl",
        "{path}/items.jsonl",
        "http://127.0.0.1/items.jsonl",
        "s3://bucket/items.jsonl",
        "",
    ],
)
def test_urls_outside_the_permitted_locations_are_refused(api: Api, folder: Path, url: str) -> None:
    secret = folder.parent / "secret.jsonl"
    secret.write_bytes(LINES)
    (folder / "items.jsonl").write_bytes(LINES)
    (folder.parent / "inputs-of-others").mkdir()
    (folder.parent / "inputs-of-others" / "secret.jsonl").write_bytes(LINES)
    (folder / "link.jsonl").symlink_to(secret)
    (folder / "linked").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe")
    named = url.format(folder=folder.as_uri(), parent=folder.parent.as_uri(), path=folder)
    assert is_problem(submit(api, named), 422, "items_url")
    assert api.client.get("/v1/jobs").json["jobs"] == []


def test_a_link_inside_a_permitted_location_is_followed(api: Api, folder: Path) -> None:
    (folder / "items.jsonl").write_bytes(LINES)
    (folder / "night" / "today.jsonl").symlink_to(folder / "items.jsonl")
    assert submit(api, f"{folder.as_uri()}/night/today.jsonl").status_code == 202


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 422, "no items"),
        (b'{"x": 1}\n\n{"x": \n', 422, "Line 3: is not JSON"),
        (b'{"x": 1}\n{"id": "caf\xe9"}\n', 422, "Line 2: is not UTF-8: its byte 12 is 0xe9"),
        (b'{"x": 1}\n{"id": "' + b"a" * 20_000 + b'"}', 413, "Line 2 is longer than 0.01 MB"),
        (b'{"x": 1}\n' * 20_000, 413, "larger than 0.1 MB"),
    ],
)
def test_lines_of_a_url_pass_the_checks_of_an_upload(
    api: Api, folder: Path, content: bytes, status: int, said: str
) -> None:
    (folder / "items.jsonl").write_bytes(content)
    reply = submit(api, f"{folder.as_uri()}/items.jsonl")
    assert is_problem(reply, status)
    assert said in reply.json["detail"]


@pytest.mark.parametrize("name", ["items.jsonl.gz", "items.jsonl.zst"])
def test_an_invalid_compressed_file_is_reported(api: Api, folder: Path, name: str) -> None:
    (folder / name).write_bytes(LINES)
    assert is_problem(submit(api, f"{folder.as_uri()}/{name}"), 422, "items_url")


def test_items_and_a_url_in_the_same_request_are_refused(api: Api) -> None:
    assert is_problem(submit(api, "file:///x", items=[{"x": 1}]), 422, "items_url")
    assert is_problem(submit(api, "file:///x", deadline=3), 422, "deadline")
    assert api.submit({"x": '"items_url"'}).status_code == 202, "a text may have that word"


def test_without_the_setting_no_url_is_read(fleet: Fleet, folder: Path) -> None:
    (folder / "items.jsonl").write_bytes(LINES)
    reply = submit(Api(fleet), f"{folder.as_uri()}/items.jsonl")
    assert is_problem(reply, 422, "items_url")
    assert "ASSAY_INPUT_URLS is empty" in reply.json["detail"]


def test_a_repeat_with_its_key_is_the_same_job_until_the_file_changes(api: Api, folder: Path) -> None:
    (folder / "items.jsonl").write_bytes(LINES)
    url, named = f"{folder.as_uri()}/items.jsonl", {"Idempotency-Key": "night"}

    def repeat() -> Any:
        return api.client.post("/v1/jobs", json={"kind": "simulated", "items_url": url}, headers=named)

    assert repeat().json["id"] == repeat().json["id"]
    (folder / "items.jsonl").write_bytes(LINES + b'{"x": 5}\n')
    assert is_problem(repeat(), 409)
