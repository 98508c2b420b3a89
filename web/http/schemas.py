"""Base classes of all request and response models, and the models that every endpoint shares."""

from pydantic import BaseModel, ConfigDict, Field


class StrictModel(BaseModel):
    """Unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LenientModel(BaseModel):
    """Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Problem(StrictModel):
    """Error response (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    line: int | None = Field(None, description="The line of a JSONL body.")
    error: str | None = Field(None, description="The detail again, for the protocol of `/score`.")


class NoQuery(StrictModel):
    pass
