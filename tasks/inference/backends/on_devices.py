"""`local` and `huggingface`: models that a device worker holds."""

from collections.abc import Sequence
from typing import Any

from tasks.errors import AssayError
from tasks.inference.backends.backend import prompt_key
from tasks.inference.engine import Engine
from tasks.inference.generation import generate
from tasks.inference.model import InferenceItem, InferenceSpec
from tasks.inference.models import Models, identity
from tasks.jobs.kinds import Context, Feed, Work
from tasks.jobs.model import ItemError, Result, Stage

#: Rows of a chunk at least, so that an engine is full; and a first guess of the seconds one takes.
LEAST, COST_S = 16, 0.5
#: Texts of a batch that are embedded, of a chunk at least, and a first guess of the seconds one takes.
EMBED_BATCH, EMBED_LEAST, EMBED_S = 256, 32, 0.02


class OnDevices:
    def __init__(self, models: Models) -> None:
        self._models = models

    def check(self, spec: InferenceSpec) -> None:
        self._models.find(spec)

    def stage(self, spec: InferenceSpec) -> Stage:
        if spec.task == "embed":
            return Stage(
                "embed", "device", batch_items=EMBED_BATCH, least_items=EMBED_LEAST, cost_s=EMBED_S,
                timeout_s=spec.timeout_s,
            )  # fmt: skip
        return Stage(
            "generate", "device", streams=True, batch_items=500, least_items=LEAST, cost_s=COST_S,
            timeout_s=spec.timeout_s,
        )  # fmt: skip

    def key(self, spec: InferenceSpec, item: InferenceItem) -> dict[str, Any] | None:
        model = identity(self._models.find(spec))
        if spec.task == "embed":
            return {"answerer": model, "text": item.query} if model else None
        return prompt_key(spec, item, model)

    def batch_key(self, spec: InferenceSpec) -> str:
        """Rows for one model share its running batch, however they are asked."""
        return str(self._models.find(spec))

    def stream(self, context: Context, feed: Feed[InferenceItem]) -> None:
        if first := feed.more(1):
            generate(context, _Rest(feed, first), context.engine(), self._models.find(first[0].spec))

    def embed(self, engine: Engine, spec: InferenceSpec, items: Sequence[InferenceItem]) -> list[Result]:
        results = []
        for each in engine.embed(self._models.find(spec), [item.query or "" for item in items]):
            if isinstance(each, AssayError):
                results.append(Result(error=ItemError(each.name, str(each))))
            else:
                tokens = {"prompt": each.tokens, "completion": 0}
                value: Any = {"embedding": list(each.vector), "tokens": tokens, "version": each.version}
                results.append(Result(value=value))
        return results


class _Rest:
    """A feed of which one item was taken already."""

    def __init__(self, feed: Feed[InferenceItem], first: Sequence[Work[InferenceItem]]) -> None:
        self._feed, self._first = feed, list(first)
        self.done, self.keep_file, self.is_cancelled = feed.done, feed.keep_file, feed.is_cancelled

    def more(self, room: int) -> Sequence[Work[InferenceItem]]:
        first, self._first = self._first, []
        return first or self._feed.more(room)
