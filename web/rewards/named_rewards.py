"""Named rewards of the settings, validated when the process starts."""

from pydantic import ValidationError

from config.rewards import Reward, Rewards, load_rewards, sentence
from config.settings import Settings, SettingsError
from tasks.errors import InvalidRequest
from tasks.jobs.kind import Kinds
from tasks.scoring.model import ScoreSpec

KIND = "score"
#: Name of the logged number that says whether the reward is valid (OpenRLHF).
VALID = "valid"


def usable_rewards(settings: Settings, kinds: Kinds) -> Rewards:
    """Load the rewards of the settings and validate their specs. Raises SettingsError with a line per mistake."""
    rewards = load_rewards(settings)
    if mistakes := [line for reward in rewards for line in _mistakes(reward, kinds)]:
        raise SettingsError("\n".join(mistakes))
    return rewards


def _mistakes(reward: Reward, kinds: Kinds) -> list[str]:
    """Return the first mistake of the reward: further mistakes may only follow from it."""
    try:
        spec = ScoreSpec.model_validate(reward.spec)
        kinds[KIND].check(spec)
    except ValidationError as error:
        first = error.errors()[0]
        return [sentence(reward.name, ("spec", *first["loc"]), first["msg"])]
    except InvalidRequest as error:
        return [sentence(reward.name, () if str(error).startswith(error.field) else (error.field,), str(error))]
    if not spec.scorers and not spec.judge:
        return [sentence(reward.name, ("spec",), "trainers send no `base_score`: add `scorers` or a `judge`")]
    if spec.needs_length and not spec.tokenizer:
        return [
            sentence(
                reward.name, ("spec", "tokenizer"), "trainers send no lengths: name the tokenizer that counts them"
            )
        ]
    if VALID in part_names(spec):
        return [sentence(reward.name, ("spec",), f"no part may be named `{VALID}`: rename it with `as`")]
    return []


def part_names(spec: ScoreSpec) -> list[str]:
    """Return the names of the parts of an outcome that succeeded. A trainer that logs them needs the same names in
    every response. Further fields of a judge's verdict are in the job's results only."""
    names = [choice.part for choice in spec.scorers]
    names += ["base"] if spec.is_reward and spec.scorers else []
    names += ["judge"] if spec.judge else []
    names += [choice.name for choice in spec.penalties]
    names += ["response_length"] if spec.needs_length else []
    names += ["median_length"] if any(choice.penalty.grouped for choice in spec.penalties) else []
    names += ["group_mean", "group_std", "advantage"] if spec.group_statistics else []
    return names
