"""The named rewards: what there is, and that all of it can be used, which is looked at when the process starts."""

from flask import Blueprint, Response
from pydantic import ValidationError

from config.rewards import Reward, Rewards, load_rewards, sentence
from config.settings import Settings, SettingsError
from tasks.errors import InvalidRequest
from tasks.jobs.kinds import Kinds
from tasks.scoring.model import ScoreSpec
from web.answers import answer
from web.description import described
from web.reward_schemas import RewardList
from web.services import services

blueprint = Blueprint("rewards", __name__, url_prefix="/v1/rewards")

KIND = "score"
#: Among the numbers that OpenRLHF logs: whether the reward is one.
VALID = "valid"


@blueprint.get("")
@described("List the named rewards, which trainers may ask for by name.", {200: RewardList})
def listing() -> Response:
    rewards = services().rewards
    fields = {"name", "fill", "reference_field", "spec"}
    return answer(
        {"rewards": [each.model_dump(include=fields) | {"default": each.name == rewards.default} for each in rewards]}
    )


def usable_rewards(settings: Settings, kinds: Kinds) -> Rewards:
    """The rewards of the settings. Raises SettingsError with a line per mistake, those of their specs included."""
    rewards = load_rewards(settings)
    if mistakes := [line for reward in rewards for line in _mistakes(reward, kinds)]:
        raise SettingsError("\n".join(mistakes))
    return rewards


def _mistakes(reward: Reward, kinds: Kinds) -> list[str]:
    """The first one: others may only follow from it."""
    try:
        spec = ScoreSpec.model_validate(reward.spec)
        kinds[KIND].check(spec)
    except ValidationError as error:
        first = error.errors()[0]
        return [sentence(reward.name, ("spec", *first["loc"]), first["msg"])]
    except InvalidRequest as error:
        return [sentence(reward.name, () if str(error).startswith(error.field) else (error.field,), str(error))]
    if not spec.scorers and not spec.judge:
        return [sentence(reward.name, ("spec",), "trainers bring no `base_score`: name `scorers`, or a `judge`")]
    if spec.needs_length and not spec.tokenizer:
        return [sentence(reward.name, ("spec", "tokenizer"), "trainers do not tell lengths: name what counts them")]
    if VALID in part_names(spec):
        return [sentence(reward.name, ("spec",), f"no part may be called `{VALID}`: give it another name by `as`")]
    return []


def part_names(spec: ScoreSpec) -> list[str]:
    """The parts an outcome has, unless something failed. A trainer that logs them needs the same names in every
    answer. What a judge says beside its score is left to the job's results."""
    names = [choice.part for choice in spec.scorers]
    names += ["base"] if spec.is_reward and spec.scorers else []
    names += ["judge"] if spec.judge else []
    names += [choice.name for choice in spec.penalties]
    names += ["response_length"] if spec.needs_length else []
    names += ["median_length"] if any(choice.penalty.grouped for choice in spec.penalties) else []
    names += ["group_mean", "group_std", "advantage"] if spec.group_statistics else []
    return names
