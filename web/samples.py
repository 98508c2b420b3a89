"""What trainers send to have rewarded, as items of a score job. One body each; docs/rewards.md shows them in use.

Bodies are read loosely: trainers add fields of their own, and those say nothing here.
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
    field_validator,
    model_validator,
)

from config.rewards import Reward
from tasks.errors import InvalidRequest
from tasks.scoring.messages import Chat, is_answered
from web import responses_api

#: Where a dataset's row usually has its reference.
REFERENCE_FIELDS = ("expected_answer", "ground_truth", "answer", "label", "reference")
#: Answers of which one is enough, at most.
MOST_ANSWERS = 1000
#: Characters that a tokenizer may have put before a prompt, such as `<|begin_of_text|>`.
MOST_BEFORE_PROMPT = 64

Item = dict[str, Any]


def _is_answer(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_label(value: JsonValue) -> JsonValue:
    if value is None or _is_answer(value):
        return value
    if isinstance(value, list) and len(value) <= MOST_ANSWERS and all(map(_is_answer, value)):
        return value
    raise ValueError(f"must be a string, a number, a list of at most {MOST_ANSWERS} of these, or null")


_ANSWERS_SCHEMA = {"type": "array", "items": {"type": ["string", "number"]}, "maxItems": MOST_ANSWERS}
#: The right answer, several of which one is enough, or none.
Label = Annotated[
    JsonValue,
    AfterValidator(_is_label),
    WithJsonSchema({"anyOf": [{"type": ["string", "number", "null"]}, _ANSWERS_SCHEMA]}),
]


class Loose(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class QueryBatch(Loose):
    """OpenRLHF: as many prompts and labels as queries, or none at all."""

    query: list[str] = Field(description="Each is a prompt and the response to it.")
    prompts: list[str] | None = Field(None, description="The prompts alone: what follows one in its query is scored.")
    labels: list[Label] | None = Field(None, description="The references.")

    @model_validator(mode="after")
    def _are_as_many(self) -> Self:
        for name, values in (("prompts", self.prompts), ("labels", self.labels)):
            if values is not None and len(values) != len(self.query):
                raise ValueError(f"`{name}` has {len(values)} entries and `query` has {len(self.query)}: send as many")
        return self

    def items(self, reward: Reward) -> list[Item]:
        """Responses to one prompt are a group: OpenRLHF does not say which belong together."""
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


class Sample(Loose):
    """slime: one sample."""

    prompt: Chat | None = None
    response: Chat
    label: Label = None

    @field_validator("response")
    @classmethod
    def _is_answered(cls, value: Any) -> Any:
        if not is_answered(value):
            raise ValueError("must have a message whose role is assistant")
        return value

    def item(self, reward: Reward) -> Item:
        response = self.response
        if isinstance(response, str):
            response = without_end(response, reward.end_tokens)
        return {"prompt": _plain(self.prompt), "response": _plain(response), "reference": self.label}


class VerifyRequest(BaseModel):
    """NeMo-Gym: what a model was asked, what it answered, and the fields of the dataset's row."""

    model_config = ConfigDict(frozen=True, extra="allow")

    responses_create_params: dict[str, JsonValue] = Field(description="`input` is the prompt.")
    response: dict[str, JsonValue] = Field(description="A response object of the Responses API; `output` is scored.")

    def item(self, reward: Reward) -> Item:
        asked = self.responses_create_params
        prompt = responses_api.prompt(asked.get("instructions"), asked.get("input"), "responses_create_params.input")
        said = responses_api.chat(self.response.get("output"), "assistant", "response.output")
        # A model that said nothing has answered wrongly, as one whose text is empty.
        response = said if any(message["role"] == "assistant" for message in said) else ""
        return {"prompt": prompt, "response": response, "reference": self._reference(reward)}

    def _reference(self, reward: Reward) -> JsonValue:
        fields = self.model_extra or {}
        names = (reward.reference_field,) if reward.reference_field else REFERENCE_FIELDS
        name = next((name for name in names if fields.get(name) is not None), None)
        if name is None:
            return None
        try:
            return _is_label(fields[name])
        except ValueError as error:
            raise InvalidRequest(f"{name}: {error}.", field=name) from error


def response_of(query: str, prompt: str | None) -> str:
    """What follows the prompt; all of the query where its prompt is not to be found."""
    if not prompt:
        return query
    at = query.find(prompt, 0, MOST_BEFORE_PROMPT + len(prompt))
    return query if at < 0 else query[at + len(prompt) :]


def without_end(text: str, end_tokens: Sequence[str]) -> str:
    """The text without what the model ended its turn with. In linear time: it may be a megabyte of such tokens."""
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
