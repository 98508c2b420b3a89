"""HTTP client of a profile: sends a single try of a call through an `AsyncOpenAI` with its own connections.

The SDK's retries are off, because `api_calls.py` retries. The SDK's parsing of responses into models is bypassed,
because it costs CPU and nothing here needs the models.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import httpx2
import openai
from openai import AsyncOpenAI, DefaultAioHttpClient, Omit

from config.profiles import CHAT_PATH, Profile, read_key
from tasks.providers.call import ApiReply
from tasks.providers.chat import NotACompletion, read_reply
from tasks.providers.redaction import scrub
from tasks.providers.retry import Failure, classify, exhausted_for_s

#: Maximum connections of a profile: above any limit of calls in flight.
MOST_CONNECTIONS = 10_000
#: Seconds an idle connection is kept open.
KEEP_ALIVE_S = 30.0
#: Maximum seconds to connect: an unreachable host times out sooner than a slow answer.
CONNECT_S = 10.0


class TryFailed(Exception):
    """A try of a call failed; `failure` holds its kind and message."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Answered:
    reply: ApiReply
    exhausted_for_s: float
    """Seconds until the rate limit resets, if the API reported it as exhausted; else 0."""


class ApiClient:
    """Client of a profile, with its own connections, on a single asyncio loop."""

    def __init__(self, profile: Profile, environment: Mapping[str, str] = os.environ) -> None:
        """Raises SettingsError when the key that the profile names is missing."""
        key = read_key(profile, environment)
        secret = key.get_secret_value() if key else ""
        self._profile = profile
        self._secrets = tuple(filter(None, (secret, *profile.headers.values())))
        self._client = AsyncOpenAI(
            api_key=secret or "none",
            base_url=profile.base_url,
            max_retries=0,
            http_client=DefaultAioHttpClient(
                limits=httpx2.Limits(max_connections=MOST_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S),
                # A redirect would send prompts, and perhaps the key, to a host that no setting names.
                follow_redirects=False,
            ),
        )
        # The SDK reads these from OpenAI's environment variables; other endpoints must not receive them.
        self._client.organization = self._client.project = self._client.admin_api_key = None
        self._client._custom_headers = dict(profile.headers)
        # The SDK parses the URL for each request, which takes a tenth of the CPU time of a call. There is one URL.
        self._client._prepare_url = cache(self._client._prepare_url)  # type: ignore[method-assign]
        self._headers: dict[str, str | Omit] = {} if secret else {"Authorization": Omit()}

    async def ask(self, body: dict[str, Any], timeout_s: float) -> Answered:
        """Send a try and return its reply. Raises TryFailed."""
        timeout = httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            async with asyncio.timeout(timeout_s):  # the transport's own timeout restarts with every byte
                response = await self._client.post(
                    CHAT_PATH,
                    cast_to=httpx2.Response,
                    body=body,
                    # The SDK does not send the key, but would make a random one for each request.
                    options={"timeout": timeout, "headers": self._headers, "idempotency_key": "-"},
                )
            return self._read(response, body)
        except openai.APIStatusError as error:
            text, code = _message_and_code(error.body, error.message)
            message = f"{error.status_code}: {self._scrubbed(text)}"
            failure = classify(error.status_code, code, message, error.response.headers, body)
            raise TryFailed(failure) from None  # the cause's request holds the key
        except (openai.APIConnectionError, TimeoutError) as error:
            raise TryFailed(self._unanswered(error, timeout_s)) from None

    async def close(self) -> None:
        await self._client.close()

    def _read(self, response: httpx2.Response, body: Mapping[str, object]) -> Answered:
        try:
            reply = read_reply(response.content)
        except NotACompletion as error:
            raise TryFailed(self._misread(response, str(error), body)) from None
        return Answered(replace(reply, used_schema="response_format" in body), exhausted_for_s(response.headers))

    def _misread(self, response: httpx2.Response, reason: str, body: Mapping[str, object]) -> Failure:
        """Classify a response without a completion: some gateways answer 200 and put the error into the body."""
        try:
            error = response.json()["error"]
            status = int(error.get("code") or error.get("status") or 500)
            text, code = _message_and_code(error, str(error))
            return classify(status, code, f"{status}: {self._scrubbed(text)}", response.headers, body)
        except (ValueError, KeyError, TypeError, AttributeError):
            return Failure("server", f"The answer is not a chat completion ({self._scrubbed(reason)}).")

    def _unanswered(self, error: BaseException, timeout_s: float) -> Failure:
        causes = [error]
        while following := causes[-1].__cause__ or causes[-1].__context__:
            causes.append(following)
        # The transport reports every lost connection as a timeout: aiohttp's own exception distinguishes the two.
        if isinstance(causes[-1], TimeoutError | asyncio.CancelledError):
            return Failure("timeout", f"{self._profile.host} did not answer within {timeout_s:g} s")
        reason = self._scrubbed(str(causes[-1])) or type(causes[-1]).__name__
        return Failure("connection", f"{self._profile.host} cannot be reached ({reason})")

    def _scrubbed(self, text: str) -> str:
        return scrub(text, self._secrets)


def _message_and_code(body: object, otherwise: str) -> tuple[str, str]:
    """Return message and code of an error body, in the formats of OpenAI, vLLM, Ollama and similar servers."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        if isinstance(inner, Mapping):
            message = inner.get("message") or inner.get("detail") or inner.get("error_msg") or otherwise
            return str(message), str(inner.get("code") or inner.get("type") or "")
        return str(inner), ""
    return (body if isinstance(body, str) and body.strip() else otherwise), ""
