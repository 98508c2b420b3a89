"""`assay infer`, `contexts` and `pipeline` against a fake server on the network: files, messages and exit codes."""

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from assay import Assay, AsyncAssay, InvalidRequest
from assay.cli import exits
from assay.cli.main import main

from tests.conftest import ROOT
from tests.integration.client.test_command import on_a_terminal, start
from tests.support.client_scenarios import RETRY
from tests.support.inference_wire import InferenceWire
from tests.support.programs import PATIENCE_S, wait_until

FIELDS = ["original_item_id", "query_index", "query", "target_api", "retrieval_time"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InferenceWire]:
    for name in ("NUM_WORKERS", "TOTAL_GPUS", "GPUS_PER_WORKER", "MAX_SAMPLES_PER_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with InferenceWire() as server:
        monkeypatch.setenv("ASSAY_URL", server.url)
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "client/src"))
        yield server


def contexts(number: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"item_{n}",
            "original_item_id": f"original_{n}",
            "query_index": 0,
            "query": f"question {n}",
            "target_api": "numpy.array",
            "context": "x" * 50,
            "retrieval_time": 0.25,
            "success": True,
        }
        for n in range(number)
    ]


def write(path: str, rows: list[dict[str, Any]]) -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def infer(*argv: str) -> int:
    return main(["infer", "--contexts_file", "contexts.jsonl", "--output_file", "output.jsonl", *argv])


def sent(server: InferenceWire) -> list[list[dict[str, Any]]]:
    """Return the rows of each job."""
    return [stored.items for stored in server.jobs.values()]


# A complete run


def test_a_contexts_file_becomes_an_output_file_in_order(
    server: InferenceWire, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = contexts(40)
    rows[3]["query"] = "fail"
    rows[4] |= {"success": False, "error": "no document"}
    write("contexts.jsonl", rows)
    assert infer("--model_path", "m", "--max_new_tokens", "64", "--temperature", "0.1") == exits.FAILED
    told = read("output.jsonl")
    assert [row["id"] for row in told] == [row["id"] for row in rows]
    assert told[0]["answer"] == "QUESTION 0"
    assert told[3]["error"] == "GPU Out of Memory: it does not fit."
    assert told[4]["error"] == "Context generation failed: no document"
    assert "context" not in told[0]
    (request,) = server.requests("POST /v1/jobs")
    spec = json.loads(request.query["spec"])
    assert spec == {"backend": "local", "model": "m", "sampling": {"max_new_tokens": 64, "temperature": 0.1}}
    assert request.body == Path("contexts.jsonl").read_bytes()
    said = capsys.readouterr()
    assert said.err == "", "stderr stays empty without a terminal"
    assert said.out.startswith(
        "Worker 0 INFERENCE STATISTICS\n" + "=" * 60 + "\n"
        "Total contexts processed: 20\nSuccessful inferences: 19\nErrors: 1\nSuccess rate: 95.0%\n"
        "Average inference time: 0.50s\nResults saved to: output.jsonl\n\nWorker 1 INFERENCE STATISTICS\n"
    )
    assert "TOTAL INFERENCE STATISTICS" in said.out
    assert "Errors by type: context_failed 1, device_out_of_memory 1" in said.out


@pytest.mark.usefixtures("server")
def test_statistics_and_per_worker_files_are_written_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    write("contexts.jsonl", contexts(5))
    assert infer("--per_worker_files", "--statistics_file", "statistics.json", "--json") == exits.OK
    told = json.loads(capsys.readouterr().out)
    assert json.loads(Path("statistics.json").read_text()) == told
    assert told["total"]["contexts"] == 5
    assert [each["contexts"] for each in told["workers"]] == [3, 2]
    assert told["per_worker_files"] == {"0": "output_rank0.jsonl", "1": "output_rank1.jsonl"}
    assert [row["id"] for row in read("output_rank1.jsonl")] == ["item_1", "item_3"]


@pytest.mark.usefixtures("server")
def test_a_worker_block_names_the_workers_own_file(capsys: pytest.CaptureFixture[str]) -> None:
    write("contexts.jsonl", contexts(2))
    assert infer("--per-worker-files") == exits.OK
    assert "Results saved to: output_rank0.jsonl" in capsys.readouterr().out


def test_compressed_files_and_urls_are_sent_unchanged(server: InferenceWire) -> None:
    Path("contexts.jsonl.gz").write_bytes(gzip.compress(json.dumps(contexts(1)[0]).encode()))
    assert main(["infer", "--contexts_file", "contexts.jsonl.gz", "--output_file", "output.jsonl"]) == exits.OK
    assert len(read("output.jsonl")) == 1
    with Assay(server.url, retry=RETRY) as client, pytest.raises(InvalidRequest, match="reads no URLs"):
        client.infer("s3://bucket/contexts.jsonl", model="m")
    body = json.loads(server.requests("POST /v1/jobs")[-1].body)
    assert body == {"kind": "inference", "spec": {"model": "m"}, "items_url": "s3://bucket/contexts.jsonl"}


def test_the_output_can_be_read_while_rows_arrive(server: InferenceWire) -> None:
    write("contexts.jsonl", contexts(30))
    server.held = True
    with start("infer", "--contexts_file", "contexts.jsonl", "--output_file", "output.jsonl") as running:
        wait_until(lambda: server.jobs, "it to submit")
        server.settle(server.jobs["job-0"], 12)
        wait_until(lambda: Path("output.jsonl").read_text().count("\n") == 12, "twelve rows")
        server.settle(server.jobs["job-0"], 3)
        wait_until(lambda: Path("output.jsonl").read_text().count("\n") == 15, "three more")
        server.release()
        running.communicate(timeout=PATIENCE_S)
    assert running.returncode == exits.OK
    assert [row["id"] for row in read("output.jsonl")] == [f"item_{n}" for n in range(30)]


@pytest.mark.parametrize("fault", ["cut", "end", "503"])
def test_a_lost_connection_neither_doubles_nor_loses_a_row(server: InferenceWire, fault: str) -> None:
    write("contexts.jsonl", contexts(30))
    server.fault("GET /v1/jobs/job-0/output", fault, rows=7, times=3)
    assert infer() == exits.OK
    assert [row["id"] for row in read("output.jsonl")] == [f"item_{n}" for n in range(30)]


def test_the_server_applies_row_limits(server: InferenceWire, monkeypatch: pytest.MonkeyPatch) -> None:
    write("contexts.jsonl", contexts(30))
    monkeypatch.setenv("MAX_SAMPLES_PER_WORKER", "4")
    assert infer() == exits.OK
    assert len(read("output.jsonl")) == 8, "two slots"
    assert infer("--max_samples_per_worker", "2") == exits.OK
    assert len(read("output.jsonl")) == 4
    assert infer("--limit", "3") == exits.OK
    assert len(read("output.jsonl")) == 3
    request = server.requests("POST /v1/jobs")[-1]
    assert json.loads(request.query["spec"])["limit"] == 3
    assert request.body.count(b"\n") == 3, "only the rows up to the limit are sent"


def test_rows_can_be_read_from_stdin(server: InferenceWire) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in contexts(4))
    with start("infer", "--contexts_file", "-", "--output_file", "output.jsonl", stdin=subprocess.PIPE) as running:
        running.communicate(rows, timeout=PATIENCE_S)
    assert running.returncode == exits.OK
    assert len(read("output.jsonl")) == len(sent(server)[0]) == 4


@pytest.mark.usefixtures("server")
def test_a_different_number_of_workers_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("contexts.jsonl", contexts(1))
    monkeypatch.setenv("NUM_WORKERS", "2")
    assert infer() == exits.OK
    assert capsys.readouterr().err == ""
    assert infer("--num_workers", "4") == exits.OK
    assert capsys.readouterr().err == "assay: 4 workers were requested; the server has 2 workers and uses 2\n"


@pytest.mark.usefixtures("server")
def test_verbose_prints_the_job_and_each_failed_row(capsys: pytest.CaptureFixture[str]) -> None:
    write("contexts.jsonl", [*contexts(2), {"id": "bad", "query": "fail"}])
    assert infer("--verbose") == exits.FAILED
    said = capsys.readouterr().err
    assert 'job job-0: 3 rows, {"backend": "local"}' in said
    assert "done: 3 of 3 rows, 1 failed" in said
    assert "row 3 of the job (bad): GPU Out of Memory: it does not fit." in said


def test_a_terminal_shows_a_line_for_each_worker(server: InferenceWire) -> None:
    write("contexts.jsonl", contexts(9))
    seen = on_a_terminal("infer", "--contexts_file", "contexts.jsonl", "--output_file", "output.jsonl")
    assert "9/9" in seen
    assert "worker 0  gpu.node1.0  5 rows  2.0/s" in seen
    assert "worker 1  gpu.node1.1  4 rows  2.0/s" in seen
    assert seen.index("worker 1  gpu") < seen.index("Worker 0 INFERENCE STATISTICS")
    assert not server.faults


# Validation before any request


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--output_file", "o"], "--contexts_file is missing"),
        (["--contexts_file", "contexts.jsonl"], "--output_file is missing"),
        (["--contexts_file", "none.jsonl", "--output_file", "o"], "none.jsonl: No such file or directory"),
        (["--contexts_file", ".", "--output_file", "o"], ".: Is a directory"),
        (["--contexts_file", "empty.jsonl", "--output_file", "o"], "empty.jsonl: the file is empty"),
        (["--contexts_file", "contexts.jsonl", "--output_file", "no/where"], "no/where: the folder no does not exist"),
        (["--contexts_file", "contexts.jsonl", "--output_file", "."], ".: is a folder"),
        (["--contexts_file", "contexts.jsonl", "--output_file", "pipe"], "pipe: is not a regular file"),
        (["--contexts_file", "contexts.jsonl", "--output_file", "contexts.jsonl"], "read and written at the same time"),
        (
            ["--contexts_file", "contexts.jsonl", "--output_file", "o", "--statistics_file", "x/y"],
            "the folder x does not exist",
        ),
        (["--contexts_file", "-", "--output_file", "o", "--resume_from_existing"], "needs a contexts file"),
        (["--contexts_file", "s3://a/b", "--output_file", "o", "--resume_from_existing"], "needs a contexts file"),
        (["--contexts_file", "-", "--skip_inference"], "--skip_inference needs a contexts file of this machine"),
        (["--contexts_file", "packed.zst", "--skip-inference"], "--skip_inference cannot read .zst files"),
        (["--contexts_file", "contexts.jsonl", "--output_file", "o", "--n", "2"], "--n: the answers would be equal"),
    ],
)
def test_a_bad_path_fails_with_a_message_before_any_request(
    server: InferenceWire, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    write("contexts.jsonl", contexts(1))
    Path("empty.jsonl").touch()
    os.mkfifo("pipe")
    Path("packed.zst").write_bytes(b"(packed)")
    assert main(["infer", *argv]) == exits.USAGE
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert not server.seen
    assert not Path("o").exists()


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--max_new_tokens", "0", "must be an integer of at least 1"),
        ("--temperature", "-1", "must be a number from 0 to 10"),
        ("--temperature", "nan", "must be a number from 0 to 10"),
        ("--top_p", "1.5", "must be a number above 0 and at most 1"),
        ("--top_p", "0", "must be a number above 0 and at most 1"),
        ("--num-workers", "some", "must be an integer of at least 1"),
        ("--template", "@none.j2", "No such file"),
        ("--tempreature", "1", "unrecognized arguments"),
    ],
)
def test_an_invalid_flag_value_is_a_usage_error(
    server: InferenceWire, capsys: pytest.CaptureFixture[str], flag: str, value: str, said: str
) -> None:
    with pytest.raises(SystemExit) as left:
        infer(f"{flag}={value}")
    assert left.value.code == exits.USAGE
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not server.seen


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"query": "a"}\n\n{"query": \n', "Line 3: is not JSON"),
        (b'{"query": "a"}\n{"id": "b"}\n', "Line 2: `query`: is missing"),
        (b"\n\n", "There are no items"),
    ],
)
def test_a_refused_job_leaves_the_output_unchanged(
    server: InferenceWire, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    Path("contexts.jsonl").write_bytes(content)
    assert infer() == exits.REFUSED
    assert not Path("output.jsonl").exists()
    Path("output.jsonl").write_text("of an earlier run\n")
    assert infer() == exits.REFUSED
    assert Path("output.jsonl").read_text() == "of an earlier run\n"
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not server.jobs


# Resuming after an interruption


def test_the_output_of_a_killed_client_can_be_resumed(server: InferenceWire) -> None:
    write("contexts.jsonl", contexts(50))
    server.held = True
    with start("infer", "--contexts_file", "contexts.jsonl", "--output_file", "output.jsonl") as running:
        wait_until(lambda: server.jobs, "it to submit")
        server.settle(server.jobs["job-0"], 20)
        wait_until(lambda: Path("output.jsonl").read_text().count("\n") == 20, "twenty rows")
        running.kill()
        running.communicate()
    kept = Path("output.jsonl").read_bytes()
    with Path("output.jsonl").open("ab") as file:
        file.write(b'{"id": "item_20", "orig')
    server.release()
    assert infer("--resume_from_existing") == exits.OK
    assert [len(rows) for rows in sent(server)] == [50, 30]
    whole = Path("output.jsonl").read_bytes()
    assert whole.startswith(kept)
    assert [row["id"] for row in read("output.jsonl")] == [f"item_{n}" for n in range(50)]


def test_resuming_reports_the_answered_rows_and_runs_the_remaining_rows(
    server: InferenceWire, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = contexts(10)
    rows[2]["query"] = "fail"
    write("contexts.jsonl", rows)
    assert infer() == exits.FAILED
    first = Path("output.jsonl").read_bytes().splitlines(keepends=True)
    rows[2]["query"] = "question 2"
    write("contexts.jsonl", rows)
    messy = [
        first[7],
        first[1],
        first[2],
        b"nonsense\n",
        first[1],
        json.dumps({"id": "x", "answer": "y"}).encode(),
        b"\n",
    ]
    Path("output.jsonl").write_bytes(b"".join(messy))
    assert infer("--resume_from_existing", "--verbose") == exits.OK
    told = capsys.readouterr()
    assert (
        "assay: output.jsonl: 2 of 10 rows are answered, 8 will run (1 of them failed before); "
        "dropped: 2 rows of other inputs or second answers, 1 line that is not a row\n"
    ) in told.err
    assert [item["id"] for item in sent(server)[-1]] == [f"item_{n}" for n in (0, 2, 3, 4, 5, 6, 8, 9)]
    after = Path("output.jsonl").read_bytes().splitlines(keepends=True)
    assert (after[7], after[1]) == (first[7], first[1])
    assert [json.loads(line)["id"] for line in after] == [row["id"] for row in rows]
    assert all(json.loads(line)["success"] for line in after)


@pytest.mark.parametrize("kept", [[], [0], [1], [0, 3], [2, 3, 5], [1, 4], [0, 1, 3, 4]])
def test_rows_with_the_same_dedup_key_resume_to_the_output_of_a_single_run(
    server: InferenceWire, capsys: pytest.CaptureFixture[str], kept: list[int]
) -> None:
    rows = contexts(6)
    for row, key in zip(rows, ["a", "a", None, "b", "b", "a"], strict=True):
        row |= {"dedup_key": key, "note": "é"} if key else {}
    write("contexts.jsonl", rows)
    assert infer() == exits.OK
    whole = read("output.jsonl")
    assert [row["answer"][-1] for row in whole] == ["0", "0", "2", "3", "3", "0"], "the first row with a key decides"
    write("output.jsonl", [whole[n] for n in kept])
    assert infer("--resume_from_existing") == exits.OK

    def told(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if name != "worker_rank"} for row in rows]

    assert told(read("output.jsonl")) == told(whole)
    copied = {n for n, first in ((1, 0), (4, 3), (5, 0)) if n not in kept and first in kept}
    assert [row["id"] for row in sent(server)[-1]] == [f"item_{n}" for n in range(6) if n not in {*kept, *copied}]
    said = f"{len(copied)} take the answer of the first row with their dedup_key"
    assert (said in capsys.readouterr().err) == bool(copied)


def test_a_complete_output_needs_no_job(server: InferenceWire, capsys: pytest.CaptureFixture[str]) -> None:
    write("contexts.jsonl", contexts(4))
    assert infer() == exits.OK
    before = Path("output.jsonl").read_bytes()
    capsys.readouterr()
    assert infer("--resume_from_existing") == exits.OK
    assert "4 of 4 rows are answered, 0 will run" in capsys.readouterr().err
    assert Path("output.jsonl").read_bytes() == before
    assert len(server.jobs) == 1
    assert infer("--resume_from_existing", "--json") == exits.OK
    assert json.loads(capsys.readouterr().out)["kept"] == 4


def test_resuming_applies_the_row_limits_to_the_whole_input(server: InferenceWire) -> None:
    write("contexts.jsonl", contexts(30))
    assert infer("--max_samples_per_worker", "4") == exits.OK
    whole = Path("output.jsonl").read_bytes()
    Path("output.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:5]))
    assert infer("--max_samples_per_worker", "4", "--resume_from_existing") == exits.OK
    assert [item["id"] for item in sent(server)[-1]] == ["item_5", "item_6", "item_7"]
    assert len(read("output.jsonl")) == 8
    assert infer("--limit", "3", "--resume_from_existing") == exits.OK
    assert len(read("output.jsonl")) == 3


def test_the_error_for_an_invalid_line_has_its_number_in_the_file(
    server: InferenceWire, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = contexts(6)
    write("contexts.jsonl", rows)
    assert infer() == exits.OK
    Path("contexts.jsonl").write_text(Path("contexts.jsonl").read_text() + "\n{\n")
    assert infer("--resume_from_existing") == exits.REFUSED
    assert "Line 8: is not JSON" in capsys.readouterr().err.splitlines()[-1]
    assert len(read("output.jsonl")) == 6, "the output is unchanged"
    assert len(server.jobs) == 1


def test_resuming_without_an_output_runs_every_row(server: InferenceWire) -> None:
    write("contexts.jsonl", contexts(3))
    assert infer("--resume-from-existing") == exits.OK
    assert len(read("output.jsonl")) == len(sent(server)[0]) == 3


def test_ctrl_c_prints_how_to_resume(server: InferenceWire) -> None:
    write("contexts.jsonl", contexts(5))
    server.held = True
    argv = ("infer", "--contexts_file", "contexts.jsonl", "--output_file", "output.jsonl")
    for embedded in ("", "1"):
        with start(*argv, env=os.environ | {"ASSAY_EMBEDDED": embedded}) as running:
            wait_until(lambda: server.requests("GET /v1/jobs/job-"), "it to follow")
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == exits.INTERRUPTED
        assert "the same command with --resume_from_existing runs the remaining rows" in said
        assert ("keeps running; nothing was cancelled" in said) == (not embedded), (
            "an embedded server stops with its command"
        )
        server.seen.clear()


def test_a_second_run_on_the_same_output_is_refused(server: InferenceWire, capsys: pytest.CaptureFixture[str]) -> None:
    write("contexts.jsonl", contexts(5))
    server.held = True
    with start("infer", "--contexts_file", "contexts.jsonl", "--output_file", "output.jsonl") as running:
        wait_until(lambda: server.jobs, "it to submit")
        assert infer() == exits.USAGE
        assert "output.jsonl: another run is writing to this file" in capsys.readouterr().err
        server.release()
        running.communicate(timeout=PATIENCE_S)
    assert len(server.jobs) == 1


# Division, contexts, pipeline


def test_skipping_inference_shows_the_division_and_runs_nothing(
    server: InferenceWire, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("contexts.jsonl", contexts(10))
    for name, value in {"NUM_WORKERS": "4", "TOTAL_GPUS": "8", "GPUS_PER_WORKER": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["infer", "--contexts_file", "contexts.jsonl", "--skip-inference"]) == exits.OK
    assert [line.split() for line in capsys.readouterr().out.splitlines()[:6]] == [
        ["10", "rows,", "4", "workers,", "8", "GPUs"],
        ["worker", "rows", "from", "to", "GPUs"],
        ["0", "3", "0", "2", "0,", "1"],
        ["1", "3", "3", "5", "2,", "3"],
        ["2", "2", "6", "7", "4,", "5"],
        ["3", "2", "8", "9", "6,", "7"],
    ]
    assert not server.seen
    monkeypatch.delenv("NUM_WORKERS")
    monkeypatch.delenv("TOTAL_GPUS")
    monkeypatch.delenv("GPUS_PER_WORKER")
    assert main(["infer", "--contexts_file", "contexts.jsonl", "--skip_inference", "--json"]) == exits.OK
    assert [share["rows"] for share in json.loads(capsys.readouterr().out)] == [5, 5], (
        "divided among the server's two slots"
    )
    monkeypatch.setenv("ASSAY_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("assay.cli.session.FIRST_CONTACT_S", 0.1)
    assert main(["infer", "--contexts_file", "contexts.jsonl", "--skip_inference"]) == exits.USAGE
    assert "--num_workers is missing" in capsys.readouterr().err
    assert not server.jobs


QUERIES = [
    {"id": "a", "query": "How to use numpy.array?", "target_api": "numpy.array"},
    {"id": "b", "query": "yellow bananas", "target_api": "fruit.peel"},
    {"id": "c", "query": "qqq"},
]
DOCUMENTS = [{"api": "numpy.array", "text": "Documentation"}, {"api": "fruit.color", "text": "bananas are yellow"}]
RETRIEVAL = ["--queries_file", "queries.jsonl", "--documents_file", "documents.jsonl"]


def test_contexts_are_found_through_the_server(server: InferenceWire, capsys: pytest.CaptureFixture[str]) -> None:
    write("queries.jsonl", QUERIES)
    write("documents.jsonl", DOCUMENTS)
    assert main(["contexts", *RETRIEVAL, "--output_file", "contexts.jsonl", "--min_similarity", "0.5"]) == exits.FAILED
    named, similar, none = read("contexts.jsonl")
    assert (named["retrieval_method"], named["context"]) == ("exact_api_match", "Documentation")
    assert (similar["retrieval_method"], similar["context"]) == ("embedding_similarity", "bananas are yellow")
    assert (none["success"], "No document is similar enough" in none["error"]) == (False, True)
    assert capsys.readouterr().out == (
        "contexts.jsonl: 3 contexts (exact_api_match 1, embedding_similarity 1, failed 1)\n"
    )
    documents, queries = server.requests("POST /v1/jobs")
    assert json.loads(documents.query["spec"]) == {"task": "embed", "model": "minilm"}
    assert [json.loads(line) for line in queries.body.splitlines()] == [{"query": row["query"]} for row in QUERIES[1:]]


def test_exact_matches_need_no_embeddings(server: InferenceWire) -> None:
    write("queries.jsonl", QUERIES[:1])
    write("documents.jsonl", DOCUMENTS)
    assert main(["contexts", *RETRIEVAL, "--output_file", "contexts.jsonl"]) == exits.OK
    assert not server.seen


def test_the_pipeline_finds_contexts_and_answers_them(
    server: InferenceWire, capsys: pytest.CaptureFixture[str]
) -> None:
    write("queries.jsonl", QUERIES)
    write("documents.jsonl", DOCUMENTS)
    argv = ["pipeline", *RETRIEVAL, "--output_file", "answers.jsonl", "--min-similarity", "0.5"]
    assert main([*argv, "--skip-inference", "--num_workers", "2"]) == exits.OK
    assert capsys.readouterr().out.startswith("3 rows, 2 workers")
    assert not server.seen
    assert not Path("answers_contexts.jsonl").exists()
    assert main(argv) == exits.FAILED
    assert [row["success"] for row in read("answers_contexts.jsonl")] == [True, True, False]
    told = read("answers.jsonl")
    assert [row.get("answer") for row in told] == ["HOW TO USE NUMPY.ARRAY?", "YELLOW BANANAS", None]
    assert told[2]["error"].startswith("Context generation failed: No document is similar enough")
    assert main([*argv, "--resume_from_existing"]) == exits.FAILED
    assert [len(rows) for rows in sent(server) if not rows[0].get("embed")] == [3, 1]
    assert read("answers.jsonl")[:2] == told[:2]


@pytest.mark.parametrize(
    ("queries", "documents", "said"),
    [
        ('{"query": "a"}\n{"id": 1}\n', '{"text": "a"}\n', "queries.jsonl, line 2: `query` is missing"),
        ('{"query": "a"}\n', '{"api": "a"}\n', "documents.jsonl, line 1: `text` is missing"),
        ('{"query": "a"}\n', None, "documents.jsonl: No such file or directory"),
    ],
)
def test_an_invalid_question_or_document_fails_before_any_request(
    server: InferenceWire, capsys: pytest.CaptureFixture[str], queries: str, documents: str | None, said: str
) -> None:
    Path("queries.jsonl").write_text(queries)
    if documents:
        Path("documents.jsonl").write_text(documents)
    assert main(["pipeline", *RETRIEVAL, "--output_file", "answers.jsonl"]) == exits.USAGE
    assert said in capsys.readouterr().err
    assert not server.seen


# The library


def test_a_program_can_read_rows_as_they_are_committed(server: InferenceWire) -> None:
    server.held = True
    with Assay(server.url, retry=RETRY) as client:
        job = client.infer(contexts(6), model="m", backend="openai", sampling={"temperature": 0.5}, spec={"limit": 5})
        assert json.loads(server.requests("POST /v1/jobs")[0].body)["spec"] == {
            "backend": "openai",
            "model": "m",
            "sampling": {"temperature": 0.5},
            "limit": 5,
        }
        server.settle(server.jobs["job-0"], 2)
        assert [row["id"] for row in job.output(wait=False)] == ["item_0", "item_1"]
        coming = job.output(start=1)
        assert next(coming)["id"] == "item_1"
        server.release()
        assert [row["id"] for row in coming] == [f"item_{n}" for n in range(2, 6)]
        assert job.ended
        assert job.statistics()["total"]["contexts"] == 6


def test_an_asyncio_program_can_read_rows_as_they_are_committed(server: InferenceWire) -> None:
    import asyncio

    async def scenario() -> None:
        async with AsyncAssay(server.url, retry=RETRY) as client:
            job = await client.infer(contexts(6), model="m")
            assert [row["id"] async for row in job.output(start=2)] == [f"item_{n}" for n in range(2, 6)]
            assert len([told async for told in job.follow() if isinstance(told, bytes)]) == 6
            assert (await job.statistics())["total"]["successes"] == 6

    asyncio.run(scenario())


def test_completion_offers_each_flag_in_a_single_spelling() -> None:
    script = subprocess.run(
        ["python", "-m", "assay", "completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "client/src"), "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"},
    ).stdout
    assert " infer contexts pipeline " in script
    assert "--contexts_file" in script
    assert "--contexts-file" not in script
