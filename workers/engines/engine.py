"""The engine of a device worker: `ModelCache` keeps the loaded models, `RunningBatch` and `scoring` run them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.errors import AssayError, PromptTooLong
from tasks.inference.engine import (
    AnswerRequest,
    Embedding,
    Generated,
    GenerateRequest,
    Likelihood,
    ModelRef,
    MoreRequests,
    OnGenerated,
    Renewal,
    RewardRequest,
    Scored,
    Weights,
)
from workers.engines import scoring
from workers.engines.likelihood import likelihood, perplexity
from workers.engines.memory import free_bytes, trim_heap
from workers.engines.model import Model, Role
from workers.engines.model_cache import CachedModel, ModelCache, ModelInventory
from workers.engines.model_files import ModelFinder
from workers.engines.precision import choose_device
from workers.engines.rows import Row
from workers.engines.running_batch import Budget, RunningBatch
from workers.engines.tokenization import encode_prompt
from workers.engines.weight_updates import ReadWeights, apply_weights, read_weights

#: Maximum rows of a running batch, and maximum prompt tokens of a forward pass, on a CPU and on a GPU; see
#: docs/models.md.
ROWS = {"cpu": 64, "cuda": 256}
PROMPT_TOKENS = {"cpu": 2048, "cuda": 16384}
#: Share of the free memory that keys and values may use. On a CPU other processes need memory as well.
KV_SHARE = {"cpu": 0.25, "cuda": 0.8}
#: Minimum seconds between two returns of freed memory to the system. Code that is generated for batch shapes and
#: evicted again fragments the heap, and the allocator does not return pages between blocks in use by itself.
TRIM_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class EngineOptions:
    named: Mapping[str, Path]
    """Folders of the models of the default stack, by name."""
    offline: bool = True
    """Never contact the hub; use only files that were downloaded earlier."""
    hub_cache: Path | None = None
    memory_bytes: int | None = None
    """Maximum memory of the loaded models together; unset: the free memory."""
    rows: int | None = None
    """Maximum rows of a running batch; unset: the best number for this device."""
    on_cpu: bool = False
    """Run on the CPU even if a GPU is visible."""


class TransformersEngine:
    """Implements tasks.inference.engine.Engine."""

    def __init__(self, options: EngineOptions, announce: Callable[[ModelInventory], None] | None = None) -> None:
        """`announce` is called with the loaded models and their weights' versions whenever they change."""
        self._options = options
        self._device = torch.device("cpu") if options.on_cpu else choose_device()
        sources = ModelFinder(options.named, options.offline, options.hub_cache)
        self._models = ModelCache(sources, self._device, options.memory_bytes, announce)
        self._trimmed_at = 0.0

    @property
    def inventory(self) -> ModelInventory:
        return self._models.inventory

    def generate(
        self,
        model: ModelRef,
        requests: Sequence[GenerateRequest],
        on_done: OnGenerated | None = None,
        more: MoreRequests | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        renewal: Renewal | None = None,
    ) -> list[Generated | AssayError]:
        answers: dict[int, Generated | AssayError] = {}
        asked = 0

        settle: OnGenerated = on_done or answers.__setitem__

        def encode(fresh: Sequence[GenerateRequest]) -> list[Row]:
            nonlocal asked
            rows = []
            for request in fresh:
                try:
                    rows.append(_row(resident.model, asked, request))
                except AssayError as error:
                    settle(asked, error)
                asked += 1
            return rows

        with self._using(model, "generate") as resident:
            self._batch(resident).run(
                encode(requests),
                lambda row, answer: settle(row.index, answer),
                lambda room: encode(more(room)) if more else [],
                is_cancelled or (lambda: False),
                renewal,
            )
        return [] if on_done else [answers[index] for index in range(asked)]

    def reward(
        self, model: ModelRef, requests: Sequence[RewardRequest], sigmoid: bool = False
    ) -> list[Scored | AssayError]:
        with self._using(model, "reward") as resident:
            return scoring.reward(resident.model, requests, sigmoid)

    def embed(self, model: ModelRef, texts: Sequence[str]) -> list[Embedding | AssayError]:
        with self._using(model, "embed") as resident:
            return scoring.embed(resident.model, texts)

    def similarity(self, model: ModelRef, pairs: Sequence[tuple[str, str]]) -> list[Scored | AssayError]:
        with self._using(model, "embed") as resident:
            return scoring.similarity(resident.model, pairs)

    def likelihood(self, model: ModelRef, requests: Sequence[AnswerRequest]) -> list[Likelihood | AssayError]:
        with self._using(model, "generate") as resident:
            return likelihood(resident.model, requests)

    def perplexity(self, model: ModelRef, texts: Sequence[str]) -> list[Scored | AssayError]:
        with self._using(model, "generate") as resident:
            return perplexity(resident.model, texts)

    def version(self, model: ModelRef) -> str:
        return self._models.get(model, "generate").model.version

    def read(self, uri: str, sha256: str = "") -> ReadWeights:
        return read_weights(uri, sha256)

    def swap(self, model: ModelRef, weights: Weights, version: str) -> None:
        assert isinstance(weights, ReadWeights)
        apply_weights(self._models.get(model, "generate").model, weights, version)
        self._models.announce_update()

    def drop(self, model: ModelRef) -> None:
        self._models.drop(model, "generate")

    @property
    def copies(self) -> list[str]:
        """Ids of the rollouts that have a copy of a model here."""
        return self._models.copies

    def drop_copy(self, copy: str) -> None:
        self._models.drop_copy(copy)

    @contextmanager
    def _using(self, model: ModelRef, role: Role) -> Iterator[CachedModel]:
        """Yield the model, loaded if necessary; afterwards return its temporary memory to the system."""
        try:
            yield self._models.get(model, role)
        finally:
            if self._device.type == "cpu" and time.monotonic() - self._trimmed_at > TRIM_INTERVAL_S:
                trim_heap()
                self._trimmed_at = time.monotonic()

    def _batch(self, resident: CachedModel) -> RunningBatch:
        if resident.batch is None:
            kind, model = self._device.type, resident.model
            kv_tokens = int(KV_SHARE[kind] * free_bytes(self._device)) // model.kv_bytes
            budget = Budget(self._options.rows or ROWS[kind], kv_tokens, PROMPT_TOKENS[kind])
            resident.batch = RunningBatch(model, budget)
        return resident.batch


def _row(model: Model, index: int, request: GenerateRequest) -> Row:
    prompt = encode_prompt(model.tokenizer, request.prompt)
    if len(prompt) >= model.max_length:
        raise PromptTooLong(f"The prompt has {len(prompt)} tokens; the model's context has {model.max_length}.")
    return Row(index, request, prompt, model.max_length - len(prompt))
