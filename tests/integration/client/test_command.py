"""The `assay` command: its output, its files and its exit codes; and its behaviour after lost connections."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from assay.cli import exits
from assay.cli.main import main

from tests.conftest import ROOT
from tests.support.programs import PATIENCE_S, wait_until
from tests.support.wire_server import WireServer

ITEMS = [{"id": f"item-{n}", "x": n % 4, "fail": n == 3} for n in range(20)]
SCORE = ["--scorer", "numeric_match"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WireServer]:
    with WireServer() as server:
        monkeypatch.setenv("ASSAY_URL", server.url)
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "client/src"))
        yield server


@pytest.fixture
def items(tmp_path: Path) -> str:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    return str(path)


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def start(*argv: str, **more: object) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": _listen} | more
    return subprocess.Popen([sys.executable, "-m", "assay", *argv], **pipes)  # type: ignore[call-overload,no-any-return]


def _listen() -> None:
    """Restore the handling of Ctrl-C, which a shell disables for background processes, these tests included."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.usefixtures("server")
def test_score_waits_writes_the_rows_and_prints_the_mean(
    items: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "rows.jsonl"
    assert main(["score", items, *SCORE, "-o", str(output)]) == exits.FAILED, "an item failed"
    said = capsys.readouterr()
    assert "20 of 20 items, 19 ok, 1 failed" in said.out
    assert "mean score: 1.42105" in said.out
    assert said.err == "", "stderr stays empty without a terminal"
    assert [row["index"] for row in lines(output.read_text())] == list(range(20))
    assert list(tmp_path.glob("*.part")) == []


def test_score_reads_stdin_and_writes_rows_to_stdout(
    server: WireServer, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"id":"a","x":2}\n\n{"id":"b","x":4}\n')))
    assert main(["score", "-", "--scorer", "format:tags=think,answer:weight=0.5", "-o", "-"]) == exits.OK
    rows = lines(capsysbinary.readouterr().out.decode())
    assert [row["score"] for row in rows] == [2.0, 4.0]
    (seen,) = server.requests("POST /v1/jobs")
    assert json.loads(seen.query["spec"]) == {
        "scorers": [{"name": "format", "weight": 0.5, "options": {"tags": ["think", "answer"]}}]
    }


def test_submit_prints_only_the_id(server: WireServer, items: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = Path(items).with_name("spec.json")
    spec.write_text('{"cost_s": 0}')
    argv = ["submit", "simulated", items, "--spec", f"@{spec}", "--on-error", "0.5", "--metadata", '{"run": 1}']
    assert main([*argv, "--key", "k"]) == exits.OK
    assert main([*argv, "--key", "k"]) == exits.OK, "the same key returns the same job"
    assert capsys.readouterr().out == "job-0\njob-0\n"
    query = server.requests("POST /v1/jobs")[0].query
    assert (query["spec"], query["on_error"], query["metadata"]) == ('{"cost_s":0}', '{"fill":0.5}', '{"run":1}')


def test_status_watch_cancel_and_retry_show_and_change_jobs(
    server: WireServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.submit("simulated", ITEMS, "")
    server.held = True
    server.submit("simulated", ITEMS, "")
    assert main(["status"]) == exits.OK
    assert [line.split()[:4] for line in capsys.readouterr().out.splitlines()] == [
        ["job", "kind", "state", "items"],
        ["job-1", "simulated", "running", "0"],
        ["job-0", "simulated", "done", "20"],
    ]
    assert main(["status", "--state", "done", "--json"]) == exits.OK
    assert [job["id"] for job in json.loads(capsys.readouterr().out)] == ["job-0"]
    assert main(["status", "job-0"]) == exits.OK
    assert "failed: simulated 1" in capsys.readouterr().out
    assert main(["watch", "job-1", "--timeout", "0.1"]) == exits.TIMED_OUT
    assert "assay watch job-1" in capsys.readouterr().err
    assert main(["cancel", "job-1", "job-0", "--json"]) == exits.OK
    assert [job["state"] for job in json.loads(capsys.readouterr().out)] == ["cancelled", "done"]
    assert main(["watch", "job-1"]) == exits.FAILED
    assert main(["retry", "job-0", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["retried"] == 1


def test_pipes_and_links_are_written_to_and_never_replaced(server: WireServer, tmp_path: Path) -> None:
    server.submit("simulated", ITEMS, "")
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").touch()
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert main(["results", "job-0", "-o", str(pipe)]) == exits.FAILED
    assert pipe.is_fifo()
    reader.join(PATIENCE_S)
    assert [row["index"] for row in lines(read[0])] == list(range(20))
    assert main(["results", "job-0", "-o", str(link)]) == exits.FAILED
    assert link.is_symlink()
    assert (tmp_path / "rows.jsonl").read_text() == read[0]


def test_results_are_written_atomically_and_resumed(
    server: WireServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.submit("simulated", ITEMS, "")
    output = tmp_path / "rows.jsonl"
    output.write_text("of an earlier run")
    server.fault("GET /v1/jobs/job-0/results", "cut", rows=7)
    assert main(["results", "job-0", "-o", str(output), "--retry-for", "0"]) == exits.CONNECTION
    assert output.read_text() == "of an earlier run"
    with (part := next(tmp_path.glob("*.part"))).open("ab") as file:
        file.write(b'{"index": 7, "id"')  # an incomplete line, as after a power failure
    assert main(["results", "job-0", "-o", str(output)]) == exits.FAILED
    assert [row["index"] for row in lines(output.read_text())] == list(range(20))
    assert server.requests("GET /v1/jobs/job-0/results")[-1].query["start"] == "7"
    assert not part.exists()
    assert "assay watch job-0" in capsys.readouterr().err


def test_results_of_a_running_job_are_the_existing_rows(server: WireServer) -> None:
    server.held = True
    stored = server.submit("simulated", ITEMS, "")
    server.settle(stored, 2)
    run = subprocess.run([sys.executable, "-m", "assay", "results", "job-0", "--now"], capture_output=True, check=True)
    assert [row["index"] for row in lines(run.stdout.decode())] == [0, 1]


def test_a_calibration_is_printed_as_a_table_or_json(server: WireServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.submit("judge", ITEMS, "")
    server.calibration = {
        "total": 20,
        "n": 17,
        "pending": 0,
        "without_score": 1,
        "without_label": 0,
        "off_scale": 2,
        "agreement": 0.875,
        "kappa": None,
        "length": {"with_score": 0.25},
        "position": {"first_wins": 0.6, "verdicts": 30},
    }
    assert main(["calibration", "job-0"]) == exits.OK
    head, *table = capsys.readouterr().out.splitlines()
    assert head == "job-0 done: 17 of 20 items have score and label, 1 without score, 2 label not on the scale"
    shown = {line[:24].strip(): line[24:].split()[0] for line in table[1:]}
    assert (shown["agreement"], shown["kappa"], shown["length with_score"]) == ("0.875", "undefined", "0.250")
    assert shown["position first_wins"] == "0.600"
    assert main(["calibration", "job-0", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == {"job": "job-0", "state": "done"} | server.calibration
    server.calibration = {}
    assert main(["calibration", "job-0"]) == exits.REFUSED
    assert "No item of the job has a label" in capsys.readouterr().err


def test_queues_devices_and_workers_are_printed_as_tables_or_json(
    server: WireServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.lists["queues"] = [{"queue": "cpu", "waiting": 12, "workers": ["cpu.a.0"]}, {"queue": "api", "waiting": 0}]
    server.lists["devices"] = [{"queue": "gpu.a.0", "node": "a", "devices": ["0"], "state": "ready", "busy": True}]
    server.lists["workers"] = [{"name": "cpu.a.0", "pool": "cpu", "pid": 5, "state": "ready", "queues": ["cpu"]}]
    assert main(["queues"]) == exits.OK
    assert (
        capsys.readouterr().out == "queue  waiting  workers  state\ncpu         12        1\napi          0        0\n"
    )
    assert main(["devices"]) == main(["workers"]) == exits.OK
    assert "gpu.a.0" in capsys.readouterr().out
    assert main(["queues", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == server.lists["queues"]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["watch", "nobody"], exits.REFUSED, "There is no job 'nobody'"),
        (["submit", "nokind", "ITEMS"], exits.REFUSED, "There is no kind 'nokind'"),
        (["submit", "simulated", "nofile.jsonl"], exits.USAGE, "nofile.jsonl"),
        (["queues", "--url", "nonsense"], exits.USAGE, "is not a URL"),
        (["queues", "--url", "http://127.0.0.1:9"], exits.CONNECTION, "does not answer"),
    ],
)
def test_an_error_is_a_single_line_with_an_exit_code(
    items: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr("assay.cli.session.FIRST_CONTACT_S", 0.1)
    assert main([items if word == "ITEMS" else word for word in argv]) == code
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("scorer", ["", "format:tags", "format:=1", "{}", "{nonsense"])
def test_an_invalid_scorer_is_a_usage_error(scorer: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["score", "-", "--scorer", scorer])
    assert left.value.code == exits.USAGE
    assert "--scorer" in capsys.readouterr().err


# Interruptions and lost connections


def test_ctrl_c_cancels_nothing_and_prints_how_to_resume(server: WireServer) -> None:
    server.held = True
    server.submit("simulated", ITEMS, "")
    with start("watch", "job-0") as watching:
        wait_until(lambda: server.open_streams == 1, "it to watch")
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == exits.INTERRUPTED
    assert "Job job-0 keeps running; nothing was cancelled." in err
    assert "assay watch job-0" in err
    assert "assay cancel job-0" in err
    assert "Traceback" not in err
    assert out == ""
    assert server.jobs["job-0"].view["state"] == "running"
    assert not server.requests("DELETE ")


def test_ctrl_c_before_the_response_prints_the_idempotency_key(server: WireServer, items: str) -> None:
    server.fault("POST /v1/jobs", "503", times=1000, retry_after="1")
    with start("submit", "simulated", items) as sending:
        wait_until(lambda: server.requests("POST /v1/jobs"), "it to send")
        sending.send_signal(signal.SIGINT)
        _, err = sending.communicate(timeout=PATIENCE_S)
    assert sending.returncode == exits.INTERRUPTED
    assert f"--key {server.requests('POST /v1/jobs')[0].headers['idempotency-key']}" in err


def test_a_closed_pipe_prints_no_traceback(server: WireServer) -> None:
    server.submit("simulated", ITEMS * 5_000, "")
    with start("results", "job-0") as reading:
        assert reading.stdout is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr is not None
        assert reading.stderr.read() == ""
        assert reading.wait(PATIENCE_S) == exits.BROKEN_PIPE


def test_a_lost_connection_is_reported_and_retried(server: WireServer) -> None:
    server.held = True
    server.submit("simulated", ITEMS, "")
    server.fault("GET /v1/jobs/job-0", "503", times=3)
    with start("watch", "job-0") as watching:
        wait_until(lambda: server.open_streams == 1, "it to watch")
        server.release()
        out, err = watching.communicate(timeout=PATIENCE_S)
    assert "HTTP 503; retrying in" in err
    assert "job-0 done" in out


def test_without_a_terminal_only_the_end_is_printed(server: WireServer) -> None:
    server.held = True
    server.submit("simulated", ITEMS, "")
    with start("watch", "job-0") as watching:
        wait_until(lambda: server.open_streams == 1, "it to watch")
        server.release()
        out, err = watching.communicate(timeout=PATIENCE_S)
    assert (out.count("\n"), err) == (2, ""), "the end and the failure reasons, without progress"


# On a terminal


def on_a_terminal(*argv: str, **environment: str) -> str:
    """Run a command on a pseudo-terminal and return its output, stdout and stderr together."""
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                seen.extend(data)
        except OSError:  # Linux raises this when the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    process = start(*argv, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"} | environment)
    os.close(theirs)
    process.wait(PATIENCE_S)
    reader.join(PATIENCE_S)
    os.close(ours)
    return seen.decode()


def test_a_terminal_shows_a_progress_bar_and_colours_unless_no_color_is_set(server: WireServer) -> None:
    server.held = True
    server.submit("simulated", ITEMS, "")

    def release_when_watched() -> None:
        wait_until(lambda: server.open_streams, "the command watches the job")
        server.release()

    threading.Thread(target=release_when_watched).start()
    bar = on_a_terminal("watch", "job-0", NO_COLOR="1")
    assert "[####" in bar
    assert "20/20" in bar
    assert "\x1b[32m" in on_a_terminal("status")
    plain = on_a_terminal("status", NO_COLOR="1")
    assert "done" in plain
    assert "\x1b" not in plain
    table = on_a_terminal("results", "job-0", NO_COLOR="1")
    assert "item-3" in table
    assert "simulated: It was asked to fail." in table


def test_a_lost_connection_is_a_line_of_the_progress_view_until_it_is_back(server: WireServer) -> None:
    server.held = True
    server.settled_at_once = 7
    server.submit("simulated", ITEMS, "")

    def lose_when_watched() -> None:
        wait_until(lambda: server.open_streams, "the command watches the job")
        server.fault("GET /v1/jobs/job-0", "503", times=2)
        server.release()

    threading.Thread(target=lose_when_watched).start()
    seen = on_a_terminal("watch", "job-0", NO_COLOR="1")
    *drawn, left = seen.split("\x1b[J")
    assert sum("HTTP 503; retrying in" in each for each in drawn) == 2
    assert "7/20" in drawn[0]
    assert "failed: simulated 1" in drawn[0]
    assert "retrying in" not in left
    assert left.startswith("job-0 done: 20 of 20 items")


def test_bash_completes_commands_options_and_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == exits.OK
    (script := tmp_path / "completion").write_text(capsys.readouterr().out)

    def complete(*words: str) -> str:
        typed = " ".join(f"'{word}'" for word in words)
        code = f'. {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_assay; echo "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    assert complete("assay", "st") == "status"
    assert complete("assay", "score", "--sc") == "--scorer"
    assert complete("assay", "submit", "--priority", "b") == "bulk"
    assert complete("assay", "completion", "z") == "zsh"
    assert complete("assay", "submit", "judge", str(tmp_path / "comp")) == str(script)
    assert complete("assay", "results", "a-job", "-o", str(tmp_path / "comp")) == str(script)
    assert complete("assay", "doctor", "--checkout", str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_zsh_and_fish_scripts_have_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == exits.OK
    script = capsys.readouterr().out
    assert all(name in script for name in ("score", "watch", "doctor", "max-failed-share", "interactive"))
