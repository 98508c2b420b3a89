"""Judge without the server: daemon threads of the trainer's process call the chat API, and end with their batch.

It has no cache and no limits except the number of calls in flight, and it does not remember failures. A call is retried
after 429, 5xx and a lost connection; equal questions of a batch are sent only once.
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
from assay.rewards.length_penalty.config import LengthPenaltyConfig
from assay.rewards.length_penalty.judge_profile import host_of
from assay.rewards.length_penalty.judge_prompt import SCALE, judge_messages
from assay.rewards.length_penalty.question import Answer, Question
from assay.rewards.length_penalty.verdict import read_verdict
from assay.steps import Reply

log = logging.getLogger(__name__)

CHAT_PATH = "/chat/completions"
#: Timeouts in seconds of an attempt, and of connecting.
CALL_TIMEOUT_S, CONNECT_TIMEOUT_S = 60.0, 10.0
#: Retry policy of a call. Rate-limit responses count against it too, as no other API can answer instead.
RETRY = Retry(give_up_after_s=120.0, first_delay_s=0.5, max_delay_s=10.0)
#: Maximum number of tokens of a judge's reply, equal to the server's limit.
MAX_TOKENS = 1024


class JudgeCallFailed(Exception):
    """A question got no verdict. The message gives the cause, and never contains text that could hold an API key."""


class DirectJudge:
    def __init__(self, config: LengthPenaltyConfig) -> None:
        self._config = config
        self._url = completions_url(config.api_endpoint)
        self._host = host_of(config.api_endpoint)
        self._stopped = threading.Event()
        self._answers: queue.SimpleQueue[tuple[list[Question], Answer] | None] = queue.SimpleQueue()
        """Answers in order of arrival; None means that no answer follows."""

    def judge(
        self,
        questions: Sequence[Question],
        deadline: float,
        store: Callable[[int, Answer], None],
        report_progress: Callable[[int], None],
    ) -> None:
        """Call `store` with each answer as it arrives; return after the last answer, at the deadline or on `stop`."""
        by_hash: dict[str, list[Question]] = {}
        for question in questions:
            by_hash.setdefault(question.request_hash(self._config), []).append(question)
        pending: queue.SimpleQueue[list[Question]] = queue.SimpleQueue()
        for group in by_hash.values():
            pending.put(group)

        ssl_context = httpx.create_ssl_context()  # takes 20 ms of the trainer's CPU, so it is shared by the threads

        def work() -> None:
            with httpx.Client(headers=self._headers, verify=ssl_context) as http:
                while not self._stopped.is_set():
                    try:
                        group = pending.get_nowait()
                    except queue.Empty:
                        return
                    answer = self._answer(http, group[0], deadline)
                    if time.monotonic() < deadline:  # after the deadline the batch ignores answers
                        self._answers.put((group, answer))

        # Daemon threads: an API that never completes its response must not prevent the trainer from exiting.
        for number in range(min(self._config.num_async_workers, len(by_hash))):
            threading.Thread(target=work, name=f"assay-judge-{number}", daemon=True).start()
        settled = 0
        for _ in by_hash:
            try:
                answered = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                answered = None
            if answered is None:
                self._stopped.set()
                return
            group, answer = answered
            for question in group:
                store(question.index, answer)
            settled += len(group)
            report_progress(settled)

    def stop(self) -> None:
        """Abandon the calls in flight. Thread-safe."""
        self._stopped.set()
        self._answers.put(None)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._config.api_key}", "Content-Type": "application/json"}

    def _answer(self, http: httpx.Client, question: Question, deadline: float) -> Answer:
        try:
            return Answer(judge_score=float(self._ask(http, question, deadline)))
        except JudgeCallFailed as error:
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
                failed = f"{self._host} does not respond ({type(error).__name__})"
            else:
                if reply.status == 200:
                    return _verdict(reply)
                failed = f"{self._host} responded with HTTP {reply.status}"
                if reply.status not in (408, 409, 429) and reply.status < 500:
                    raise JudgeCallFailed(failed)
                asked_s = retry_after_s(reply)
            now = time.monotonic()
            delay_s = RETRY.delay_s(attempt, now - began, asked_s, random.random())
            if delay_s is None or now + delay_s >= deadline or self._stopped.wait(delay_s):
                raise JudgeCallFailed(failed)
            attempt += 1

    def _post(self, http: httpx.Client, body: Mapping[str, Any], deadline: float) -> Reply:
        """Make an attempt with a total timeout, which also ends a response that arrives slowly but never pauses."""
        ends = min(time.monotonic() + CALL_TIMEOUT_S, deadline)
        timeout = httpx.Timeout(max(0.01, ends - time.monotonic()), connect=CONNECT_TIMEOUT_S)
        with http.stream("POST", self._url, content=json.dumps(body), timeout=timeout) as response:
            content = b""
            for data in response.iter_bytes():
                content += data
                if time.monotonic() > ends:
                    raise httpx.ReadTimeout("the response did not end within the timeout")
            return Reply(response.status_code, dict(response.headers), content)


def completions_url(endpoint: str) -> str:
    base = endpoint.strip().rstrip("/")
    base = base if "//" in base else f"https://{base}"  # the same default scheme as in `host_of`
    return base if base.endswith(CHAT_PATH) else base + CHAT_PATH


def _verdict(reply: Reply) -> int:
    try:
        choice = json.loads(reply.content)["choices"][0]
        text, finish = choice["message"].get("content"), choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise JudgeCallFailed("the response is not a chat completion") from None
    if finish in ("length", "content_filter"):
        raise JudgeCallFailed(f"the judge's reply was cut off ({finish})")
    verdict = read_verdict(text, *SCALE) if isinstance(text, str) else None
    if verdict is None:
        raise JudgeCallFailed("the judge's reply contains no valid verdict")
    return verdict
