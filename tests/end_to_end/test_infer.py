"""`assay infer` on its own system, as `make infer` runs it: its processes start with it and end with it."""

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.end_to_end.api import Served
from tests.support import parrot, tiny_models
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program, wait_until

Run = Callable[..., Program]
TIMES = ("inference_time", "total_time", "processing_time", "worker_rank")


@pytest.fixture
def start(run: Run, tmp_path: Path) -> Callable[..., Program]:
    """Start `assay infer` on reserved ports, with the parrot package as its backend."""
    packages = parrot.write_package(tmp_path / "packages")
    ports = {name: str(free_port()) for name in ("ASSAY_PORT", "ASSAY_DEVELOPMENT_API_PORT")}
    environment = ports | {"ASSAY_NODE": "node1", "ASSAY_REDIS_URL": "", "PYTHONPATH": str(packages)}

    def start(*argv: str, output: str = "output.jsonl", backend: str = "parrot", **more: str) -> Program:
        return run(
            "python", "-m", "workers.up", "--run", "--", "assay", "infer", "--contexts_file", str(tmp_path / "c.jsonl"),
            "--output_file", str(tmp_path / output), "--inference_type", backend, *argv, **environment | more,
        )  # fmt: skip

    return start


def contexts(number: int) -> list[dict[str, Any]]:
    rows = [
        {"id": f"item_{n}", "original_item_id": n // 3, "query_index": n % 3, "query": f"question {n}",
         "context": "x" * n, "retrieval_time": 0.25}
        for n in range(number)
    ]  # fmt: skip
    rows[5]["query"] = "it will fail"
    rows[6] |= {"success": False, "error": "no document"}
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> list[dict[str, Any]]:
    """Read the rows without the fields that differ from run to run."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def undisturbed(rows: list[dict[str, Any]], is_mended: bool = False) -> list[dict[str, Any]]:
    """Return the expected output of a run without faults, without the fields that differ from run to run."""
    told = []
    for row in rows:
        keys = {name: row[name] for name in ("id", "original_item_id", "query_index")}
        wrong = ("Context generation failed: no document", "ContextFailed") if "error" in row else None
        if "fail" in row["query"] and not is_mended:
            wrong = ("Inference error: RuntimeError: the parrot is not well", "RuntimeError")
        if wrong:
            keys |= {"error": wrong[0], "exception_type": wrong[1], "inference_type": "parrot", "success": False}
        else:
            answer = f"{row['query'].upper()} ({len(row['context'])})"
            keys |= {"query": row["query"], "answer": answer, "retrieval_time": 0.25, "success": True}
        told.append(keys)
    return told


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_any_number_of_workers_gives_the_same_rows(start: Callable[..., Program], tmp_path: Path) -> None:
    write(tmp_path / "c.jsonl", contexts(120))
    told = []
    for workers in ("1", "3"):
        running = start("--num_workers", workers, "--cache", "off", output=f"output{workers}.jsonl")
        assert running.wait(2 * PATIENCE_S) == 1, "two rows failed"
        assert running.output.count("INFERENCE STATISTICS") == int(workers) + 1
        assert running.survivors() == []
        log = (tmp_path / "data" / "run.log").read_text()
        assert "run workers.processes.supervisor: device started, pid" in log
        assert "did not end in time" not in log
        told.append(read(tmp_path / f"output{workers}.jsonl"))
    assert told[0] == told[1] == undisturbed(contexts(120))


def test_a_model_in_a_directory_answers(start: Callable[..., Program], tmp_path: Path) -> None:
    write(tmp_path / "c.jsonl", contexts(30))
    model = tiny_models.write(tmp_path / "tiny")
    running = start("--model_path", str(model), "--max_new_tokens", "8", "--verbose", backend="local", NUM_WORKERS="2")
    assert running.wait(2 * PATIENCE_S) == 1, "a row has no context"
    told = read(tmp_path / "output.jsonl")
    assert [n for n, row in enumerate(told) if not row["success"]] == [6]
    assert all(row["answer"] for row in told if row["success"])
    assert "Tokens per second: " in running.output
    for path, said in (
        (tmp_path / "none", "no such directory"),
        (tmp_path, "not a model directory: it has neither config.json nor a .gguf file"),
    ):
        wrong = start("--model_path", str(path), backend="local")
        assert wrong.wait() == 2
        assert wrong.output == f"assay: {path}: {said}\n"


def test_ctrl_c_stops_every_process_and_a_second_run_does_the_rest(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    rows, out = contexts(200), tmp_path / "output.jsonl"
    write(tmp_path / "c.jsonl", rows)
    running = start(NUM_WORKERS="2", PARROT_S="0.3")
    wait_until(lambda: lines(out) >= 20, "some rows")
    assert running.stop(signal.SIGINT) == 130
    assert running.survivors() == []
    assert "the same command with --resume_from_existing runs the remaining rows" in running.output
    assert "Traceback" not in running.output
    before = out.read_bytes()
    assert 20 <= before.count(b"\n") < 200
    mended = tmp_path / "mended"
    mended.touch()
    journal = tmp_path / "journal"
    again = start("--resume_from_existing", PARROT_MENDED=str(mended), PARROT_JOURNAL=str(journal))
    assert again.wait(2 * PATIENCE_S) == 1, "one row has no context"
    kept = [line for line in before.splitlines() if json.loads(line)["success"]]
    assert f"{len(kept)} of 200 rows are answered" in again.output
    assert lines(journal) == 200 - len(kept) - 1, "no process of the first run was left to go on with it"
    after = out.read_bytes().splitlines()
    assert [line for line in after if line in kept] == kept, "byte for byte"
    assert read(out) == undisturbed(rows, is_mended=True)


def test_a_worker_that_is_killed_changes_no_row(start: Callable[..., Program], tmp_path: Path) -> None:
    out = tmp_path / "output.jsonl"
    write(tmp_path / "c.jsonl", contexts(200))
    running = start(NUM_WORKERS="2", PARROT_S="0.2")
    wait_until(lambda: lines(out) >= 10, "some rows")
    victims = [each for each in running.descendants() if is_device_child(each)]
    assert victims
    os.kill(victims[0].pid, signal.SIGKILL)
    assert running.wait(2 * PATIENCE_S) == 1
    assert read(out) == undisturbed(contexts(200))
    log = (tmp_path / "data" / "run.log").read_text()
    assert "this worker restarts" in log
    assert "did not end in time" not in log, "not even a worker that had just restarted"


def is_device_child(process: psutil.Process) -> bool:
    """Whether this is the child process that does the work of a device slot."""
    try:
        return {"workers.main", "device"} <= set(process.cmdline()) and not process.children()
    except psutil.NoSuchProcess:
        return False


def test_wrong_arguments_are_refused_before_a_process_is_started(start: Callable[..., Program], tmp_path: Path) -> None:
    missing = start()
    assert missing.wait() == 2
    assert missing.output == f"assay: {tmp_path}/c.jsonl: No such file or directory\n"
    write(tmp_path / "c.jsonl", contexts(7))
    wrong = start(NUM_WORKERS="four")
    assert wrong.wait() == 2
    assert wrong.output == "assay: NUM_WORKERS: must be an integer of at least 1 (it is 'four')\n"
    shown = start("--skip-inference", NUM_WORKERS="2", TOTAL_GPUS="4")
    assert shown.wait() == 0
    assert shown.output.startswith("7 rows, 2 workers, 4 GPUs\n")
    assert not (tmp_path / "data" / "run.log").exists()


def test_default_ports_that_are_taken_are_not_used(run: Run, start: Callable[..., Program], tmp_path: Path) -> None:
    write(tmp_path / "c.jsonl", contexts(10))
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 6006))
            taken.listen()
        except OSError:  # another program has the port already
            pass
        running = start(ASSAY_PORT="", ASSAY_DEVELOPMENT_API_PORT="")
        assert running.wait(2 * PATIENCE_S) == 1
    assert lines(tmp_path / "output.jsonl") == 10
    busy = run("python", "-m", "workers.up", "--run")
    assert busy.wait() == 78
    assert busy.output == "No command was given: python -m workers.up --run -- assay infer ...\n"


def test_a_large_file_with_a_small_limit_still_gets_its_answer(run: Run, redis_url: str, tmp_path: Path) -> None:
    packages = parrot.write_package(tmp_path / "packages")
    served = Served(run, redis_url, PYTHONPATH=str(packages))
    body = b"".join(
        json.dumps({"query": f"question {n}", "context": "x" * 1000}).encode() + b"\n" for n in range(30_000)
    )
    spec = quote(json.dumps({"backend": "parrot", "limit": 2}))
    path = f"/v1/jobs?kind=inference&spec={spec}"
    for length in (True, False):
        sent = body if length else (body[at : at + 100_000] for at in range(0, len(body), 100_000))
        status, job = served.ask("POST", path, sent, Content_Type="application/x-ndjson")
        assert (status, job["total"]) == (202, 2)
