"""One call of a chat API, as a kind of job makes it. How it is made is the business of the process that runs it."""

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
    """Empty: the profile's first."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """temperature, top_p, max_tokens, seed, stop: passed on as they are."""
    schema: Mapping[str, Any] | None = None
    """JSON schema the answer should follow, where the endpoint can do that."""
    top_logprobs: int = 0
    timeout_s: float | None = None
    """Of one try; None: the profile's."""
    max_retries: int | None = None
    job_id: str = ""
    """Whom it is for: calls are shared out fairly between jobs, and their cost is counted."""
    item: int = 0
    """Which of its items."""
    priority: Priority = "normal"
    token: str = ""
    """Name of the bearer token whose job it is, for its usage."""
    budget: float | None = None
    """What the whole job may cost, in the profile's currency: once it has, its calls raise BudgetSpent."""
    deadline_s: float | None = None
    """Of all tries together, waiting included; None: as long as tries are left."""
    may_rest: bool = False
    """Whether it is given up at once, as CircuitOpen, while the API is let alone for long: who made it comes back."""


@dataclass(frozen=True, slots=True)
class ApiReply:
    text: str
    finish_reason: str
    """`stop`, `length`, `content_filter`, `tool_calls`, as the API says."""
    refusal: str = ""
    model: str = ""
    """The model that answered."""
    profile: str = ""
    """The profile that answered: a fallback's name when it was one."""
    used_schema: bool = False
    left_out: tuple[str, ...] = ()
    """What of the sampling was not sent, as the model cannot take it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """In the profile's currency; None when it has no prices."""
    tries: int = 1
    latency_s: float = 0.0
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """For each token of the answer: `token`, `logprob`, `top_logprobs`, as the API gave them."""


class Ask(Protocol):
    async def __call__(self, call: ApiCall) -> ApiReply:
        """Waits its turn, retries what may pass, and falls back.

        Raises ApiRefused (the request is wrong, trying again changes nothing), ApiTimeout, ApiUnavailable (tries are
        used up, or the circuit is open and there is no fallback) and BudgetSpent.
        """


ASK = Resource[Ask]("API client")
"""Calls of outside APIs, to be awaited on the process's asyncio loop."""
