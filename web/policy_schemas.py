"""What the Pi0 reward server's HTTP answers."""

from pydantic import Field, RootModel

from tasks.episodes.servers import PolicyServer
from web.schemas import ItemProblem, Wire


class TokenQuery(Wire):
    token: str | None = Field(None, description="The token, for clients that cannot set a header.")


class PolicyScores(Wire):
    done_result: list[float | None] = Field(description="Success rates, in order; null, or `on_error`'s, for failures.")
    valid: list[bool] = Field(description="Whether each is a score: an episode that could not run is no failure of it.")
    errors: list[ItemProblem | None] = Field(description="Why a response could not be scored.")
    job: str = Field(description="The job that did it, for `/v1/jobs`: every episode, intervals, times.")
    notes: list[str]


class ServerStatus(RootModel[PolicyServer]):
    """One policy server, as the process that owns it tells."""


class PoolStatus(Wire):
    total_clients: int
    available_clients: int = Field(description="Connected, and not inferring.")
    hosts_ports: list[tuple[str, int]]
    connected: int
    busy: int
    broken: int
    servers: list[ServerStatus]
