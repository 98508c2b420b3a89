"""One response that a judge is to score, and what became of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from assay.rewards.foreign import as_plain
from assay.rewards.judge_prompt import SCALE, judge_messages
from assay.rewards.length_penalty_config import LengthPenaltyConfig

#: The error of an answer that was not back in time.
LATE = "not judged in time"


@dataclass(frozen=True)
class Question:
    index: int
    """Of the sample in its batch."""
    prompt: str
    response: str
    reference: Any = None
    group: Hashable = None
    base_score: float | None = None
    """None: the server's scorers find it."""

    def request_hash(self, config: LengthPenaltyConfig) -> str:
        """Names the call. All that determines the answer is in it: who is asked, how, and about what."""
        asked = {
            "endpoint": config.profile or config.api_endpoint,
            "model": config.model_name,
            "scale": SCALE,
            "messages": judge_messages(self.prompt, self.response),
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Answer:
    judge_score: float | None = None
    """None when it was not judged: left out on purpose, or failed."""
    base_score: float | None = None
    """What the server's scorers found."""
    error: str = ""
    """Why there is no score though there should be one."""
    unheard: bool = False
    """Whether the judge itself gave no answer: asked in another way, it may."""


def as_reference(value: Any) -> Any:
    """A ground truth in a form that the server takes: text, a number, or a list of these."""
    value = as_plain(value)
    if isinstance(value, list):
        return [each if _is_answer(each) else str(each) for each in value]
    return value if value is None or _is_answer(value) else str(value)


def _is_answer(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)
