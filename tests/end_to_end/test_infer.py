"""`assay infer` on a system of its own, as `make infer` runs it: real processes, started for it and gone with it."""

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

from tests import parrot, tiny_models
from tests.end_to_end.api import Served
from tests.programs import Program, wait_until
from workers.embedded_redis import free_port

Run = Callable[..., Program]
TIMES = ("inference_time", "total_time", "processing_time", "worker_rank")


@pytest.fixture
def start(run: Run, tmp_path: Path) -> Callable[..., Program]:
    """`assay infer` with the parrot for a model, on free ports."""
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
    """Rows without what differs from run to run."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def undisturbed(rows: list[dict[str, Any]], is_mended: bool = False) -> list[dict[str, Any]]:
    """What the parrot's output holds, but for what differs from run to run, when nothing goes wrong on the way."""
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
        assert running.wait() == 1, "two rows failed"
        assert running.output.count("INFERENCE STATISTICS") == int(workers) + 1
        assert running.survivors() == []
        log = (tmp_path / "data" / "run.log").read_text()
        assert "run workers.supervision: device started, pid" in log
        assert "did not end in time" not in log
        told.append(read(tmp_path / f"output{workers}.jsonl"))
    assert told[0] == told[1] == undisturbed(contexts(120))


def test_a_model_in_a_directory_answers(start: Callable[..., Program], tmp_path: Path) -> None:
    write(tmp_path / "c.jsonl", contexts(30))
    model = tiny_models.write(tmp_path / "tiny")
    running = start("--model_path", str(model), "--max_new_tokens", "8", "--verbose", backend="local", NUM_WORKERS="2")
    assert running.wait(120) == 1, "a row has no context"
    told = read(tmp_path / "output.jsonl")
    assert [n for n, row in enumerate(told) if not row["success"]] == [6]
    assert all(row["answer"] for row in told if row["success"])
    assert "Tokens per second: " in running.output
    for path, said in ((tmp_path / "none", "no such directory"), (tmp_path, "not a model: config.json missing")):
        wrong = start("--model_path", str(path), backend="local")
        assert wrong.wait() == 2
        assert wrong.output == f"assay: {path}: {said}\n"


def test_ctrl_c_stops_all_and_the_rest_is_done_later(start: Callable[..., Program], tmp_path: Path) -> None:
    rows, out = contexts(200), tmp_path / "output.jsonl"
    write(tmp_path / "c.jsonl", rows)
    running = start(NUM_WORKERS="2", PARROT_S="0.05")
    wait_until(lambda: lines(out) >= 20, "some rows")
    assert running.stop(signal.SIGINT) == 130
    assert running.survivors() == []
    assert "the same command with --resume_from_existing does the rest" in running.output
    assert "Traceback" not in running.output
    before = out.read_bytes()
    assert 20 <= before.count(b"\n") < 200
    mended = tmp_path / "mended"
    mended.touch()
    journal = tmp_path / "journal"
    again = start("--resume_from_existing", PARROT_MENDED=str(mended), PARROT_JOURNAL=str(journal))
    assert again.wait() == 1, "one row has no context"
    kept = [line for line in before.splitlines() if json.loads(line)["success"]]
    assert f"{len(kept)} of 200 rows are answered" in again.output
    assert lines(journal) == 200 - len(kept) - 1, "nothing was left of the first run that would have gone on"
    after = out.read_bytes().splitlines()
    assert [line for line in after if line in kept] == kept, "byte for byte"
    assert read(out) == undisturbed(rows, is_mended=True)


def test_a_worker_that_is_killed_changes_no_row(start: Callable[..., Program], tmp_path: Path) -> None:
    out = tmp_path / "output.jsonl"
    write(tmp_path / "c.jsonl", contexts(200))
    running = start(NUM_WORKERS="2", PARROT_S="0.03")
    wait_until(lambda: lines(out) >= 10, "some rows")
    victims = [each for each in running.descendants() if is_device_child(each)]
    assert victims
    os.kill(victims[0].pid, signal.SIGKILL)
    assert running.wait() == 1
    assert read(out) == undisturbed(contexts(200))
    log = (tmp_path / "data" / "run.log").read_text()
    assert "this worker starts anew" in log
    assert "did not end in time" not in log, "also one that had just been started again"


def is_device_child(process: psutil.Process) -> bool:
    """The process that does the work of a device slot."""
    try:
        return {"workers.main", "device"} <= set(process.cmdline()) and not process.children()
    except psutil.NoSuchProcess:
        return False


def test_what_is_wrong_is_said_before_anything_is_started(start: Callable[..., Program], tmp_path: Path) -> None:
    missing = start()
    assert missing.wait() == 2
    assert missing.output == f"assay: {tmp_path}/c.jsonl: No such file or directory\n"
    write(tmp_path / "c.jsonl", contexts(7))
    wrong = start(NUM_WORKERS="four")
    assert wrong.wait() == 2
    assert wrong.output == "assay: NUM_WORKERS: must be a whole number from 1 on (it is 'four')\n"
    shown = start("--skip-inference", NUM_WORKERS="2", TOTAL_GPUS="4")
    assert shown.wait() == 0
    assert shown.output.startswith("7 rows, 2 workers, 4 GPUs\n")
    assert not (tmp_path / "data" / "run.log").exists()


def test_usual_ports_that_are_taken_are_not_used(run: Run, start: Callable[..., Program], tmp_path: Path) -> None:
    write(tmp_path / "c.jsonl", contexts(10))
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 6006))
            taken.listen()
        except OSError:  # somebody else has it: all the better
            pass
        running = start(ASSAY_PORT="", ASSAY_DEVELOPMENT_API_PORT="")
        assert running.wait() == 1
    assert lines(tmp_path / "output.jsonl") == 10
    busy = run("python", "-m", "workers.up", "--run")
    assert busy.wait() == 78
    assert busy.output == "There is no command: python -m workers.up --run -- assay infer ...\n"


def test_a_large_file_of_which_little_is_wanted_still_gets_its_answer(run: Run, redis_url: str, tmp_path: Path) -> None:
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
