"""Request and response models of `/v1/scorers`."""

from pydantic import Field, JsonValue

from web.http.schemas import StrictModel


class ScorerView(StrictModel):
    name: str
    description: str
    options: dict[str, JsonValue] = Field(description="JSON schema.")


class ScorerList(StrictModel):
    scorers: list[ScorerView]
