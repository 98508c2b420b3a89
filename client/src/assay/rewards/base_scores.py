"""Base scores by the trainer's own `compute_score`, in verl's form. Runs where it is called: such functions often use
signals for their timeouts, which only a main thread may do."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from assay.rewards.dataproto import Sample

log = logging.getLogger(__name__)

ComputeScore = Callable[..., Any]


@dataclass
class BaseScores:
    scores: list[float | None]
    """None where it was no finite number: a failure, not a score."""
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """What else was returned, by name; every sample has an entry under every name."""


def compute_base_scores(compute_score: ComputeScore, samples: Sequence[Sample]) -> BaseScores:
    """What `compute_score` raises is raised."""
    computed = BaseScores([])
    for index, sample in enumerate(samples):
        result = compute_score(
            data_source=sample.data_source,
            solution_str=sample.response,
            ground_truth=sample.ground_truth,
            extra_info=dict(sample.extra_info),
        )
        rest: Mapping[str, Any] = {}
        if isinstance(result, Mapping):
            result, rest = result["score"], {name: value for name, value in result.items() if name != "score"}
        score = float(result)
        if not math.isfinite(score):
            log.warning("compute_score gave %s for sample %d: it counts as failed", score, index)
        computed.scores.append(score if math.isfinite(score) else None)
        for name, value in rest.items():
            computed.extra.setdefault(str(name), [None] * index).append(value)
        for values in computed.extra.values():
            if len(values) <= index:
                values.append(None)
    return computed
