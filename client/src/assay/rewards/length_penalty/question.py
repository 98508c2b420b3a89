"""Question to a judge about a response, and the judge's answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from assay.rewards.length_penalty.config import LengthPenaltyConfig
from assay.rewards.length_penalty.judge_prompt import SCALE, judge_messages
from assay.rewards.length_penalty.trainer_values import as_plain

#: Error of a response that got no verdict before the deadline.
TIMED_OUT = "not judged in time"


@dataclass(frozen=True)
class Question:
    index: int
    """Index of the sample in its batch."""
    prompt: str
    response: str
    reference: Any = None
    group: Hashable = None
    base_score: float | None = None
    """The base score; None if the server's scorers compute it."""

    def request_hash(self, config: LengthPenaltyConfig) -> str:
        """Hash everything that determines the answer: endpoint, model, scale and messages."""
        request = {
            "endpoint": config.profile or config.api_endpoint,
            "model": config.model_name,
            "scale": SCALE,
            "messages": judge_messages(self.prompt, self.response),
        }
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Answer:
    judge_score: float | None = None
    """The judge's score; None if the response was not judged, on purpose or because of an error."""
    base_score: float | None = None
    """Base score by the server's scorers."""
    error: str = ""
    """Cause of a missing score; empty if the response was skipped on purpose."""
    judge_unavailable: bool = False
    """Whether the judge itself did not reply, so that a direct call may succeed."""


def as_reference(value: Any) -> Any:
    """Convert a ground truth to a form that the server accepts: a text, a number, or a list of texts and numbers."""
    value = as_plain(value)
    if isinstance(value, list):
        return [each if _is_answer(each) else str(each) for each in value]
    return value if value is None or _is_answer(value) else str(value)


def _is_answer(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)
