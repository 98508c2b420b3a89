"""Request bodies of trainers, and their conversion to items of a score job. A body per trainer; see docs/rewards.md.

Unknown fields are ignored: trainers add fields of their own, which have no meaning here.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
    model_validator,
)

from config.rewards import Reward
from tasks.errors import InvalidRequest
from tasks.scoring.messages import Chat, ResponseChat
from web.http.schemas import LenientModel
from web.rewards import responses_api

#: Usual names of a reference in the row of a dataset, in order of preference.
REFERENCE_FIELDS = ("expected_answer", "ground_truth", "answer", "label", "reference")
#: Limit of the alternative answers in a label.
MAX_ANSWERS = 1000
#: Limit of the characters that a tokenizer adds before a prompt, such as `<|begin_of_text|>`.
MAX_BEFORE_PROMPT = 64

Item = dict[str, Any]


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _check_label(value: JsonValue) -> JsonValue:
    if value is None or _is_scalar(value):
        return value
    if isinstance(value, list) and len(value) <= MAX_ANSWERS and all(map(_is_scalar, value)):
        return value
    raise ValueError(f"must be a string, a number, a list of up to {MAX_ANSWERS} strings and numbers, or null")


_ANSWERS_SCHEMA = {"type": "array", "items": {"type": ["string", "number"]}, "maxItems": MAX_ANSWERS}
#: The correct answer, a list of alternative answers, or null.
Label = Annotated[
    JsonValue,
    AfterValidator(_check_label),
    WithJsonSchema({"anyOf": [{"type": ["string", "number", "null"]}, _ANSWERS_SCHEMA]}),
]


class QueryBatch(LenientModel):
    """Request of OpenRLHF: lists of queries and, optionally, of as many prompts and labels."""

    query: list[str] = Field(description="Prompts, each followed by its response.")
    prompts: list[str] | None = Field(
        None, description="The prompts alone: the text after the prompt is the response, which is scored."
    )
    labels: list[Label] | None = Field(None, description="The references.")

    @model_validator(mode="after")
    def _have_equal_lengths(self) -> Self:
        for name, values in (("prompts", self.prompts), ("labels", self.labels)):
            if values is not None and len(values) != len(self.query):
                raise ValueError(
                    f"`{name}` has {len(values)} entries and `query` has {len(self.query)}: send equal numbers"
                )
        return self

    def items(self, reward: Reward) -> list[Item]:
        """Return the items. Responses to the same prompt form a group, as OpenRLHF sends no group ids."""
        items: list[Item] = []
        groups: dict[str, str] = {}
        for index, query in enumerate(self.query):
            prompt = self.prompts[index] if self.prompts is not None else None
            items.append(
                {
                    "prompt": prompt,
                    "response": without_end(response_of(query, prompt), reward.end_tokens),
                    "reference": self.labels[index] if self.labels is not None else None,
                    "group_id": None if prompt is None else groups.setdefault(prompt, str(index)),
                }
            )
        return items


class Sample(LenientModel):
    """Request of slime: a single sample."""

    prompt: Chat | None = None
    response: ResponseChat
    label: Label = None

    def item(self, reward: Reward) -> Item:
        response = self.response
        if isinstance(response, str):
            response = without_end(response, reward.end_tokens)
        return {"prompt": _plain(self.prompt), "response": _plain(response), "reference": self.label}


class VerifyRequest(BaseModel):
    """Request of NeMo-Gym: the request to a model, its response, and the fields of the dataset's row."""

    model_config = ConfigDict(frozen=True, extra="allow")

    responses_create_params: dict[str, JsonValue] = Field(
        description="The request to the model; `input` is the prompt."
    )
    response: dict[str, JsonValue] = Field(description="A response object of the Responses API; `output` is scored.")

    def item(self, reward: Reward) -> Item:
        request = self.responses_create_params
        prompt = responses_api.prompt(
            request.get("instructions"), request.get("input"), "responses_create_params.input"
        )
        messages = responses_api.chat(self.response.get("output"), "assistant", "response.output")
        # A response without a message counts as a wrong answer, like an empty text.
        response = messages if any(message["role"] == "assistant" for message in messages) else ""
        return {"prompt": prompt, "response": response, "reference": self._reference(reward)}

    def _reference(self, reward: Reward) -> JsonValue:
        fields = self.model_extra or {}
        names = (reward.reference_field,) if reward.reference_field else REFERENCE_FIELDS
        name = next((name for name in names if fields.get(name) is not None), None)
        if name is None:
            return None
        try:
            return _check_label(fields[name])
        except ValueError as error:
            raise InvalidRequest(f"{name}: {error}.", field=name) from error


def response_of(query: str, prompt: str | None) -> str:
    """Return the text after the prompt; the whole query if it does not contain the prompt."""
    if not prompt:
        return query
    at = query.find(prompt, 0, MAX_BEFORE_PROMPT + len(prompt))
    return query if at < 0 else query[at + len(prompt) :]


def without_end(text: str, end_tokens: Sequence[str]) -> str:
    """Remove the tokens with which the model ended its turn. In linear time: a text may be a megabyte of end tokens."""
    kept = end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        token = next((token for token in end_tokens if text.endswith(token, 0, end)), None)
        if token is None:
            return text[:kept]
        kept = end = end - len(token)


def _plain(chat: Any) -> Any:
    return chat if chat is None or isinstance(chat, str) else [message.model_dump() for message in chat]
