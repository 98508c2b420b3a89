"""What the Pi0 reward server is sent (`POST /score`), as a score job. docs/policies.md shows it in use.

The body is read loosely, as that server read it: fields that mean nothing here (`alpha`, `beta`, `gamma`,
`center_crop`) are passed over.
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
from web.description import invalid
from web.samples import REFERENCE_FIELDS, Item, Loose

#: Where a response that is an object has its text, best first.
_TEXTS = ("text", "generated_text", "output_text", "response", "content")
#: Episodes for each response where nobody says.
TRIALS = 5


class _Optional(Loose):
    """A null says no more than a field that is left out. Bounds are here, so that what is wrong is named as it was
    sent."""

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
    """`libero_cfg`, with that server's defaults."""

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
    """`reward_function_kwargs`: how a policy is run, or which other reward is meant."""

    libero_cfg: LiberoSettings = LiberoSettings()
    num_trials_per_task: Repeats | None = None
    num_steps_wait: StepsWait | None = None
    max_workers: int | None = Field(
        None, ge=1, le=MOST_IN_FLIGHT, description="Episodes at a time; by default all servers are used."
    )
    environment: dict[str, JsonValue] | None = Field(
        None, description="Where the policy acts, as in the scorer `policy`; by default `ASSAY_POLICY_ENVIRONMENT`."
    )
    scorer: str | None = Field(None, description="Another scorer, instead of `policy`.")
    scorer_options: dict[str, JsonValue] = Field(default_factory=dict)
    reward: str | None = Field(None, description="A named reward instead.")
    spec: dict[str, JsonValue] | None = Field(None, description="The spec of a score job instead.")
    on_error: Literal["null"] | Fill = Field("null", description="What a response that could not be scored gets.")
    cache: Literal["use", "refresh", "off"] = "use"


class Meta(Loose):
    """The task that a response is an instruction for. Read for policies only: what belongs to a text may have fields of
    the same names that say something else (`task_id` of many datasets is a text)."""

    model_config = ConfigDict(strict=True)

    original_instruction: str | None = None
    suite: Suite | None = None
    task_suite_name: Suite | None = None
    suite_name: Suite | None = None
    task_id: Index | None = None
    seed: Seed | None = None
    init_state_id: Index | None = None


class ScoreRequest(Loose):
    responses: list[JsonValue] = Field(min_length=1, description="Instructions: texts, or objects that hold one.")
    metas: list[dict[str, JsonValue] | None] | None = Field(
        None,
        description="What belongs to each response, in order: `original_instruction`, `suite`, `task_id`, `seed`, "
        "`init_state_id`; of a text its prompt and its reference.",
    )
    reward_function_kwargs: ScoreOptions | None = None

    @property
    def options(self) -> ScoreOptions:
        return self.reward_function_kwargs or ScoreOptions()

    def spec(self, settings: Settings, rewards: Rewards) -> dict[str, JsonValue]:
        """The spec of the score job. Raises InvalidRequest, UnknownReward."""
        asked = self.options
        others = [name for name in ("scorer", "reward", "spec") if getattr(asked, name) is not None]
        if len(others) > 1:
            raise InvalidRequest(f"reward_function_kwargs: give `{others[0]}` or `{others[1]}`, not both.")
        if asked.reward is not None:
            return dict(rewards.get(asked.reward).spec)
        if asked.spec is not None:
            return asked.spec
        if asked.scorer is not None:
            return {"scorers": [{"name": asked.scorer, "options": asked.scorer_options}]}
        return {"scorers": [{"name": "policy", "options": self._policy(settings)}]}

    def _policy(self, settings: Settings) -> dict[str, JsonValue]:
        asked = self.options
        libero = asked.libero_cfg
        environment = asked.environment or settings.default_environment
        if environment.get("name") == "libero":
            wait = libero.num_steps_wait if asked.num_steps_wait is None else asked.num_steps_wait
            own: dict[str, JsonValue] = {
                "suite": libero.task_suite_name, "resize_size": libero.resize_size, "num_steps_wait": wait,
            }  # fmt: skip
            environment = own | environment
        trials = libero.num_trials_per_task if asked.num_trials_per_task is None else asked.num_trials_per_task
        return {
            "environment": environment,
            "trials": trials,
            "task_id": libero.task_id,
            "seed": libero.seed,
            "init_state": libero.init_state_id,
            "replan_steps": libero.replan_steps,
            "in_flight": asked.max_workers or 0,
            "video": libero.save_videos,
        }

    def items(self, spec: ScoreSpec) -> list[Item]:
        """Raises InvalidRequest for a response without a text, and for more metas than responses."""
        metas = self.metas or []
        if len(metas) > len(self.responses):
            raise InvalidRequest(
                f"metas: there are {len(metas)} of them for {len(self.responses)} responses.", field="metas"
            )
        padded = [*metas, *[None] * (len(self.responses) - len(metas))]
        pairs = zip(self.responses, padded, strict=True)
        return [self._item(spec, index, response, meta or {}) for index, (response, meta) in enumerate(pairs)]

    def _item(self, spec: ScoreSpec, index: int, response: JsonValue, fields: dict[str, JsonValue]) -> Item:
        text = text_of(response)
        if text is None:
            raise InvalidRequest(
                f"responses[{index}]: must be a text, a list that begins with one, or an object that has one.",
                field=f"responses[{index}]",
            )
        if spec.policy is None:
            reference = next((fields[name] for name in REFERENCE_FIELDS if fields.get(name) is not None), None)
            given = fields.get("original_instruction")
            prompt = fields.get("prompt") if given is None else given
            return {
                "prompt": prompt, "response": text, "reference": reference, "group_id": fields.get("group_id"),
            }  # fmt: skip
        try:
            meta = Meta.model_validate(fields)
        except ValidationError as error:
            raise invalid(error, f"metas[{index}]") from error
        task = {
            "suite": meta.suite or meta.task_suite_name or meta.suite_name,
            "task_id": meta.task_id,
            "seed": meta.seed,
            "init_state": meta.init_state_id,
            "instruction": meta.original_instruction or self.options.libero_cfg.instruction,
        }
        return {"response": text, "task": task}


def text_of(response: JsonValue) -> str | None:
    """The text of a response in any of the shapes that generation servers use; None where there is none."""
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
            said = message.get("content") if isinstance(message, dict) else None
            if isinstance(found := inner.get("text") or said, str):
                return found
    return None
