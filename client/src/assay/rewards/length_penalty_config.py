"""What a `LengthPenaltyRewardManager` is told: from a dataclass, a dict or an OmegaConf mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Union, cast

from assay.rewards.foreign import as_plain
from assay.submission import Scorer

#: The model that is asked unless another one is named.
DEFAULT_MODEL = "deepseek-v3"


@dataclass
class LengthPenaltyConfig:
    enable: bool = True
    """Whether lengths are penalised."""
    enable_openai_reward: bool = False
    """Whether a judge's score is part of the reward."""
    api_key: str = field(default="", repr=False)
    """For calling the API without the server; the server has keys of its own."""
    model_name: str = DEFAULT_MODEL
    reward_coefficient: float = 1.0
    """What the judge's score is multiplied with."""
    api_endpoint: str = ""
    """A base URL, or a whole one that ends in /chat/completions."""
    num_async_workers: int = 4
    """Calls in flight that this manager wants, by the server or from here. The server's profile may allow fewer."""
    penalty_scale: float = 1.0
    max_penalty: float = 1.0
    peak_ratio: float = 0.3
    outer_ratio: float = 0.5
    timeout_seconds: float = 300.0
    """From the submit on. What has no verdict then goes without."""
    profile: str = ""
    """The server's name for the API; found by `api_endpoint` and `model_name` if empty."""
    url: str = ""
    """The Assay server; ASSAY_URL if empty."""
    token: str = field(default="", repr=False)
    """ASSAY_TOKEN if empty."""
    scorers: Sequence[Scorer] = ()
    """The server's scorers that give the base score where there is no `compute_score`."""
    judge_zero_scores: bool = False
    """Whether responses with a base score of 0 are judged too."""

    def __post_init__(self) -> None:
        self.api_key = self.api_key.strip()  # a key from a file ends with its line
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("api_key must be printable ASCII: it goes into a header")
        if not 0 <= self.peak_ratio < self.outer_ratio:
            raise ValueError("peak_ratio must be at least 0 and less than outer_ratio")
        if self.max_penalty < 0:
            raise ValueError("max_penalty must not be negative")
        if self.num_async_workers < 1:
            raise ValueError("num_async_workers must be at least 1")
        if self.timeout_seconds <= 0:
            raise ValueError("timeout_seconds must be more than 0")

    @classmethod
    def of(cls, given: ConfigLike) -> LengthPenaltyConfig:
        """Raises TypeError for a name that is none of a config's."""
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        items = cast("Mapping[str, Any]", given).items()
        unknown = sorted({str(name) for name, _ in items} - {each.name for each in fields(cls)})
        if unknown:
            known = ", ".join(each.name for each in fields(cls))
            raise TypeError(f"length_penalty_config has no {', '.join(unknown)}; it may have {known}")
        # A null in a YAML file means what leaving the line out means.
        told = {str(name): as_plain(value) for name, value in items if value is not None}
        return cls(**told)


#: OmegaConf's DictConfig is no dict, but it has `items` too.
ConfigLike = Union[LengthPenaltyConfig, Mapping[str, Any], None]
