"""Draft: a validated request before it becomes a job, with its kind, its parsed spec, its stages and the ledger's
record of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tasks.errors import InvalidRequest
from tasks.jobs.kind import Kind, Kinds, full_batch_key
from tasks.jobs.model import JobHead, StageRecord
from tasks.jobs.stage import Stage
from tasks.jobs.states import QUEUED
from tasks.tracing import current_traceparent


@dataclass(frozen=True, slots=True)
class Draft:
    head: JobHead
    kind: Kind[Any, Any]
    spec: BaseModel
    stages: Sequence[Stage[Any]]

    @classmethod
    def of(cls, head: JobHead, kinds: Kinds) -> "Draft":
        """Validate a request without its items. Raise InvalidRequest."""
        kind = kinds[head.kind]
        spec = validated(kind.spec_model, head.spec, "spec")
        kind.check(spec)
        stages = list(kind.stages(spec))
        _check_stages(stages)
        return cls(head, kind, spec, stages)

    @property
    def is_grouped(self) -> bool:
        return any(stage.grouped for stage in self.stages)

    def definition(self, hidden: Sequence[StageRecord] = ()) -> dict[str, str]:
        """Return the fields of the job's definition. `hidden` stages follow the stages of the kind."""
        stages = [
            {"name": each.name, "pool": each.pool, "grouped": each.grouped}
            for each in (*(stage.record for stage in self.stages), *hidden)
        ]
        return {
            "spec": self.spec.model_dump_json(),
            "metadata": json.dumps(self.head.metadata),
            "stages": json.dumps(stages),
        }

    def record(self, keep_s: float, hidden: Sequence[StageRecord] = ()) -> dict[str, object]:
        """Return the fields of the job's hash."""
        head = self.head
        stages = [*(stage.record for stage in self.stages), *hidden]
        fields: dict[str, object] = {
            "state": QUEUED,
            "kind": self.kind.name,
            "cache": head.cache,
            "priority": head.priority,
            "on_error": json.dumps(head.model_dump(mode="json")["on_error"]),
            "ok": 0,
            "failed": 0,
            "cached": 0,
            "epoch": 0,
            "max_failed_share": head.allowed_failed_share,
            "deadline_s": head.deadline_s or "",
            "item_deadline_s": head.item_deadline_s or "",
            "keep_s": keep_s,
            "batch_key": full_batch_key(self.kind, self.spec),
            "first": stages[0].name,
            "asks": int(any(stage.mode == "ask" for stage in stages)),
        }
        if head.slots:
            fields["slots"] = head.slots
        if traceparent := current_traceparent():
            fields["trace"] = traceparent
        for stage in stages:
            fields |= _stage_fields(stage)
        return fields


def _stage_fields(stage: StageRecord) -> Mapping[str, object]:
    limits = stage.limits
    return {
        f"pool:{stage.name}": stage.pool,
        f"grouped:{stage.name}": int(stage.grouped),
        f"cost:{stage.name}": limits.cost_s,
        f"batch_items:{stage.name}": limits.batch_items,
        f"least_items:{stage.name}": limits.least_items,
        f"streams:{stage.name}": int(stage.mode == "stream"),
        f"most_out:{stage.name}": limits.most_out,
        f"pending:{stage.name}": 0,
    }


def validated(model: type[BaseModel], value: object, where: str) -> BaseModel:
    """Parse a value; raise InvalidRequest that names the field, `where` being the path of the value itself."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        path = where + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise InvalidRequest(f"{path}: {first['msg'].removeprefix('Value error, ')}", field=path) from error


def _check_stages(stages: Sequence[Stage[Any]]) -> None:
    if len({stage.name for stage in stages}) < len(stages):
        raise InvalidRequest("spec.stages: names must be unique", field="spec.stages")
    if sum(stage.grouped for stage in stages) > 1 or stages[0].grouped:
        raise InvalidRequest("spec.stages: at most one stage may be grouped, and not the first", field="spec.stages")
