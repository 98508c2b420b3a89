"""One try of a call: over HTTP, through one `AsyncOpenAI` per profile with its own connections.

The SDK's retries are off, as retrying is the business of `api_calls.py`; its way of reading answers into models is not
taken, as it costs CPU and nothing here needs it.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import openai
from openai import AsyncOpenAI, DefaultAioHttpClient, Omit

from config.profiles import CHAT_PATH, Profile, read_key
from tasks.providers.call import ApiReply
from tasks.providers.chat import NotACompletion, read_reply
from tasks.providers.redaction import scrub
from tasks.providers.retry import Failure, classify, exhausted_for_s

#: Connections of a profile at most: beyond any ceiling of calls in flight.
MOST_CONNECTIONS = 10_000
#: Seconds an unused connection is kept.
KEEP_ALIVE_S = 30.0
#: Seconds to connect at most: a host that is gone is not waited for as long as an answer.
CONNECT_S = 10.0


class TryFailed(Exception):
    """One try failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Answered:
    reply: ApiReply
    exhausted_for_s: float
    """The API said that nothing is left for so long."""


class ApiClient:
    """The connections of one profile, on one asyncio loop."""

    def __init__(self, profile: Profile, environment: Mapping[str, str] = os.environ) -> None:
        """Raises SettingsError when the key is not where the profile says."""
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
                # A redirect would carry prompts, and perhaps the key, to where nobody sent them.
                follow_redirects=False,
            ),
        )
        # The SDK takes these from variables of OpenAI's; they are none of another endpoint's business.
        self._client.organization = self._client.project = self._client.admin_api_key = None
        self._client._custom_headers = dict(profile.headers)
        self._headers: dict[str, str | Omit] = {} if secret else {"Authorization": Omit()}

    async def ask(self, body: dict[str, Any], timeout_s: float) -> Answered:
        """Raises TryFailed."""
        timeout = httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            async with asyncio.timeout(timeout_s):  # the transport's own would begin anew with every byte
                response = await self._client.post(
                    CHAT_PATH,
                    cast_to=httpx2.Response,
                    body=body,
                    options={"timeout": timeout, "headers": self._headers},
                )
            return self._read(response, body)
        except openai.APIStatusError as error:
            text, code = _told(error.body, error.message)
            message = f"{error.status_code}: {self._scrubbed(text)}"
            failure = classify(error.status_code, code, message, error.response.headers, body)
            raise TryFailed(failure) from None  # its request holds the key
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
        """Some gateways answer 200 and put the error into the body."""
        try:
            error = response.json()["error"]
            status = int(error.get("code") or error.get("status") or 500)
            text, code = _told(error, str(error))
            return classify(status, code, f"{status}: {self._scrubbed(text)}", response.headers, body)
        except (ValueError, KeyError, TypeError, AttributeError):
            return Failure("server", f"The answer is no chat completion ({self._scrubbed(reason)}).")

    def _unanswered(self, error: BaseException, timeout_s: float) -> Failure:
        causes = [error]
        while following := causes[-1].__cause__ or causes[-1].__context__:
            causes.append(following)
        # The transport calls every lost connection a timeout: what aiohttp itself raised tells them apart.
        if isinstance(causes[-1], TimeoutError | asyncio.CancelledError):
            return Failure("timeout", f"{self._profile.host} did not answer within {timeout_s:g} s")
        reason = self._scrubbed(str(causes[-1])) or type(causes[-1]).__name__
        return Failure("connection", f"{self._profile.host} cannot be reached ({reason})")

    def _scrubbed(self, text: str) -> str:
        return scrub(text, self._secrets)


def _told(body: object, otherwise: str) -> tuple[str, str]:
    """Message and code of an error, in the forms that OpenAI, vLLM, Ollama and others give it."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        if isinstance(inner, Mapping):
            message = inner.get("message") or inner.get("detail") or inner.get("error_msg") or otherwise
            return str(message), str(inner.get("code") or inner.get("type") or "")
        return str(inner), ""
    return (body if isinstance(body, str) and body.strip() else otherwise), ""
