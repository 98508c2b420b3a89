"""A row of the running batch: an answer in progress, with its prompt, its tokens and its end conditions."""

import time
from collections.abc import Callable, Collection
from random import Random

from tasks.errors import AssayError, GenerationTimeout
from tasks.inference.engine import Finish, Generated, GenerateRequest, Span

#: Tokens that are searched beyond a stop string's own length: it may start inside a token, or before a character that
#: is split over tokens.
MARGIN = 4

Decode = Callable[[list[int]], str]


class Row:
    def __init__(self, index: int, request: GenerateRequest, prompt: list[int], room: int) -> None:
        """`room`: tokens that fit into the model's context after the prompt."""
        self.index = index
        self.request = request
        self.prompt = prompt
        self.most = min(request.sampling.max_new_tokens, room)
        self._until: float | None = None
        self._stop_tokens = max((len(each.encode()) for each in request.sampling.stop), default=0) + MARGIN
        self.restart()

    def restart(self) -> None:
        """Start again from the prompt, with the same sequence of random numbers."""
        self.output: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[Span] = []
        self.close_calls = 0
        self.finish: Finish | None = None
        self.error: AssayError | None = None
        seed = self.request.sampling.seed
        self._chance = Random() if seed is None else Random(f"{seed}:{self.request.sample}")

    @property
    def is_done(self) -> bool:
        return self.finish is not None or self.error is not None

    @property
    def context(self) -> list[int]:
        """The prompt and the tokens generated so far: the input of the row's prefill."""
        return self.prompt + self.output

    @property
    def need(self) -> int:
        """Maximum number of tokens of the finished row, prompt included."""
        return len(self.prompt) + self.most

    @property
    def place(self) -> int:
        """Position of the newest token, which the model has not processed yet."""
        return len(self.prompt) + len(self.output) - 1

    @property
    def newest(self) -> int:
        return self.output[-1] if self.output else self.prompt[-1]

    def draw(self) -> float:
        """Draw a number in [0, 1) from this row's own generator, so that other rows do not influence it."""
        return self._chance.random()

    def check_time(self) -> None:
        """Fail the row once it times out. Its time starts when it first joins the batch."""
        if self.request.timeout_s is None:
            return
        now = time.monotonic()
        self._until = self._until or now + self.request.timeout_s
        if now > self._until:
            self.error = GenerationTimeout(f"The answer was not complete within {self.request.timeout_s:g} s.")

    def accept(
        self, token: int, logprob: float | None, version: str, end_tokens: Collection[int], decode: Decode
    ) -> bool:
        """Append the next token. Return whether the answer is complete."""
        self.output.append(token)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = Span(version, self.spans[-1].tokens + 1)
        else:
            self.spans.append(Span(version, 1))
        if logprob is not None:
            self.logprobs.append(logprob)
        if token in end_tokens or (self.request.sampling.stop and self._has_stop(decode)):
            self.finish = "stop"
        elif len(self.output) >= self.most:
            self.finish = "length"
        return self.finish is not None

    def _has_stop(self, decode: Decode) -> bool:
        """Return whether a stop string is in the newest tokens. Each token covers at least one byte."""
        tail = decode(self.output[-self._stop_tokens :])
        return any(each in tail for each in self.request.sampling.stop)

    def answer(self, decode: Decode) -> Generated:
        assert self.finish is not None
        text = decode(self.output)
        found = [at for each in self.request.sampling.stop if (at := text.find(each)) >= 0]
        return Generated(
            text=text[: min(found)] if found else text,
            finish=self.finish,
            tokens_in=len(self.prompt),
            token_ids=tuple(self.output),
            logprobs=tuple(self.logprobs) if self.request.logprobs else None,
            version=self.spans[0].version,
            spans=tuple(self.spans),
            prompt_ids=tuple(self.prompt),
            close_calls=self.close_calls,
        )
