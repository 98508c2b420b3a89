"""The real Flower beside real workers: its API shows tasks without payload, asks for a login, and refuses commands."""

import json
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

from tests.end_to_end.system import System
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, wait_until
from workers.processes.flower import AUTH_FILE

#: Stands in the item and the metadata of the job, which a message does not carry.
PAYLOAD = "a-prompt-nobody-else-may-read"


def ask(port: int, path: str, auth: str = "", method: str = "GET") -> tuple[int, str]:
    headers = {"Authorization": f"Basic {b64encode(auth.encode()).decode()}"} if auth else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return int(reply.status), reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError:
        return 0, ""


def test_flower_names_job_and_chunk_shows_no_payload_asks_for_a_login_and_refuses_commands(
    system: System, tmp_path: Path
) -> None:
    port, tokens, data = free_port(), tmp_path / "tokens.jsonl", tmp_path / "flower"
    tokens.write_text("")
    flower = system.launch(
        "flower", ASSAY_FLOWER_PORT=str(port), ASSAY_TOKENS_FILE=str(tokens), ASSAY_DATA_DIR=str(data),
        ASSAY_LOG_FORMAT="json",
    )  # fmt: skip
    flower.wait_for(rf"Flower asks for the user and password in {data / AUTH_FILE}")
    wait_until(lambda: ask(port, "/healthcheck")[0] == 200, "Flower answers")
    auth = (data / AUTH_FILE).read_text().strip()
    assert (data / AUTH_FILE).stat().st_mode & 0o777 == 0o600
    assert auth not in flower.output

    jobs: list[str] = []
    seen = {"tasks": ""}

    def has_chunk() -> bool:
        # Flower answers HTTP before it receives events, and earlier events are lost: so submit a job for every poll.
        jobs.append(system.submit({"x": len(jobs), "id": PAYLOAD}, metadata={"note": PAYLOAD}))
        system.finish(jobs[-1])
        seen["tasks"] = ask(port, "/api/tasks", auth)[1]
        return any(job in seen["tasks"] for job in jobs)

    wait_until(has_chunk, "Flower has heard of a chunk")
    # Flower knows only the id of a task whose first event was lost.
    tasks = [task for task in json.loads(seen["tasks"]).values() if task["name"]]
    assert {task["name"] for task in tasks} <= {"assay.chunk", "assay.probe", "assay.follow"}
    own, job = next((task, job) for task in tasks for job in jobs if job in str(task["kwargs"]))
    assert own["name"] == "assay.chunk"
    assert own["kwargs"] == f"{{'job_id': '{job}', 'chunk': '{job}.{own['kwargs'].rpartition('.')[2][:-2]}'}}"
    assert own["args"] in ("()", "[]")
    pages = ("/", "/workers", "/tasks", "/broker", f"/task/{own['uuid']}", "/api/workers?refresh=1", "/metrics")
    shown = {path: ask(port, path, auth) for path in pages} | {"/api/tasks": (200, seen["tasks"])}
    assert all(status == 200 and text for status, text in shown.values()), shown
    assert not [path for path, (_, text) in shown.items() if PAYLOAD in text or auth.partition(":")[2] in text]

    assert ask(port, "/api/tasks")[0] == ask(port, "/workers", "assay:wrong")[0] == 401
    worker = next(iter(json.loads(ask(port, "/api/workers", auth)[1])))
    for path in (
        f"/api/worker/shutdown/{worker}",
        "/api/task/async-apply/assay.chunk",
        "/api/task/send-task/assay.chunk",
    ):
        assert ask(port, path, auth, "POST")[0] == 403, path
    assert all(each.state == "ready" for each in system.core.registry.workers())
    assert {json.loads(line)["process"] for line in flower.output.splitlines()} == {"flower-launcher", "flower"}
