"""Judging without the server: the chat API is called from here, by a few threads that end with their batch.

No cache, no limits but the number of calls in flight, no memory of failures. A call is made again after 429, 5xx and a
lost connection; equal questions of a batch are asked once.
"""

from __future__ import annotations

import json
import logging
import queue
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import httpx

from assay.retry import Retry, retry_after_s
from assay.rewards.judge_profile import host_of
from assay.rewards.judge_prompt import SCALE, judge_messages
from assay.rewards.length_penalty_config import LengthPenaltyConfig
from assay.rewards.question import Answer, Question
from assay.rewards.verdict import read_verdict
from assay.steps import Reply

log = logging.getLogger(__name__)

CHAT_PATH = "/chat/completions"
#: Seconds that one try may take, and to connect.
CALL_S, CONNECT_S = 60.0, 10.0
#: How long one call is tried again for. Being told to slow down counts too: nobody else can answer.
RETRY = Retry(give_up_after_s=120.0, first_delay_s=0.5, max_delay_s=10.0)
#: Tokens of a reply at most, as the server has it.
MAX_TOKENS = 1024


class Unanswered(Exception):
    """One question got no verdict; the message says why, without a word that could hold a key."""


class DirectJudge:
    def __init__(self, config: LengthPenaltyConfig) -> None:
        self._config = config
        self._url = completions_url(config.api_endpoint)
        self._host = host_of(config.api_endpoint)
        self._stopped = threading.Event()
        self._answers: queue.SimpleQueue[tuple[list[Question], Answer] | None] = queue.SimpleQueue()
        """None when there will be no more."""

    def judge(
        self,
        questions: Sequence[Question],
        deadline: float,
        keep: Callable[[int, Answer], None],
        report: Callable[[int], None],
    ) -> None:
        """Hands every answer to `keep` as it comes, and returns with the last one, at the deadline, or when stopped."""
        alike: dict[str, list[Question]] = {}
        for question in questions:
            alike.setdefault(question.request_hash(self._config), []).append(question)
        waiting: queue.SimpleQueue[list[Question]] = queue.SimpleQueue()
        for group in alike.values():
            waiting.put(group)

        trusted = httpx.create_ssl_context()  # 20 ms of the trainer's CPU: once, not in every thread

        def work() -> None:
            with httpx.Client(headers=self._headers, verify=trusted) as http:
                while not self._stopped.is_set():
                    try:
                        group = waiting.get_nowait()
                    except queue.Empty:
                        return
                    answer = self._answer(http, group[0], deadline)
                    if time.monotonic() < deadline:  # else nobody waits for it any more
                        self._answers.put((group, answer))

        # Daemons: an API that never ends its answer must not keep the trainer from ending.
        for number in range(min(self._config.num_async_workers, len(alike))):
            threading.Thread(target=work, name=f"assay-judge-{number}", daemon=True).start()
        settled = 0
        for _ in alike:
            try:
                answered = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                answered = None
            if answered is None:
                self._stopped.set()
                return
            group, answer = answered
            for question in group:
                keep(question.index, answer)
            settled += len(group)
            report(settled)

    def stop(self) -> None:
        """Give up what is under way. May be called from another thread."""
        self._stopped.set()
        self._answers.put(None)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._config.api_key}", "Content-Type": "application/json"}

    def _answer(self, http: httpx.Client, question: Question, deadline: float) -> Answer:
        try:
            return Answer(judge_score=float(self._ask(http, question, deadline)))
        except Unanswered as error:
            return Answer(error=str(error))

    def _ask(self, http: httpx.Client, question: Question, deadline: float) -> int:
        body = {
            "model": self._config.model_name,
            "messages": judge_messages(question.prompt, question.response),
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        began, attempt = time.monotonic(), 0
        while True:
            asked_s = None
            try:
                reply = self._post(http, body, deadline)
            except httpx.RequestError as error:
                failed = f"{self._host} does not answer ({type(error).__name__})"
            else:
                if reply.status == 200:
                    return _verdict(reply)
                failed = f"{self._host} answered with {reply.status}"
                if reply.status not in (408, 409, 429) and reply.status < 500:
                    raise Unanswered(failed)
                asked_s = retry_after_s(reply)
            now = time.monotonic()
            delay_s = RETRY.delay_s(attempt, now - began, asked_s, random.random())
            if delay_s is None or now + delay_s >= deadline or self._stopped.wait(delay_s):
                raise Unanswered(failed)
            attempt += 1

    def _post(self, http: httpx.Client, body: Mapping[str, Any], deadline: float) -> Reply:
        """One try. Its time is over when it is over, however slowly bytes still drip in."""
        ends = min(time.monotonic() + CALL_S, deadline)
        timeout = httpx.Timeout(max(0.01, ends - time.monotonic()), connect=CONNECT_S)
        with http.stream("POST", self._url, content=json.dumps(body), timeout=timeout) as response:
            content = b""
            for data in response.iter_bytes():
                content += data
                if time.monotonic() > ends:
                    raise httpx.ReadTimeout("the answer does not end")
            return Reply(response.status_code, dict(response.headers), content)


def completions_url(endpoint: str) -> str:
    base = endpoint.strip().rstrip("/")
    base = base if "//" in base else f"https://{base}"  # as `host_of` has it
    return base if base.endswith(CHAT_PATH) else base + CHAT_PATH


def _verdict(reply: Reply) -> int:
    try:
        choice = json.loads(reply.content)["choices"][0]
        text, finish = choice["message"].get("content"), choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Unanswered("the answer is no chat completion") from None
    if finish in ("length", "content_filter"):
        raise Unanswered(f"the judge's reply was cut off ({finish})")
    verdict = read_verdict(text, *SCALE) if isinstance(text, str) else None
    if verdict is None:
        raise Unanswered("no verdict could be read in the judge's reply")
    return verdict
