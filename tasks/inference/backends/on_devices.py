"""Backends `local` and `huggingface`: models that a device worker holds."""

from collections.abc import Sequence
from typing import Any

from tasks.errors import AssayError
from tasks.inference.backends.backend import answerable, prompt_key
from tasks.inference.engine import ENGINE
from tasks.inference.generation import generate
from tasks.inference.model import InferenceItem, InferenceSpec
from tasks.inference.models import Models, identity
from tasks.jobs.model import ItemError, Result, StageLimits
from tasks.jobs.stage import BatchStage, Context, Feed, Key, Stage, StreamStage, Work

#: Minimum rows of a chunk, so that an engine is full; and the initial estimate of the seconds that a row takes.
LEAST, COST_S = 16, 0.5
#: For embeddings: maximum texts of a batch, minimum texts of a chunk, and the initial estimate of seconds per text.
EMBED_BATCH, EMBED_LEAST, EMBED_S = 256, 32, 0.02


class OnDevices:
    def __init__(self, models: Models) -> None:
        self._models = models

    def check(self, spec: InferenceSpec) -> None:
        self._models.find(spec)

    def stage(self, spec: InferenceSpec) -> Stage[InferenceItem]:
        return EmbedStage(spec, self._models) if spec.task == "embed" else GenerateStage(spec, self._models)

    def batch_key(self, spec: InferenceSpec) -> str:
        """Return a key per model: rows for the same model share its running batch, even if their specs differ."""
        return str(self._models.find(spec))


class GenerateStage(StreamStage[InferenceItem]):
    """Generates the answers of rows in a model's running batch."""

    def __init__(self, spec: InferenceSpec, models: Models) -> None:
        limits = StageLimits(batch_items=500, least_items=LEAST, cost_s=COST_S, timeout_s=spec.timeout_s)
        super().__init__("generate", "device", limits)
        self._spec = spec
        self._models = models

    def key(self, work: Work[InferenceItem]) -> Key | None:
        return answerable(work.item, lambda: prompt_key(self._spec, work.item, identity(self._models.find(self._spec))))

    def stream(self, context: Context, feed: Feed[InferenceItem]) -> None:
        if first := feed.more(1):
            generate(context, _Rest(feed, first), context.get(ENGINE), self._models.find(first[0].spec))


class EmbedStage(BatchStage[InferenceItem]):
    """Embeds texts with a model, batch by batch."""

    def __init__(self, spec: InferenceSpec, models: Models) -> None:
        limits = StageLimits(batch_items=EMBED_BATCH, least_items=EMBED_LEAST, cost_s=EMBED_S, timeout_s=spec.timeout_s)
        super().__init__("embed", "device", limits)
        self._spec = spec
        self._models = models

    def key(self, work: Work[InferenceItem]) -> Key | None:
        return answerable(work.item, lambda: self._key(work.item))

    def _key(self, item: InferenceItem) -> Key | None:
        model = identity(self._models.find(self._spec))
        return {"answerer": model, "text": item.query} if model else None

    def run(self, context: Context, batch: Sequence[Work[InferenceItem]]) -> Sequence[Result]:
        results = []
        texts = [work.item.query or "" for work in batch]
        for each in context.get(ENGINE).embed(self._models.find(self._spec), texts):
            if isinstance(each, AssayError):
                results.append(Result(error=ItemError(each.name, str(each))))
            else:
                tokens = {"prompt": each.tokens, "completion": 0}
                value: Any = {"embedding": list(each.vector), "tokens": tokens, "version": each.version}
                results.append(Result(value=value))
        return results


class _Rest:
    """Adapter of a feed from which the first item was already taken: returns that item first."""

    def __init__(self, feed: Feed[InferenceItem], first: Sequence[Work[InferenceItem]]) -> None:
        self._feed, self._first = feed, list(first)
        self.done, self.keep_file, self.is_cancelled = feed.done, feed.keep_file, feed.is_cancelled

    def more(self, room: int) -> Sequence[Work[InferenceItem]]:
        first, self._first = self._first, []
        return first or self._feed.more(room)
