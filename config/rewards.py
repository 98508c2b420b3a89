"""Named rewards: score specs that trainers may name over HTTP. Read from the TOML file of `ASSAY_REWARDS_FILE`.

Not covered: validation of the specs, which the web process does at start (`web/rewards/named_rewards.py`).
`config/rewards.example.toml` shows every field.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from config.settings import Settings, SettingsError

#: End-of-turn tokens of current models. OpenRLHF and slime leave them in the text of a response.
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|user|>",
    "<|observation|>",
)

#: pydantic's names of JSON types in the path of an error.
_BRANCHES = ("dict", "list", "float", "str", "int")


class UnknownReward(ValueError):
    """The reward does not exist: name a reward of ASSAY_REWARDS_FILE."""

    field = "reward"


class Reward(BaseModel):
    """A named score spec, with the value for failed items."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
    fill: float = Field(0.0, strict=True)
    """Score of a failed item where the trainer needs a number."""
    reference_field: str = ""
    """Field of a dataset's row with the reference, for `/verify`; empty: the first of the usual names."""
    end_tokens: tuple[str, ...] = END_TOKENS
    """Removed from the end of a response before it is scored."""
    spec: dict[str, JsonValue]
    """A score job's spec."""

    @field_validator("end_tokens")
    @classmethod
    def _are_texts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError("must not contain an empty text")
        return value


class Rewards:
    """The named rewards, and the default for requests that name no reward."""

    def __init__(self, *rewards: Reward, default: str = "") -> None:
        """Raises SettingsError when the default is not the name of a reward."""
        self._rewards = {reward.name: reward for reward in rewards}
        if default and default not in self._rewards:
            raise SettingsError(f"ASSAY_REWARDS_FILE: default: there is no reward {default}: correct the name")
        self.default = default or (rewards[0].name if len(rewards) == 1 else "")

    def __iter__(self) -> Iterator[Reward]:
        return iter(self._rewards.values())

    def get(self, name: str | None) -> Reward:
        """Return the reward of this name; for None, the default. Raises UnknownReward that lists the known rewards."""
        wanted = self.default if name is None else name
        if wanted in self._rewards:
            return self._rewards[wanted]
        if not self._rewards:
            raise UnknownReward(
                "The server has no named rewards: write a table [rewards.NAME] into a TOML file, and set "
                "ASSAY_REWARDS_FILE."
            )
        no_default = "No reward is named, and the server has no default"
        cause = no_default if name is None else f"Unknown reward {wanted[:64]!r}"
        raise UnknownReward(
            f"{cause}: set ?reward=NAME to a known reward ({', '.join(self._rewards)}). To add a reward, write a table "
            "[rewards.NAME] into the file of ASSAY_REWARDS_FILE; `default` at its top sets the default."
        )


def load_rewards(settings: Settings) -> Rewards:
    """Load the rewards of the settings; empty without a file. Raises SettingsError with a line per mistake."""
    return read_rewards(settings.rewards_file) if settings.rewards_file else Rewards()


def read_rewards(path: Path) -> Rewards:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"ASSAY_REWARDS_FILE: {path} cannot be read ({error})") from error
    tables, default = document.pop("rewards", {}), document.pop("default", "")
    if document or not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        other = f", not {next(iter(document))}" if document else ""
        raise SettingsError(f"ASSAY_REWARDS_FILE: {path}: write each reward as a table [rewards.NAME]{other}")
    if not isinstance(default, str):
        raise SettingsError(f"ASSAY_REWARDS_FILE: {path}: default: must be the name of a reward")
    rewards, mistakes = [], []
    for name, table in tables.items():
        try:
            rewards.append(Reward.model_validate(table | {"name": name}))
        except ValidationError as error:
            mistakes += [sentence(name, detail["loc"], detail["msg"]) for detail in error.errors()]
    if mistakes:
        raise SettingsError("\n".join(dict.fromkeys(mistakes)))
    return Rewards(*rewards, default=default)


def sentence(name: str, location: tuple[int | str, ...], message: str) -> str:
    """Format an error of a reward: its name, the path of the error and the message."""
    message = message.removeprefix("Value error, ")
    where = ""
    for part in location:
        if part not in _BRANCHES:
            where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    return f"reward {name}: {where + ': ' if where else ''}{message[0].lower()}{message[1:]}"
