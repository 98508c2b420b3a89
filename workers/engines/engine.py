"""The engine of a device worker: models held by `Residents`, run by `RunningBatch` and `scoring`."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.errors import AssayError, PromptTooLong
from tasks.inference.engine import (
    AnswerRequest,
    Done,
    Embedding,
    Generated,
    GenerateRequest,
    Likelihood,
    ModelRef,
    More,
    Renewal,
    RewardRequest,
    Scored,
    Weights,
)
from workers.engines import scoring
from workers.engines.likelihood import likelihood, perplexity
from workers.engines.memory import free_bytes, give_back_pages
from workers.engines.model import Model, Role
from workers.engines.precision import choose_device
from workers.engines.prompts import encode_prompt
from workers.engines.residents import Holdings, Resident, Residents
from workers.engines.rows import Row
from workers.engines.running_batch import Budget, RunningBatch
from workers.engines.sources import Sources
from workers.engines.weights import ReadWeights, put_weights, read_weights

#: Rows that generate together, and tokens of prompts run together, on a CPU and on a GPU; see docs/models.md.
ROWS = {"cpu": 64, "cuda": 256}
PROMPT_TOKENS = {"cpu": 2048, "cuda": 16384}
#: The share of the free memory that keys and values may take: on a CPU other processes live there too.
KV_SHARE = {"cpu": 0.25, "cuda": 0.8}
#: Seconds between two times that freed memory is given back. Code that is generated for batches and forgotten again
#: leaves holes between what is kept, which the allocator does not give back by itself.
GIVE_BACK_S = 0.1


@dataclass(frozen=True, slots=True)
class EngineOptions:
    named: Mapping[str, Path]
    """The models of the default stack."""
    offline: bool = True
    """The hub is not asked; what it once gave is used."""
    hub_cache: Path | None = None
    memory_bytes: int | None = None
    """What all models together may take; unset: what is free."""
    rows: int | None = None
    """Rows that generate together at most; unset: what is best on this device."""
    on_cpu: bool = False
    """Leave GPUs alone."""


class TransformersEngine:
    """Implements tasks.inference.engine.Engine."""

    def __init__(self, options: EngineOptions, announce: Callable[[Holdings], None] | None = None) -> None:
        """`announce` is told which models are here, with which weights, and what is loaded, whenever that changes."""
        self._options = options
        self._device = torch.device("cpu") if options.on_cpu else choose_device()
        sources = Sources(options.named, options.offline, options.hub_cache)
        self._residents = Residents(sources, self._device, options.memory_bytes, announce)
        self._gave_back_at = 0.0

    @property
    def holdings(self) -> Holdings:
        return self._residents.holdings

    def generate(
        self,
        model: ModelRef,
        requests: Sequence[GenerateRequest],
        on_done: Done | None = None,
        more: More | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        renewal: Renewal | None = None,
    ) -> list[Generated | AssayError]:
        answers: dict[int, Generated | AssayError] = {}
        asked = 0

        settle: Done = on_done or answers.__setitem__

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
        return self._residents.get(model, "generate").model.version

    def read(self, uri: str, sha256: str = "") -> ReadWeights:
        return read_weights(uri, sha256)

    def swap(self, model: ModelRef, weights: Weights, version: str) -> None:
        assert isinstance(weights, ReadWeights)
        put_weights(self._residents.get(model, "generate").model, weights, version)
        self._residents.tell()

    def drop(self, model: ModelRef) -> None:
        self._residents.drop(model, "generate")

    @property
    def copies(self) -> list[str]:
        """Whose own copies of models are here."""
        return self._residents.copies

    def drop_copy(self, copy: str) -> None:
        self._residents.drop_copy(copy)

    @contextmanager
    def _using(self, model: ModelRef, role: Role) -> Iterator[Resident]:
        """A model at work, loaded if need be; then memory that it took for that goes back to the system."""
        try:
            yield self._residents.get(model, role)
        finally:
            if self._device.type == "cpu" and time.monotonic() - self._gave_back_at > GIVE_BACK_S:
                give_back_pages()
                self._gave_back_at = time.monotonic()

    def _batch(self, resident: Resident) -> RunningBatch:
        if resident.batch is None:
            kind, model = self._device.type, resident.model
            kv_tokens = int(KV_SHARE[kind] * free_bytes(self._device)) // model.kv_bytes
            budget = Budget(self._options.rows or ROWS[kind], kv_tokens, PROMPT_TOKENS[kind])
            resident.batch = RunningBatch(model, budget)
        return resident.batch


def _row(model: Model, index: int, request: GenerateRequest) -> Row:
    prompt = encode_prompt(model.tokenizer, request.prompt)
    if len(prompt) >= model.longest:
        raise PromptTooLong(f"The prompt has {len(prompt)} tokens; the model's context has {model.longest}.")
    return Row(index, request, prompt, model.longest - len(prompt))
