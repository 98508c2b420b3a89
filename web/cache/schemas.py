"""Request and response models of `/v1/cache`."""

from pydantic import Field, JsonValue

from web.http.schemas import StrictModel


class CacheSize(StrictModel):
    keys: int = Field(description="Number of keys in the cache Redis, which may hold more than answers.")
    bytes: int
    max_bytes: int = Field(description="0: no limit.")


class PurgeResult(StrictModel):
    removed: int


class StageExplanation(StrictModel):
    stage: str
    reason: str
    request: str | None = Field(None, description="Hash of the request key, which determines the answer.")
    in_cache: bool | None = Field(None, description="Whether the answer is in the cache now.")
    key: dict[str, JsonValue] | None = Field(
        None, description="The request key, which determines the answer; long texts as hashes."
    )
    differs: dict[str, JsonValue] | None = Field(
        None, description="Parts of the key in which the last answer for this item id differs."
    )


class CacheExplanation(StrictModel):
    job: str
    index: int
    id: str | int | None
    cached: bool
    stages: list[StageExplanation]


class ExplainQuery(StrictModel):
    job: str
    index: int = Field(ge=0, le=2**53)


class PurgeQuery(StrictModel):
    kind: str | None = Field(None, pattern=r"^[a-z_]{1,40}$", description="Only answers of this kind of job.")
    model: str | None = Field(None, description="Only answers of this model; the next two parameters filter alike.")
    rubric: str | None = None
    profile: str | None = None
