"""Request body of the Pi0 reward server (`POST /score`), and its conversion to a score job. See docs/policies.md.

Unknown fields are ignored, as that server ignores them: `alpha`, `beta`, `gamma` and `center_crop` have no meaning
here.
"""

from typing import Any, Literal

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, JsonValue, ValidationError, model_validator
from pydantic_core import CoreSchema

from config.rewards import Rewards
from config.settings import Settings
from tasks.episodes.model import Index, ReplanSteps, ResizeSize, Seed, StepsWait, Suite
from tasks.errors import InvalidRequest
from tasks.jobs.model import Fill
from tasks.scoring.model import ScoreSpec
from tasks.scoring.policy import MOST_IN_FLIGHT, Repeats
from web.http.schemas import LenientModel
from web.http.validation import invalid_request
from web.rewards.requests import REFERENCE_FIELDS, Item

#: Fields that may hold the text of a response object, in order of preference.
_TEXTS = ("text", "generated_text", "output_text", "response", "content")
#: Default number of episodes per response.
TRIALS = 5


class _Optional(LenientModel):
    """Model in which null means an omitted field. Bounds are checked here, so that an error names the field as the
    client sent it."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        fields = handler.resolve_ref_schema(written)["properties"]
        fields |= {name: {"anyOf": [field, {"type": "null"}]} for name, field in fields.items()}
        return written


class LiberoSettings(_Optional):
    """`libero_cfg`, with the defaults of the Pi0 reward server."""

    resize_size: ResizeSize = 224
    replan_steps: ReplanSteps = 5
    task_suite_name: Suite = "libero_spatial"
    task_id: Index = 0
    num_steps_wait: StepsWait = 10
    num_trials_per_task: Repeats = TRIALS
    save_videos: bool = False
    seed: Seed = 7
    init_state_id: Index = 0
    instruction: str = ""


class ScoreOptions(_Optional):
    """`reward_function_kwargs`: how a policy runs, or the reward to compute instead."""

    libero_cfg: LiberoSettings = LiberoSettings()
    num_trials_per_task: Repeats | None = None
    num_steps_wait: StepsWait | None = None
    max_workers: int | None = Field(
        None,
        ge=1,
        le=MOST_IN_FLIGHT,
        description="Maximum number of concurrent episodes; by default every server is used.",
    )
    environment: dict[str, JsonValue] | None = Field(
        None,
        description="The environment of the policy, as in the scorer `policy`; by default `ASSAY_POLICY_ENVIRONMENT`.",
    )
    scorer: str | None = Field(None, description="Name of the scorer to use instead of `policy`.")
    scorer_options: dict[str, JsonValue] = Field(default_factory=dict)
    reward: str | None = Field(None, description="Name of a named reward to use instead.")
    spec: dict[str, JsonValue] | None = Field(None, description="Spec of a score job to use instead.")
    on_error: Literal["null"] | Fill = Field("null", description="Value for a response that could not be scored.")
    cache: Literal["use", "refresh", "off"] = "use"


class Meta(LenientModel):
    """The task of an instruction. Parsed for policies only: the metadata of a text may have fields of the same names
    with a different meaning (`task_id` is a text in many datasets)."""

    model_config = ConfigDict(strict=True)

    original_instruction: str | None = None
    suite: Suite | None = None
    task_suite_name: Suite | None = None
    suite_name: Suite | None = None
    task_id: Index | None = None
    seed: Seed | None = None
    init_state_id: Index | None = None


class ScoreRequest(LenientModel):
    responses: list[JsonValue] = Field(min_length=1, description="Instructions: texts, or objects with a text.")
    metas: list[dict[str, JsonValue] | None] | None = Field(
        None,
        description="Metadata of each response, in order: `original_instruction`, `suite`, `task_id`, `seed`, "
        "`init_state_id`; for a text its prompt and reference.",
    )
    reward_function_kwargs: ScoreOptions | None = None

    @property
    def options(self) -> ScoreOptions:
        return self.reward_function_kwargs or ScoreOptions()

    def spec(self, settings: Settings, rewards: Rewards) -> dict[str, JsonValue]:
        """Return the spec of the score job. Raises InvalidRequest, UnknownReward."""
        options = self.options
        others = [name for name in ("scorer", "reward", "spec") if getattr(options, name) is not None]
        if len(others) > 1:
            raise InvalidRequest(f"reward_function_kwargs: has `{others[0]}` and `{others[1]}`; remove either.")
        if options.reward is not None:
            return dict(rewards.get(options.reward).spec)
        if options.spec is not None:
            return options.spec
        if options.scorer is not None:
            return {"scorers": [{"name": options.scorer, "options": options.scorer_options}]}
        return {"scorers": [{"name": "policy", "options": self._policy(settings)}]}

    def _policy(self, settings: Settings) -> dict[str, JsonValue]:
        options = self.options
        libero = options.libero_cfg
        environment = options.environment or settings.default_environment
        if environment.get("name") == "libero":
            wait = libero.num_steps_wait if options.num_steps_wait is None else options.num_steps_wait
            own: dict[str, JsonValue] = {
                "suite": libero.task_suite_name,
                "resize_size": libero.resize_size,
                "num_steps_wait": wait,
            }
            environment = own | environment
        trials = libero.num_trials_per_task if options.num_trials_per_task is None else options.num_trials_per_task
        return {
            "environment": environment,
            "trials": trials,
            "task_id": libero.task_id,
            "seed": libero.seed,
            "init_state": libero.init_state_id,
            "replan_steps": libero.replan_steps,
            "in_flight": options.max_workers or 0,
            "video": libero.save_videos,
        }

    def items(self, spec: ScoreSpec) -> list[Item]:
        """Return the items of the score job. Raises InvalidRequest for a response without a text, and for excess
        metas."""
        metas = self.metas or []
        if len(metas) > len(self.responses):
            raise InvalidRequest(
                f"metas: has {len(metas)} entries for {len(self.responses)} responses; send at most as many.",
                field="metas",
            )
        padded = [*metas, *[None] * (len(self.responses) - len(metas))]
        pairs = zip(self.responses, padded, strict=True)
        return [self._item(spec, index, response, meta or {}) for index, (response, meta) in enumerate(pairs)]

    def _item(self, spec: ScoreSpec, index: int, response: JsonValue, fields: dict[str, JsonValue]) -> Item:
        text = text_of(response)
        if text is None:
            raise InvalidRequest(
                f"responses[{index}]: must be a text, a list that begins with a text, or an object with a text.",
                field=f"responses[{index}]",
            )
        if spec.policy is None:
            reference = next((fields[name] for name in REFERENCE_FIELDS if fields.get(name) is not None), None)
            given = fields.get("original_instruction")
            prompt = fields.get("prompt") if given is None else given
            return {
                "prompt": prompt,
                "response": text,
                "reference": reference,
                "group_id": fields.get("group_id"),
            }
        try:
            meta = Meta.model_validate(fields)
        except ValidationError as error:
            raise invalid_request(error, f"metas[{index}]") from error
        task = {
            "suite": meta.suite or meta.task_suite_name or meta.suite_name,
            "task_id": meta.task_id,
            "seed": meta.seed,
            "init_state": meta.init_state_id,
            "instruction": meta.original_instruction or self.options.libero_cfg.instruction,
        }
        return {"response": text, "task": task}


def text_of(response: JsonValue) -> str | None:
    """Return the text of a response in any format that generation servers use; None if it has no text."""
    if isinstance(response, str):
        return response
    if isinstance(response, list):
        return text_of(response[0]) if response else ""
    if not isinstance(response, dict):
        return "" if response is None else None
    for name in _TEXTS:
        if isinstance(found := response.get(name), str):
            return found
    for name in ("outputs", "choices"):
        first = response.get(name)
        if isinstance(first, list) and first and isinstance(inner := first[0], dict):
            message = inner.get("message")
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(found := inner.get("text") or content, str):
                return found
    return None
