"""What a process that holds models is asked, and what it answers. `workers/engines/` implements `Engine`.

Answers come one per request, in the order of the requests: a value, or the error that this request alone has met. What
concerns all of them (no such model, no memory for it) is raised. Queues, caching and retries are not here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from tasks.errors import AssayError, InvalidRequest

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Finish = Literal["stop", "length"]
Prompt = str | Sequence[Mapping[str, Any]]
"""A text as it is, or chat messages, which the model's own template puts together."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Which model, and how it is held."""

    name: str
    """A model of the default stack, a directory, or a hub id `owner/name`."""
    revision: str = ""
    """Of a hub id: the commit, 40 hex digits."""
    file: str = ""
    """The GGUF file in the directory, when it has several."""
    dtype: Dtype = "auto"
    """`auto`: half precision on a GPU, `float32` on a CPU."""
    copy: str = ""
    """A copy of its own, whose weights may be changed without those of others: a rollout's id."""

    def __str__(self) -> str:
        revision = f"@{self.revision[:12]}" if self.revision else ""
        return self.name + revision + (f"#{self.copy}" if self.copy else "")


@dataclass(frozen=True, slots=True)
class Sampling:
    max_new_tokens: int = 512
    temperature: float = 0.0
    """0 takes the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is no limit."""
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these."""
    seed: int | None = None
    """With a seed the same request gives the same answer again."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InvalidRequest("must be 1 at least", "max_new_tokens")
        if not 0 <= self.temperature <= 100:
            raise InvalidRequest("must lie between 0 and 100", "temperature")
        if not 0 < self.top_p <= 1:
            raise InvalidRequest("must be above 0 and at most 1", "top_p")
        if self.top_k < 0:
            raise InvalidRequest("must not be negative", "top_k")
        if "" in self.stop:
            raise InvalidRequest("must not be empty", "stop")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    prompt: Prompt
    sampling: Sampling = Sampling()
    sample: int = 0
    """Which of several samples of one prompt this is; with a seed, each has its own answer."""
    logprobs: bool = False
    timeout_s: float | None = None
    """Seconds it may generate; then it has failed."""


class Span(NamedTuple):
    """Tokens in a row that one version of the weights has made."""

    version: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Generated:
    text: str
    finish: Finish
    """`length`: it was cut off at `max_new_tokens` or at the end of the model's context."""
    tokens_in: int
    token_ids: tuple[int, ...]
    """All that was generated: the end token, and those of a stop string, too."""
    logprobs: tuple[float, ...] | None
    """Of each of `token_ids`, by the model's own distribution: before temperature, top_k and top_p."""
    version: str
    """Of the weights that made it; where they changed meanwhile, of those that made its first token."""
    spans: tuple[Span, ...] = ()
    """Which weights made which of `token_ids`."""
    prompt_ids: tuple[int, ...] = ()
    close_calls: int = 0
    """Tokens of a greedy answer next to which another was as likely, as far as the model's precision goes: what shares
    the batch may decide between them. 0 where it cannot, in float32 on a CPU."""

    @property
    def tokens_out(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class RewardRequest:
    prompt: Prompt
    response: str


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """An answer that is given; how likely is it?"""

    prompt: Prompt
    answer: str


@dataclass(frozen=True, slots=True)
class Scored:
    value: float
    tokens: int
    truncated: bool
    """Whether the text was longer than the model takes, and only its allowed part was scored."""
    version: str


@dataclass(frozen=True, slots=True)
class Embedding:
    vector: tuple[float, ...]
    tokens: int
    truncated: bool
    version: str


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely a given text is, token by token."""

    logprobs: tuple[float, ...]
    tokens_in: int
    version: str

    @property
    def total(self) -> float:
        return sum(self.logprobs)

    @property
    def mean(self) -> float:
        """Normalised by length."""
        return self.total / len(self.logprobs)


Done = Callable[[int, Generated | AssayError], None]
"""Told each answer when it is there, with the index of its request."""
More = Callable[[int], Sequence[GenerateRequest]]
"""Asked for further requests, so many at most, when the running batch has room. They count on from the last index."""


Interrupt = Literal["continue", "restart", "finish"]
"""What becomes of answers under way when new weights come: they go on with the new ones, after the tokens they have;
they begin anew; or they end with the old ones, while no others begin."""


class Renewal(Protocol):
    """New weights for a model while it generates."""

    @property
    def interrupt(self) -> Interrupt: ...

    def is_due(self) -> bool:
        """Whether there are some. Asked before every token, so it must be cheap."""

    def renew(self) -> None:
        """Put them into the model, by `Engine.swap`. What it raises ends the run."""


class Weights(Protocol):
    """Weights that were read and found whole. Whether they fit a model shows when they are put into it."""

    @property
    def bytes(self) -> int: ...


class Engine(Protocol):
    """One caller at a time; only `read` may be called while another call runs."""

    def generate(
        self,
        model: ModelRef,
        requests: Sequence[GenerateRequest],
        on_done: Done | None = None,
        more: More | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        renewal: Renewal | None = None,
    ) -> list[Generated | AssayError]:
        """An answer for each request, and after those for each that `more` gave. With `on_done` all are told there, and
        none is kept: a run may go on for as long as there are requests."""

    def reward(
        self, model: ModelRef, requests: Sequence[RewardRequest], sigmoid: bool = False
    ) -> list[Scored | AssayError]:
        """What a reward model (sequence classification, one label) makes of each response."""

    def embed(self, model: ModelRef, texts: Sequence[str]) -> list[Embedding | AssayError]:
        """A vector of length 1 for each text."""

    def similarity(self, model: ModelRef, pairs: Sequence[tuple[str, str]]) -> list[Scored | AssayError]:
        """Cosine of the two texts' embeddings."""

    def likelihood(self, model: ModelRef, requests: Sequence[AnswerRequest]) -> list[Likelihood | AssayError]:
        """Log-probability of each token of the answer, after the prompt."""

    def perplexity(self, model: ModelRef, texts: Sequence[str]) -> list[Scored | AssayError]:
        """Of each text; its first token, which nothing precedes, does not count."""

    def version(self, model: ModelRef) -> str:
        """Of the weights of a model that generates; it is loaded if it is not here."""

    def read(self, uri: str, sha256: str = "") -> Weights:
        """Weights from a safetensors file, or a folder of them. Raises WeightsRefused, for another checksum too, or
        StorageUnavailable."""

    def swap(self, model: ModelRef, weights: Weights, version: str) -> None:
        """Put other weights of the same architecture into the model. From then on answers name this version. Raises
        WeightsRefused, and then nothing has changed."""

    def drop(self, model: ModelRef) -> None:
        """Let go of it; when it is asked for next, it is loaded as it was at first."""
