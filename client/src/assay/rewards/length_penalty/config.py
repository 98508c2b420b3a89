"""Configuration of `LengthPenaltyRewardManager`, from a dataclass, a dict or an OmegaConf mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Union, cast

from assay.rewards.length_penalty.trainer_values import as_plain
from assay.submission import Scorer

#: Model of the judge if the configuration names no model.
DEFAULT_MODEL = "deepseek-v3"


@dataclass
class LengthPenaltyConfig:
    enable: bool = True
    """Whether to apply the length penalty."""
    enable_openai_reward: bool = False
    """Whether a judge's score is part of the reward."""
    api_key: str = field(default="", repr=False)
    """API key for calls without the server; the server has its own keys."""
    model_name: str = DEFAULT_MODEL
    reward_coefficient: float = 1.0
    """Factor of the judge's score."""
    api_endpoint: str = ""
    """Base URL of the API, or a full URL that ends in /chat/completions."""
    num_async_workers: int = 4
    """Maximum number of judge calls in flight, through the server or direct. The server's profile may allow fewer."""
    penalty_scale: float = 1.0
    max_penalty: float = 1.0
    peak_ratio: float = 0.3
    outer_ratio: float = 0.5
    timeout_seconds: float = 300.0
    """Time limit in seconds from the submit on. A response without a verdict by then is invalid."""
    profile: str = ""
    """Name of the server's API profile; if empty, it is found by `api_endpoint` and `model_name`."""
    url: str = ""
    """URL of the Assay server; if empty, ASSAY_URL."""
    token: str = field(default="", repr=False)
    """Bearer token of the Assay server; if empty, ASSAY_TOKEN."""
    scorers: Sequence[Scorer] = ()
    """The server's scorers that compute the base score if there is no `compute_score`."""
    judge_zero_scores: bool = False
    """Whether responses with a base score of 0 are judged too."""

    def __post_init__(self) -> None:
        self.api_key = self.api_key.strip()  # a key read from a file may end with a line end
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("api_key must be printable ASCII, as it is sent in an HTTP header")
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
        """Convert a configuration of any supported form. Raise TypeError for an unknown field."""
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        items = cast("Mapping[str, Any]", given).items()
        unknown = sorted({str(name) for name, _ in items} - {each.name for each in fields(cls)})
        if unknown:
            known = ", ".join(each.name for each in fields(cls))
            message = f"length_penalty_config has unknown fields: {', '.join(unknown)}; known fields: {known}"
            raise TypeError(message)
        # A null in a YAML file means the default, like a missing line.
        values = {str(name): as_plain(value) for name, value in items if value is not None}
        return cls(**values)


#: OmegaConf's DictConfig is not a dict, but it has `items` too.
ConfigLike = Union[LengthPenaltyConfig, Mapping[str, Any], None]
