"""Request to a chat API, its reply, and the client interface `Ask`. Not covered: how a worker process makes the call,
which is in `workers/providers`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from config.queues import Priority
from tasks.runtime import Resource


@dataclass(frozen=True, slots=True)
class ApiCall:
    profile: str
    """Name of an endpoint in the server's settings; never a URL or a key."""
    messages: tuple[Mapping[str, Any], ...]
    model: str = ""
    """Empty: the profile's first model."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """temperature, top_p, max_tokens, seed, stop: passed on unchanged."""
    schema: Mapping[str, Any] | None = None
    """JSON schema that the answer should follow, if the endpoint supports schemas."""
    top_logprobs: int = 0
    timeout_s: float | None = None
    """Timeout of each try, in seconds; by default the profile's."""
    max_retries: int | None = None
    job_id: str = ""
    """Job that makes the call: calls are granted fairly between jobs, and their cost is counted per job."""
    item: int = 0
    """Index of the job's item."""
    priority: Priority = "normal"
    token: str = ""
    """Name of the bearer token that submitted the job, to count its usage."""
    budget: float | None = None
    """Maximum cost of the whole job, in the profile's currency; once it is spent, further calls raise BudgetSpent."""
    deadline_s: float | None = None
    """Maximum seconds for the tries together, waits included; by default only the number of tries is limited."""
    may_rest: bool = False
    """Whether the call raises CircuitOpen at once while the circuit stays open for long: the caller retries later."""


@dataclass(frozen=True, slots=True)
class ApiReply:
    text: str
    finish_reason: str
    """`stop`, `length`, `content_filter` or `tool_calls`, as reported by the API."""
    refusal: str = ""
    model: str = ""
    """The model that answered."""
    profile: str = ""
    """The profile that answered: the requested profile, or its fallback."""
    used_schema: bool = False
    left_out: tuple[str, ...] = ()
    """Sampling parameters that were not sent, because the model rejects them."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """In the profile's currency; None when the profile has no prices."""
    tries: int = 1
    latency_s: float = 0.0
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """For each token of the answer: `token`, `logprob` and `top_logprobs`, unchanged from the API's reply."""


class Ask(Protocol):
    async def __call__(self, call: ApiCall) -> ApiReply:
        """Wait for a permit of the rate limiter, make the call, retry transient failures, then use the fallback.

        Raises ApiRefused (the request is invalid: a retry cannot help), ApiTimeout, ApiUnavailable (the tries are
        used up, or the circuit is open and the profile has no fallback) and BudgetSpent.
        """


ASK = Resource[Ask]("API client")
"""API client of the process, to be awaited on the process's asyncio loop."""
