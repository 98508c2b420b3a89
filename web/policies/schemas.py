"""Query and response models of the Pi0 reward-server protocol."""

from pydantic import Field, RootModel

from tasks.episodes.policy_servers import PolicyServer
from web.http.schemas import StrictModel
from web.jobs.schemas import ItemError


class TokenQuery(StrictModel):
    token: str | None = Field(None, description="The bearer token, for clients that cannot set a header.")


class PolicyScores(StrictModel):
    done_result: list[float | None] = Field(
        description="Success rates, in order; for a failure null, or the value of `on_error`."
    )
    valid: list[bool] = Field(
        description="Whether each value is a score: an episode that could not run is not a failed episode."
    )
    errors: list[ItemError | None] = Field(description="Why a response could not be scored; null if it was.")
    job: str = Field(description="Id of the score job, for `/v1/jobs`: every episode, confidence intervals, times.")
    notes: list[str]


class ServerStatus(RootModel[PolicyServer]):
    """State of a policy server, reported by the process that owns it."""


class PoolStatus(StrictModel):
    total_clients: int
    available_clients: int = Field(description="Connected servers that are idle.")
    hosts_ports: list[tuple[str, int]]
    connected: int
    busy: int
    broken: int
    servers: list[ServerStatus]
