"""Storage of large jobs: a folder and a bucket behave alike, for every process that uses them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.errors import StorageUnavailable, StoredFileMissing
from tasks.jobs.state.storage import Storage
from tests.conftest import ROOT
from tests.support.programs import Programs
from tests.support.s3_server import S3Server

BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with Programs(ROOT, tmp_path_factory.mktemp("s3")) as programs:
        server = S3Server(programs.start)
        server.create_bucket("bucket")
        yield server


@pytest.fixture
def with_s3(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return (tmp_path / "storage").as_uri()
    request.getfixturevalue("with_s3")
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def storage(url: str) -> Storage:
    return Storage(url)


def in_another_process(url: str, code: str) -> str:
    """Run code that uses the same storage, as `storage`, and return its output."""
    program = f"import os\nfrom tasks.jobs.state.storage import Storage\nstorage = Storage({url!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def test_a_file_is_read_whole_in_part_and_in_pages(storage: Storage) -> None:
    storage.put("jobs/a/items.jsonl", BODY)
    assert storage.read("jobs/a/items.jsonl") == BODY
    assert storage.read("jobs/a/items.jsonl", 100, 356) == BODY[100:356]
    assert b"".join(storage.pages("jobs/a/items.jsonl")) == BODY


def test_a_deleted_folder_is_gone_with_its_files_and_others_stay(storage: Storage) -> None:
    for path in ("jobs/a/items.jsonl", "jobs/a/parts/0.jsonl", "jobs/ab/items.jsonl"):
        storage.put(path, BODY)
    storage.delete("jobs/a")
    storage.delete("jobs/a")
    storage.delete_file("jobs/a/items.jsonl")
    for path in ("jobs/a/items.jsonl", "jobs/a/parts/0.jsonl"):
        with pytest.raises(StoredFileMissing):
            storage.read(path)
    assert storage.read("jobs/ab/items.jsonl") == BODY


def test_files_of_other_processes_are_read_and_deleted(storage: Storage, url: str) -> None:
    storage.put("jobs/a/first", BODY)
    storage.delete("jobs/a")
    with pytest.raises(StoredFileMissing):
        list(storage.pages("jobs/a/second"))
    in_another_process(url, "storage.put('jobs/a/second', b'body')")
    assert list(storage.pages("jobs/a/second")) == [b"body"]
    in_another_process(url, "storage.put('jobs/a/third', b'body')")
    storage.delete("jobs/a")
    for name in ("second", "third"):
        with pytest.raises(StoredFileMissing):
            storage.read(f"jobs/a/{name}")


def test_a_child_process_forked_after_the_first_use_reads_and_writes(url: str) -> None:
    code = """
storage.put("jobs/a/parent", b"body")
if not (child := os.fork()):
    storage.put("jobs/a/child", storage.read("jobs/a/parent") + b" of the child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(storage.read("jobs/a/child").decode())
"""
    assert in_another_process(url, code) == "body of the child"


def test_an_unfinished_file_can_be_abandoned(storage: Storage) -> None:
    file = storage.create("jobs/a/items.jsonl")
    file.write(BODY)
    file.abandon()
    storage.delete("jobs/a")
    with pytest.raises(StoredFileMissing):
        storage.read("jobs/a/items.jsonl")


@pytest.mark.usefixtures("with_s3")
def test_a_bucket_that_does_not_exist_is_named_and_not_created(s3: S3Server) -> None:
    storage = Storage("s3://missing/prefix")
    for _ in range(2):
        with pytest.raises(
            StorageUnavailable, match="s3://missing/prefix cannot be written: The specified bucket does not exist"
        ):
            storage.put("jobs/a/items.jsonl", BODY)
    assert s3.buckets() == ["bucket"]
    Storage("s3://bucket/prefix").put("jobs/a/items.jsonl", BODY)
    assert "prefix/jobs/a/items.jsonl" in s3.files("bucket")


def test_a_host_without_the_package_of_its_storage_says_so() -> None:
    code = """
import sys
from tasks.errors import StorageUnavailable
sys.modules["s3fs"] = None  # as if it were not installed
for use in (lambda: storage.read("jobs/a"), lambda: storage.put("jobs/a", b""), lambda: storage.delete("jobs/a")):
    try:
        use()
    except StorageUnavailable as error:
        print(error)
"""
    said = in_another_process("s3://bucket/prefix", code).splitlines()
    assert said == ["The storage s3://bucket/prefix cannot be read: Install s3fs to access S3."] * 3
