"""Job submission: validate, hash, look up cached answers, store, dispatch. A job is invisible until it is complete."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from config import keys
from tasks import quick_json
from tasks.errors import Conflict, InvalidRequest
from tasks.jobs.core_parts import CoreParts
from tasks.jobs.kind import ItemSelector, answer_namespace
from tasks.jobs.model import JobHead, JobRequest, Result, StageLimits, StageRecord
from tasks.jobs.stage import Work
from tasks.jobs.state.cache import canonical, request_hash
from tasks.jobs.state.layout import Layout
from tasks.jobs.state.ledger import PARTS, Staged, compress
from tasks.jobs.state.outcome import settle
from tasks.jobs.state.outcome_store import PART_ITEMS
from tasks.jobs.state.payloads import STAGING_S
from tasks.jobs.state.prompt_loop import PromptLoop
from tasks.jobs.submission.draft import Draft, validated
from tasks.jobs.submission.upload import Upload, as_lines, checked_lines

#: Number of cached outcomes written by one script call.
PAGE = 500
#: Maximum number of ranges per pending entry: the script `fill_queues` reads and writes whole entries.
RANGES = 200
#: Maximum number of in-flight items of a stored job, whose outcomes were not moved out of Redis yet: bounds its memory.
WINDOW_ITEMS = 100_000
#: Hidden last stage of a stored job, which moves outcomes to the storage; the cost is an initial estimate.
MOVE_STAGE = StageRecord(PARTS, "cpu", limits=StageLimits(cost_s=0.2))


class Submitter:
    def __init__(self, core: CoreParts, job_ttl_s: float, idempotency_ttl_s: int, stored_items: int) -> None:
        """`job_ttl_s`: TTL of an ended job in seconds; `stored_items`: a job with more items is stored in files."""
        self._state = core.state
        self._payloads = core.payloads
        self._storage = core.storage
        self._ledger = core.ledger
        self._cache = core.cache
        self._kinds = core.kinds
        self._registry = core.registry
        self._dispatcher = core.dispatcher
        self._job_ttl_s = job_ttl_s
        self._idempotency_ttl_s = idempotency_ttl_s
        self._stored_items = stored_items

    def submit(
        self,
        request: JobRequest,
        idempotency_key: str | None = None,
        token: str = "",
        keep_s: float | None = None,
    ) -> str:
        """Submit a job and return its id: a new id, or the id of an earlier request with the same idempotency key.

        Raises InvalidRequest, and Conflict when the key was used with a different body. An interrupted submission
        leaves no visible job; repeating it with its key completes it under the same id. `token` names the submitter's
        bearer token; `keep_s` shortens the TTL of the ended job.
        """
        draft = Draft.of(request.head, self._kinds)
        if selector := self._selector(draft):
            request = request.model_copy(update={"items": list(selector(iter(request.items)))})
        items = [validated(draft.kind.item_model, item, f"items[{at}]") for at, item in enumerate(request.items)]
        trials = draft.kind.trials(draft.spec)
        if trials > 1:
            self._require_few(len(items) * trials)
        keep_s = self._keep_s(keep_s)
        if len(items) > self._stored_items:
            return self._submit_stored(draft, as_lines(request.items), idempotency_key, token, keep_s)
        job = uuid4().hex
        if idempotency_key:
            body = hashlib.sha256(canonical(request.model_dump(mode="json")).encode()).hexdigest()
            job = self._reserve(idempotency_key, body, job)
            if self._state.exists(keys.job(job)):
                self._ledger.confirm()
                return job
        hits = self._look_up(draft, items) if request.cache == "use" else {}
        # A unique temporary name: the same request may be in flight twice, and only one of the two becomes the job.
        name = f"{job}~{uuid4().hex[:8]}"
        blocks = self._payloads.write(name, request.items)
        staged = Staged(name, blocks, is_grouped=draft.is_grouped or trials > 1)
        total = len(items) * trials
        if trials > 1:
            self._ledger.enroll(name, 0, [row - row % trials for row in range(total)], STAGING_S)
        elif draft.is_grouped:
            self._ledger.enroll(name, 0, _groups(request.items), STAGING_S)
        settled = [settle(index, request.items[index], hits[index]) for index in sorted(hits)]
        for start in range(0, len(settled), PAGE):
            page = {each.index: each.outcome for each in settled[start : start + PAGE]}
            self._ledger.prefill(name, draft.stages[0].name, page, STAGING_S)
        missing = compress(row for row in range(total) if row not in hits)
        counts = {"total": total, "ok": len(hits), "cached": len(hits), "token": token, "layout": Layout(trials=trials)}
        self._create(job, staged, draft.definition(), draft.record(keep_s) | counts, missing)
        if len(hits) < total:
            self._dispatcher.fill(draft.stages[0].pool)
        return job

    def submit_lines(
        self, head: JobHead, lines: Iterable[bytes], idempotency_key: str | None = None, token: str = ""
    ) -> str:
        """Submit a job whose items are lines of JSON, like `submit`, but with few items in memory at a time. Errors
        name the line."""
        draft = Draft.of(head, self._kinds)
        checked = checked_lines(lines, draft.kind.item_model)
        if selector := self._selector(draft):
            checked = as_lines(selector(map(quick_json.read, checked)))
        first = list(islice(checked, self._stored_items + 1))
        if not first:
            raise InvalidRequest("There are no items: send one JSON object per line.", field="items")
        if len(first) > self._stored_items:
            given = chain(first, checked)
            return self._submit_stored(draft, given, idempotency_key, token, self._keep_s())
        request = JobRequest.model_construct(**dict(head), items=[json.loads(line) for line in first])
        return self.submit(request, idempotency_key, token)

    def _submit_stored(
        self, draft: Draft, lines: Iterable[bytes], idempotency_key: str | None, token: str, keep_s: float
    ) -> str:
        """Submit a job whose items are stored in files. Workers look up the cache when they run the items, since a
        lookup at submission would take too long for a large job."""
        if draft.kind.trials(draft.spec) > 1:
            self._require_few(self._stored_items + 1)
        self._require_reach()
        upload = Upload(self._state, self._storage, self._ledger, job := uuid4().hex)
        upload.write(lines, draft.is_grouped)
        if idempotency_key:
            try:
                job = self._reserve(idempotency_key, _body_hash(draft.head, upload.digest), job)
            except Conflict:
                upload.abandon()
                raise
        more = {
            "total": upload.total,
            "layout": Layout(upload.name),
            "part_items": PART_ITEMS,
            "merged": 0,
            "inflight": upload.total,
            "window_items": WINDOW_ITEMS,
            "token": token,
        }
        fields = draft.record(keep_s, hidden=[MOVE_STAGE]) | more
        staged, definition = Staged(upload.name, is_grouped=draft.is_grouped), draft.definition(hidden=[MOVE_STAGE])
        if not self._create(job, staged, definition, fields, f"0-{upload.total - 1}"):
            upload.abandon()
        self._dispatcher.fill(draft.stages[0].pool)
        return job

    # --- rollouts ---

    def loop(
        self,
        head: JobHead,
        lines: Iterable[bytes],
        seed: int | None,
        keep_items: int,
        idempotency_key: str | None = None,
        token: str = "",
    ) -> str:
        """Submit a rollout: an open-ended job whose items are the given prompts, epoch after epoch; the Lua function
        `feeding.feed` decides when to begin further prompts. Without prompts it has no items. Returns a new id, or the
        id of an earlier request with the same idempotency key; the id is also in the spec."""
        job = uuid4().hex
        draft = self._rollout_draft(head, job)
        staged, layout = Staged(f"{job}~"), Layout()
        checked = checked_lines(lines, draft.kind.item_model)
        first = list(islice(checked, self._stored_items + 1))
        digest = hashlib.sha256(b"\n".join(first)).hexdigest()
        if len(first) > self._stored_items:
            self._require_reach()
            upload = Upload(self._state, self._storage, self._ledger, job)
            upload.write(chain(first, checked), is_grouped=False)
            staged, digest = Staged(upload.name), upload.digest
            layout = Layout(upload.name, loop=PromptLoop(upload.total, seed))
        elif first:
            staged = replace(
                staged, blocks=self._payloads.write(staged.name, [quick_json.read(line) for line in first])
            )
            layout = Layout(loop=PromptLoop(len(first), seed))
        if idempotency_key:
            job = self._reserve(idempotency_key, _body_hash(head, digest), job)
        more = {"total": 0, "open": 1, "layout": layout, "keep_items": max(1, keep_items), "token": token}
        draft = self._rollout_draft(head, job)  # the idempotency key may have given it another id
        self._create(job, staged, draft.definition(), draft.record(self._job_ttl_s) | more, "")
        return job

    def _rollout_draft(self, head: JobHead, job_id: str) -> Draft:
        return Draft.of(head.model_copy(update={"spec": head.spec | {"rollout": job_id}}), self._kinds)

    # --- shared by every kind of submission ---

    def _keep_s(self, keep_s: float | None = None) -> float:
        return self._job_ttl_s if keep_s is None else min(keep_s, self._job_ttl_s)

    def _selector(self, draft: Draft) -> ItemSelector | None:
        return draft.kind.item_selector(draft.spec, self._count_device_slots)

    def _count_device_slots(self) -> int:
        return sum(worker.pool == "device" for worker in self._registry.workers())

    def _require_reach(self) -> None:
        self._storage.require_reach(worker.host for worker in self._registry.workers() if worker.pool != "beat")

    def _require_few(self, rows: int) -> None:
        """Raise InvalidRequest if a job with trials is too large for Redis. Items with trials are never stored in
        files, where items would be read and rows moved in different units."""
        if rows > self._stored_items:
            raise InvalidRequest(
                f"A job that runs items several times may have at most {self._stored_items:,} runs (items times "
                "trials): split the items into several jobs.",
                field="items",
            )

    def _reserve(self, key: str, body: str, job_id: str) -> str:
        record = json.dumps({"body": body, "job_id": job_id})
        reserved = self._state.set(keys.idempotency(key), record, nx=True, get=False, ex=self._idempotency_ttl_s)
        if reserved:
            return job_id
        first = json.loads(str(self._state.get(keys.idempotency(key)) or record))
        if first["body"] != body:
            raise Conflict("This idempotency key was used for a different request: use a new key for a new request.")
        return str(first["job_id"])

    def _look_up(self, draft: Draft, items: Sequence[BaseModel]) -> dict[int, Result]:
        """Return cached answers by index. A job of several stages looks up each stage when it runs."""
        if len(draft.stages) > 1:
            return {}
        stage = draft.stages[0]
        answers = answer_namespace(draft.kind, stage)
        requests: list[str] = []
        for index, item in enumerate(items):
            key = stage.key(Work(index, item, spec=draft.spec))
            if key is None:
                return {}
            requests.append(request_hash(answers, stage.name, key))
        found = self._cache.get(answers, list(dict.fromkeys(requests)))
        return {
            index: stage.advance(Work(index, items[index], spec=draft.spec), found[request])
            for index, request in enumerate(requests)
            if request in found
        }

    def _create(
        self,
        job_id: str,
        staged: Staged,
        definition: Mapping[str, str],
        fields: Mapping[str, object],
        pending: str,
    ) -> bool:
        """Create the job from the data that was staged. Return False if the job exists already."""
        ranges = pending.split(",") if pending else []
        entries = [(str(fields["first"]), ",".join(ranges[at : at + RANGES])) for at in range(0, len(ranges), RANGES)]
        return self._ledger.create(job_id, staged, definition, fields, entries)


def _body_hash(head: JobHead, digest: str) -> str:
    """Return the hash of a request whose items have this digest, for its idempotency key."""
    return hashlib.sha256((canonical(head.model_dump(mode="json")) + digest).encode()).hexdigest()


def _groups(items: Sequence[dict[str, Any]]) -> list[int]:
    """Return the group of each item: the index of the first item with the same group id. An item without a group id
    forms a group by itself."""
    first: dict[str, int] = {}
    groups = []
    for index, item in enumerate(items):
        group = item.get("group_id")
        groups.append(index if group is None else first.setdefault(str(group), index))
    return groups
