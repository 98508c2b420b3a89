"""Named rewards: the score specs that trainers may name over HTTP. Read from the TOML file of `ASSAY_REWARDS_FILE`.

What a spec may say is not known here: the web process checks it when it starts (`web/rewards.py`).
`config/rewards.example.toml` shows every field.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from config.settings import Settings, SettingsError

#: What models of today end their turn with. OpenRLHF and slime leave it in a response's text.
END_TOKENS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<eos>", "<end_of_turn>",
    "<｜end▁of▁sentence｜>", "<|return|>", "<|user|>", "<|observation|>",
)  # fmt: skip

#: What pydantic calls the kinds of JSON, in the path of a mistake.
_BRANCHES = ("dict", "list", "float", "str", "int")


class UnknownReward(ValueError):
    """There is no such reward."""

    field = "reward"


class Reward(BaseModel):
    """One spec under a name, with what a trainer gets where it fails."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
    fill: float = Field(0.0, strict=True)
    """What a failed item gets where the trainer wants a number."""
    reference_field: str = ""
    """Field of a dataset's row that holds the reference, for `/verify`; empty: the first of the usual names."""
    end_tokens: tuple[str, ...] = END_TOKENS
    """Cut off from the end of a response before it is scored."""
    spec: dict[str, JsonValue]
    """A score job's spec."""

    @field_validator("end_tokens")
    @classmethod
    def _are_texts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError("must not hold an empty text")
        return value


class Rewards:
    """All named rewards, and which of them is meant where none is named."""

    def __init__(self, *rewards: Reward, default: str = "") -> None:
        """Raises SettingsError when the default is none of them."""
        self._rewards = {reward.name: reward for reward in rewards}
        if default and default not in self._rewards:
            raise SettingsError(f"ASSAY_REWARDS_FILE: default: there is no reward {default}")
        self.default = default or (rewards[0].name if len(rewards) == 1 else "")

    def __iter__(self) -> Iterator[Reward]:
        return iter(self._rewards.values())

    def get(self, name: str | None) -> Reward:
        """The reward of this name; without one, the default. Raises UnknownReward that says which there are."""
        wanted = self.default if name is None else name
        if wanted in self._rewards:
            return self._rewards[wanted]
        if not self._rewards:
            raise UnknownReward(
                "There is no named reward: write a table [rewards.NAME] into a TOML file, and set ASSAY_REWARDS_FILE."
            )
        said = "No reward is named, and none is the default" if name is None else f"There is no reward {wanted[:64]!r}"
        raise UnknownReward(
            f"{said}: say ?reward=NAME with one of {', '.join(self._rewards)}. "
            "A table [rewards.NAME] in the file of ASSAY_REWARDS_FILE adds one, `default` at its top chooses one."
        )


def load_rewards(settings: Settings) -> Rewards:
    """The rewards of the settings; none without a file. Raises SettingsError with a line per mistake."""
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
    """What is wrong with a reward, and where."""
    message = message.removeprefix("Value error, ")
    where = ""
    for part in location:
        if part not in _BRANCHES:
            where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    return f"reward {name}: {where + ': ' if where else ''}{message[0].lower()}{message[1:]}"
