"""Continuous batching: rows join the batch when it has room and leave when they finish, token by token.

Prompts run in groups of equal rounded length; equal prompts run once. The last token of a prompt is left to the common
decoding step, which chooses every token. Memory limits the number of rows: see `Budget`. The answer of a row does not
depend on the other rows.

New weights are applied between two tokens. Rows that continue with them are prefilled again, prompt and tokens so far:
keys and values of the old weights would produce a next token that belongs to neither version, with a log-probability
that no forward pass of the trainer reproduces.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.errors import AssayError, DeviceOutOfMemory, NoLongerWanted, OutputNotANumber
from tasks.inference.engine import Generated, Renewal
from workers.engines.kv_cache import KeyValueCache, decoding_mask, round_up
from workers.engines.memory import free_device_memory, is_out_of_memory
from workers.engines.model import Model
from workers.engines.rows import Row
from workers.engines.sampling import choose_tokens, logprobs_of, note_close_calls

log = logging.getLogger(__name__)

#: Rows join once this share of the batch is free, so that prompts run in larger groups and interrupt fewer steps.
JOIN_SHARE = 1 / 8

Settle = Callable[[Row, Generated | AssayError], None]
Feed = Callable[[int], Sequence[Row]]


@dataclass(slots=True)
class Budget:
    """Limits of the batch, so that it fits into the device's memory."""

    rows: int
    kv_tokens: int
    """Number of rows times the length of the longest row."""
    prompt_tokens: int
    """Padded tokens of the prompts in a forward pass."""


class RunningBatch:
    def __init__(self, model: Model, budget: Budget) -> None:
        self._model = model
        self._full = budget
        self._budget = budget
        self._cache = KeyValueCache(model.layers)
        self._joins = False
        self._rows: list[Row] = []
        self._failed: list[Row] = []
        self._waiting: list[Row] = []  # sorted by length; the longest is next: no long row shall run alone at the end

    @property
    def cache_bytes(self) -> int:
        return self._cache.rows * self._cache.length * self._model.kv_bytes

    @torch.inference_mode()
    def run(
        self,
        rows: Sequence[Row],
        settle: Settle,
        feed: Feed,
        is_cancelled: Callable[[], bool],
        renewal: Renewal | None = None,
    ) -> None:
        """Run until every row is settled: the given rows, and the rows that `feed(room)` returns meanwhile. It is
        called at every step, with 0 while there is no room."""
        self._wait(rows)
        try:
            while True:
                may_join = not renewal or self._renew(renewal)
                self._wait(feed(self._room() if may_join and not self._waiting else 0))
                if not (self._rows or self._waiting):
                    return
                if is_cancelled():
                    break
                self._attempt(self._advance if may_join else self._step)
                done = self._leave()
                for row in done:
                    settle(row, row.error or self._model.answer(row))
            for row in (*self._rows, *self._waiting):
                settle(row, NoLongerWanted())
        finally:  # even if a callback raises, the next run starts with an empty batch
            self._rows.clear()
            self._waiting.clear()
            self._failed.clear()
            self._joins = False

    def _wait(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self._waiting.extend(rows)
        self._waiting.sort(key=lambda row: (len(row.context), row.context))

    def _renew(self, renewal: Renewal) -> bool:
        """Apply new weights if they are due. Return whether rows may join: not while rows finish with old weights."""
        if not renewal.is_due():
            return True
        if renewal.interrupt == "finish" and self._rows:
            self._joins = False
            return False
        before = self._model.version
        renewal.renew()
        if self._model.version != before:
            rows, self._rows = self._rows, []
            if renewal.interrupt == "restart":
                for row in (*rows, *self._waiting):
                    row.restart()
            self._wait(rows)
        return True

    def _room(self) -> int:
        """Return how many rows may join now; 0 while so few are free that an interruption does not pay off."""
        free = self._budget.rows - len(self._rows)
        return free if not self._rows or free >= self._budget.rows * JOIN_SHARE else 0

    def _advance(self) -> None:
        """Prefill a group, or generate a token per row. Once groups join, they keep joining until the batch is
        full."""
        self._joins = self._joins or self._room() > 0
        if self._joins and (group := self._next_group()):
            self._fill(group)
        else:
            self._joins = False
            self._step()

    # --- joining ---

    def _next_group(self) -> list[Row]:
        """Remove from the waiting list, and return, a group of rows of equal rounded length that fits the budget."""
        group: list[Row] = []
        longest = max((row.need for row in self._rows), default=0)
        prompts: set[tuple[int, ...]] = set()
        while self._waiting:
            row = self._waiting[-1]
            longest = max(longest, row.need)
            rows = len(self._rows) + len(group) + 1
            fits = rows <= self._budget.rows and rows * round_up(longest) <= self._budget.kv_tokens
            if rows > 1 and not fits:  # a single row runs even beyond the budget
                break
            width = self._width(row)
            prompts.add(tuple(row.context))
            is_same_width = width == self._width(group[0]) if group else True
            if not is_same_width or (group and len(prompts) * width > self._budget.prompt_tokens):
                break
            group.append(self._waiting.pop())
        return group

    def _width(self, row: Row) -> int:
        """Return the padded length for the prefill of a row, without its last token. It depends on its length only."""
        before = len(row.context) - 1
        return round_up(self._model.width(before)) if before else 0

    def _fill(self, group: list[Row]) -> None:
        """Prefill: run the prompts, without their last tokens, into the next rows of the cache."""
        first = len(self._rows)
        self._rows += group  # from here on a failure restarts the group too
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for at, row in enumerate(group):
            by_prompt.setdefault(tuple(row.context), []).append(first + at)
        width = self._width(group[0])
        if not width:
            return
        # Equal prompts are copied afterwards, so the distinct prompts need adjacent rows.
        places = list(by_prompt.values())
        order = [at for each in places for at in each[:1]] + [at for each in places for at in each[1:]]
        self._rows[first:] = [self._rows[at] for at in order]
        prompts = torch.zeros(len(by_prompt), width, dtype=torch.long)
        for at, prompt in enumerate(by_prompt):
            prompts[at, : len(prompt) - 1] = torch.tensor(prompt[:-1])
        self._reserve(len(self._rows), width)
        self._cache.fill(first, len(by_prompt))
        self._model.forward(
            input_ids=prompts.to(self._model.device),
            position_ids=torch.arange(width, device=self._model.device)[None],
            past_key_values=self._cache,
        )
        copy_to = first + len(by_prompt)
        for at, each in enumerate(places):
            self._cache.move(first + at, range(copy_to, copy_to + len(each) - 1), width)
            copy_to += len(each) - 1

    def _reserve(self, rows: int, length: int) -> None:
        """Enlarge the cache if necessary: in large steps, because growing copies it, but never beyond the budget."""
        cache, most = self._cache, round_up(max(row.need for row in self._rows))
        if rows > cache.rows:
            rows = max(rows, min(self._budget.rows, 2 * cache.rows))
        if length > cache.length:
            length = max(length, min(most, 3 * cache.length // 2))
        rows, length = max(rows, cache.rows), round_up(max(length, cache.length))
        if rows * length > self._budget.kv_tokens:  # the cache has its length from earlier, longer rows
            length = most
        cache.resize(rows, length)

    # --- decoding ---

    def _newest_place(self) -> int:
        return max(row.place for row in self._rows)

    def _step(self) -> None:
        logits = self._logits()[: len(self._rows)].float()
        tokens = choose_tokens(logits, self._rows)
        logprobs = logprobs_of(logits, self._rows, tokens)
        if not self._model.is_exact:
            note_close_calls(logits, self._rows, self._model.network.dtype)
        for row, is_sound in zip(self._rows, logits.amax(-1).isfinite().tolist(), strict=True):
            row.error = None if is_sound else OutputNotANumber()
        model = self._model
        for row, token, logprob in zip(self._rows, tokens, logprobs, strict=True):
            if not row.accept(token, logprob, model.version, model.end_tokens, model.decode):
                row.check_time()

    def _logits(self) -> Tensor:
        device = self._model.device
        padding = max(0, self._model.least_rows - len(self._rows))
        places = torch.tensor([row.place for row in self._rows] + [0] * padding, device=device)
        tokens = torch.tensor([[row.newest] for row in self._rows] + [[0]] * padding, device=device)
        newest = self._newest_place()
        self._reserve(len(places), newest + 1)
        self._cache.extend(places, newest)
        return self._model.forward(
            input_ids=tokens,
            position_ids=places[:, None],
            past_key_values=self._cache,
            attention_mask=decoding_mask(self._model.config, places, self._cache.window),
        )

    def _leave(self) -> list[Row]:
        """Remove the finished rows and move the last rows into their places. Return finished and failed rows."""
        places = [at for at, row in enumerate(self._rows) if row.is_done]
        done, self._failed = [self._rows[at] for at in places] + self._failed, []
        for at in reversed(places):
            last = self._rows.pop()
            if at < len(self._rows):
                self._cache.move(len(self._rows), [at], last.place)
                self._rows[at] = last
        return done

    # --- out of memory ---

    def _attempt(self, advance: Callable[[], None]) -> None:
        """Advance; if memory runs out, halve the budget and restart every row. A row that ran alone fails, and the
        remaining rows get the full budget again."""
        try:
            advance()
            return
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            message = str(error).split("\n")[0]
        rows, self._rows = self._rows, []
        self._cache.release()
        free_device_memory()
        if len(rows) == 1:
            log.warning("out of memory: a single row of %d tokens does not fit: %s", rows[0].need, message)
            self._budget = self._full
            rows[0].error = DeviceOutOfMemory()
            self._failed += rows
            return
        prompt_tokens = min(self._budget.prompt_tokens, sum(len(row.context) for row in rows))
        self._budget = Budget(len(rows) // 2, self._budget.kv_tokens, prompt_tokens // 2)
        log.warning(
            "out of memory with %d rows: continuing with at most %d (%s)", len(rows), self._budget.rows, message
        )
        for row in rows:
            row.restart()
        self._wait(rows)
