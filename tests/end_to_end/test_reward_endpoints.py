"""Trainers against the real web process: their request loops, many at once, and a bearer token that no log shows."""

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tests.conftest import ROOT
from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support.programs import PATIENCE_S, Program, wait_until

REWARDS = '[rewards.number]\nfill = -1.0\n[rewards.number.spec]\nscorers = [{name = "numeric_match"}]\n'

Pause = Callable[[], Awaitable[None]]


@pytest.fixture
def rewards(tmp_path: Path) -> str:
    path = tmp_path / "rewards.toml"
    path.write_text(REWARDS)
    return str(path)


async def one_second() -> None:
    await asyncio.sleep(1)


class OpenRLHF:
    """The request loop of OpenRLHF.

    Each sample is a request, split over the URLs, so that only the first URL gets a non-empty list. It makes five tries
    of 180 s each, with a pause of a second after a failure. The run fails if the answer is not a number.
    """

    def __init__(self, *urls: str, pause: Pause = one_second) -> None:
        self.urls, self.pause = urls, pause
        self.answers: list[dict[str, Any]] = []
        self.failures: list[int] = []

    async def reward(self, prompt: str, response: str, label: Any) -> float:
        each = -(-1 // len(self.urls))
        parts = [slice(index * each, (index + 1) * each) for index in range(len(self.urls))]
        lists = {"query": [prompt + response], "prompts": [prompt], "labels": [label]}
        bodies = [{name: values[part] for name, values in lists.items()} for part in parts]
        replies = await asyncio.gather(*(self._post(url, body) for url, body in zip(self.urls, bodies, strict=True)))
        self.answers += replies
        (number,) = replies[0]["rewards"]
        assert isinstance(number, float)
        return number

    async def _post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        for _ in range(5):
            limit = aiohttp.ClientTimeout(total=180)
            async with aiohttp.ClientSession(timeout=limit) as session, session.post(url, json=body) as reply:
                if reply.ok:
                    answer: dict[str, Any] = await reply.json()
                    return answer
                self.failures.append(reply.status)
            await self.pause()
        raise RuntimeError("the run fails")


async def slime(session: aiohttp.ClientSession, url: str, sample: dict[str, Any]) -> Any:
    """The request loop of slime: a sample per request over 64 connections, ten tries of 120 s each."""
    for attempt in range(10):
        async with session.post(url, json=sample) as reply:
            if reply.ok:
                return await reply.json()
        await asyncio.sleep(min(2**attempt, 30))
    raise RuntimeError("the run fails")


def test_openrlhf_is_rewarded_sample_by_sample(run: Callable[..., Program], system: System, rewards: str) -> None:
    served = Served(run, system.state.url, ASSAY_CACHE_URL=system.cache.url, ASSAY_REWARDS_FILE=rewards)
    url = f"http://127.0.0.1:{served.port}/get_reward"
    trainer = OpenRLHF(url, url, url)

    async def step() -> list[float]:
        samples = [(f"What is {n}?", f"It is {n}.<|im_end|>", (str(n), n + 1, None)[n % 3]) for n in range(32)]
        return await asyncio.gather(*(trainer.reward(*sample) for sample in samples))

    assert asyncio.run(step()) == [(1.0, 0.0, -1.0)[n % 3] for n in range(32)]
    assert trainer.failures == []
    assert len(trainer.answers) == 96
    assert {frozenset(answer["extra_logs"]) for answer in trainer.answers} == {frozenset({"numeric_match", "valid"})}
    assert sum(answer["rewards"] == [] for answer in trainer.answers) == 64


def test_openrlhf_tries_again_when_every_seat_is_taken(
    run: Callable[..., Program], system: System, rewards: str
) -> None:
    served = Served(
        run, system.state.url, ASSAY_CACHE_URL=system.cache.url, ASSAY_REWARDS_FILE=rewards, ASSAY_WEB_THREADS="8"
    )
    system.core.pause_queue("cpu")
    held = served.submit({"response": "5"}, kind="score", spec={"scorers": [{"name": "numeric_match"}]})
    streams = [served.watch(held) for _ in range(7)]

    async def leave() -> None:
        for stream in streams:
            stream.close()
        streams.clear()
        system.core.resume_queue("cpu")
        await asyncio.to_thread(wait_until, has_room, "a long request is released")

    def has_room() -> bool:
        """Whether a waiting request is served. Unlike a stream, it ends with its answer."""
        sample = {"prompt": "2+3?", "response": "5", "label": "5"}
        return httpx.post(f"http://127.0.0.1:{served.port}/rm", json=sample, timeout=PATIENCE_S).status_code == 200

    trainer = OpenRLHF(f"http://127.0.0.1:{served.port}/get_reward", pause=leave)
    assert asyncio.run(trainer.reward("2+3?", "5", "5")) == 1.0
    assert set(trainer.failures) == {503}


def test_slime_is_rewarded_by_number_or_by_key(run: Callable[..., Program], system: System, rewards: str) -> None:
    served = Served(run, system.state.url, ASSAY_CACHE_URL=system.cache.url, ASSAY_REWARDS_FILE=rewards)
    url = f"http://127.0.0.1:{served.port}/rm"

    async def step() -> tuple[list[Any], list[Any]]:
        samples = [
            {"prompt": [{"role": "user", "content": f"{n}?"}], "response": f"It is {n}.<|im_end|>", "label": label}
            for n in range(32)
            for label in [(str(n), str(n + 1), None)[n % 3]]
        ]
        connector = aiohttp.TCPConnector(limit=64)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
            numbers = await asyncio.gather(*(slime(session, url, sample) for sample in samples))
            objects = await asyncio.gather(*(slime(session, f"{url}?detail=true", sample) for sample in samples))
        return numbers, objects

    numbers, objects = asyncio.run(step())
    assert numbers == [each["score"] for each in objects] == [(1.0, 0.0, -1.0)[n % 3] for n in range(32)]
    assert [each["valid"] for each in objects] == [n % 3 != 2 for n in range(32)]


@pytest.mark.skipif(not shutil.which("curl"), reason="the guide's commands are curl's")
def test_the_commands_of_the_guide_answer_as_documented(
    run: Callable[..., Program], system: System, tmp_path: Path
) -> None:
    guide = (ROOT / "docs/rewards.md").read_text()
    path = tmp_path / "rewards.toml"
    blocks = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", guide)
    path.write_text(next(text for language, text in blocks if language == "toml"))
    served = Served(run, system.state.url, ASSAY_CACHE_URL=system.cache.url, ASSAY_REWARDS_FILE=str(path))
    commands = "\n".join(text for language, text in blocks if not language)
    script = 'curl() { command curl --silent --fail --max-time 150 "$@"; echo; }\n' + commands
    environment = os.environ | {"API": f"http://127.0.0.1:{served.port}"}
    ended = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    listed, openrlhf, number, detail, verified = map(json.loads, ended.stdout.splitlines())
    said = [json.loads(text) for language, text in blocks if language == "json"]
    assert [openrlhf, detail] == said
    assert [each["name"] for each in listed["rewards"]] == ["number", "strict"]
    assert (number, verified["reward"], verified["mask_sample"]) == (1.0, 1.0, False)


def test_two_hundred_at_once_each_get_their_own_answer(
    run: Callable[..., Program], system: System, rewards: str
) -> None:
    served = Served(run, system.state.url, ASSAY_CACHE_URL=system.cache.url, ASSAY_REWARDS_FILE=rewards)
    trainer = OpenRLHF(f"http://127.0.0.1:{served.port}/get_reward")

    async def step() -> list[float]:
        return await asyncio.gather(*(trainer.reward(f"{n}?", f"It is {n}.", str(n + n % 2)) for n in range(200)))

    assert asyncio.run(step()) == [1.0 - n % 2 for n in range(200)]
    assert trainer.failures == [], "280 long requests fit"


def test_the_job_of_a_trainer_that_disconnects_is_cancelled(
    run: Callable[..., Program], redis_url: str, rewards: str
) -> None:
    served = Served(run, redis_url, ASSAY_REWARDS_FILE=rewards)
    body = json.dumps({"response": "5", "label": "5"}).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        head = f"POST /rm HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_until(lambda: states(served) == ["queued"], "the job is queued")
    wait_until(lambda: states(served) == ["cancelled"], "the job is cancelled")


def test_a_stop_sends_waiting_trainers_away_with_503(run: Callable[..., Program], redis_url: str, rewards: str) -> None:
    served = Served(run, redis_url, ASSAY_REWARDS_FILE=rewards)
    answers: list[tuple[int, Any]] = []
    asked = threading.Thread(target=lambda: answers.append(served.ask("POST", "/rm", {"response": "5"})))
    asked.start()
    wait_until(lambda: states(served) == ["queued"], "the job is queued")
    assert served.program.stop(signal.SIGTERM) == 0
    asked.join()
    assert answers[0][0] == 503
    assert "try again" in answers[0][1]["detail"]


def states(served: Served) -> list[str]:
    return [job["state"] for job in served.ask("GET", "/v1/jobs")[1]["jobs"]]


def test_a_token_in_a_url_is_in_no_line_of_any_log(
    run: Callable[..., Program], redis_url: str, rewards: str, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.jsonl"
    made = run("python", "-m", "web.tokens", "add", "trainer", ASSAY_TOKENS_FILE=str(tokens))
    assert made.wait() == 0
    secret = made.output.split()[0]
    served = Served(
        run, redis_url, ASSAY_REWARDS_FILE=rewards, ASSAY_TOKENS_FILE=str(tokens), ASSAY_MAX_WAIT_S="0.1",
        ASSAY_LOG_LEVEL="DEBUG", GUNICORN_CMD_ARGS="--access-logfile - --log-level debug",
    )  # fmt: skip
    encoded = base64.b64encode(f"{secret}:".encode()).decode()
    sample = {"response": "5", "label": "5"}
    assert served.ask("POST", f"/rm?reward=number&token={secret}", sample) == (200, -1.0)
    assert served.ask("POST", "/rm", sample, Authorization=f"Basic {encoded}") == (200, -1.0)
    url = f"http://{secret}@127.0.0.1:{served.port}/get_reward"
    assert asyncio.run(OpenRLHF(url).reward("2+3?", "5", "5")) == -1.0
    answers = [
        served.ask("POST", f"/rm?token={secret}x", sample),
        served.ask("POST", f"/rm?token={secret}&spec={secret}", sample, Referer=f"http://here/rm?token={secret}"),
        served.ask("GET", f"/rm?token={secret}"),
        served.ask("GET", f"/nothing?token={secret}"),
        served.ask("POST", f"/rm?token={secret}", b"{", Content_Type="application/json"),
    ]
    assert [status for status, _ in answers] == [401, 422, 405, 401, 400]
    assert secret not in str(answers)
    # A request that is no HTTP: gunicorn itself answers and logs it.
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(f"POST /rm?token={secret}\r\n\r\n".encode())
        assert b" 400 " in client.recv(4096).partition(b"\r\n")[0]
    served.program.wait_for("Invalid request from ip=")
    served.program.wait_for(r'"POST /rm HTTP/1.1" 200')
    log = served.program.output
    assert "token=***" in log
    assert secret not in log
    assert encoded not in log


def test_a_mistake_in_the_rewards_file_stops_the_start_with_its_position(
    run: Callable[..., Program], redis_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "rewards.toml"
    path.write_text(REWARDS.replace("numeric_match", "numeric_mach"))
    program = run(
        "gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app",
        ASSAY_REDIS_URL=redis_url, ASSAY_REWARDS_FILE=str(path),
    )  # fmt: skip
    assert program.wait() == 78
    (line,) = program.output.splitlines()
    assert line.startswith("reward number: spec.scorers[0].name: unknown scorer 'numeric_mach'")
