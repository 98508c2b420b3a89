"""Request and response models of `/v1/usage`: calls, tokens and cost of outside APIs."""

from pydantic import Field

from web.http.schemas import StrictModel


class UsageView(StrictModel):
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: dict[str, float] = Field(description="Cost by currency.")


class UsageOfDay(StrictModel):
    day: str
    profiles: dict[str, UsageView]
    tokens: dict[str, UsageView] = Field(
        description="Usage by the name of the bearer token that submitted the jobs; empty without tokens."
    )


class UsageQuery(StrictModel):
    day: str | None = Field(None, pattern=r"^\d{4}-\d{2}-\d{2}$", description="Day in UTC; the default is today.")
