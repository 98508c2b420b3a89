"""Request and response models of `/v1/profiles`."""

from typing import Literal

from pydantic import Field, StrictInt

from web.http.schemas import StrictModel
from web.usage.schemas import UsageView


class LimitsView(StrictModel):
    rpm: int | None = Field(description="Requests per minute; null: no limit.")
    tpm: int | None = Field(description="Tokens per minute; null: no limit.")
    concurrency: int = Field(description="Maximum number of calls in flight.")


class CircuitView(StrictModel):
    state: Literal["closed", "open", "half_open"] = Field(
        description="State of the circuit breaker. Open: no calls are made for a while."
    )
    reason: str
    wait_s: float = Field(description="Seconds until a call is made again.")


class ProfileView(StrictModel):
    name: str
    host: str = Field(description="Host of its URL, with the port unless it is the default port.")
    models: list[str]
    limits: LimitsView = Field(description="The current limits.")
    changed: list[str] = Field(description="Names of limits set over HTTP, which override the profile's own limits.")
    in_flight: int
    waiting: int = Field(description="Calls that wait for a permit of the rate limiter.")
    ceiling: int = Field(description="Current estimate of the calls in flight that the API accepts.")
    paused_s: float = Field(description="Remaining seconds of a pause that the API requested (`Retry-After`).")
    circuit: CircuitView
    fallback: str | None
    usage_today: UsageView


class ProfileList(StrictModel):
    profiles: list[ProfileView]


class LimitChange(StrictModel):
    rpm: StrictInt | None = Field(
        None, ge=1, le=10**9, description="Requests per minute; null: the profile's own limit."
    )
    tpm: StrictInt | None = Field(
        None, ge=1, le=10**12, description="Tokens per minute; null: the profile's own limit."
    )
    concurrency: StrictInt | None = Field(None, ge=1, le=10_000, description="Maximum number of calls in flight.")
