"""The batch that generates: rows join when there is room and leave when they are done, token by token.

Prompts are run in groups of one rounded length, equal ones once; their last token is left to the common step, where all
tokens are chosen. Memory decides how many rows there are: see `Budget`. What a row gets does not depend on the others.

New weights are taken between two tokens. Rows that go on with them are read anew, prompt and tokens so far: keys and
values of the old weights would make the next token one of neither version, and its log-probability one that no forward
of the trainer gives again.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.errors import AssayError, DeviceOutOfMemory, NoLongerWanted, OutputNotANumber
from tasks.inference.engine import Generated, Renewal
from workers.engines.memory import free_device_memory, is_out_of_memory
from workers.engines.model import Model
from workers.engines.rows import Row
from workers.engines.sampling import choose_tokens, logprobs_of, note_close_calls
from workers.engines.slots import SlotCache, decoding_mask, round_up

log = logging.getLogger(__name__)

#: Rows join when this share of the batch is free: prompts are run in larger groups, and fewer steps are interrupted.
JOIN_SHARE = 1 / 8

Settle = Callable[[Row, Generated | AssayError], None]
Feed = Callable[[int], Sequence[Row]]


@dataclass(slots=True)
class Budget:
    """What fits on the device at once."""

    rows: int
    kv_tokens: int
    """Rows times the longest of them."""
    prompt_tokens: int
    """Of the prompts that are run together."""


class RunningBatch:
    def __init__(self, model: Model, budget: Budget) -> None:
        self._model = model
        self._full = budget
        self._budget = budget
        self._cache = SlotCache(model.layers)
        self._joins = False
        self._rows: list[Row] = []
        self._failed: list[Row] = []
        self._waiting: list[Row] = []  # by length, the longest last: it is next, so that no long one runs on alone

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
        """Settle all rows, and all that `feed` gives when it is asked for so many more."""
        self._wait(rows)
        try:
            while True:
                may_join = not renewal or self._renew(renewal)
                if may_join and not self._waiting and (room := self._room()):
                    self._wait(feed(room))
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
        finally:  # whatever the callbacks raise, the next run begins with an empty batch
            self._rows.clear()
            self._waiting.clear()
            self._failed.clear()
            self._joins = False

    def _wait(self, rows: Sequence[Row]) -> None:
        self._waiting.extend(rows)
        self._waiting.sort(key=lambda row: (len(row.context), row.context))

    def _renew(self, renewal: Renewal) -> bool:
        """Take new weights if there are some. Returns whether rows may join: not while others end with the old ones."""
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
        """Rows that may join now; none while too few are free to be worth an interruption."""
        free = self._budget.rows - len(self._rows)
        return free if not self._rows or free >= self._budget.rows * JOIN_SHARE else 0

    def _advance(self) -> None:
        """Let a group join, or give each row one token. Once rows join, they do until the batch is full."""
        self._joins = self._joins or self._room() > 0
        if self._joins and (group := self._next_group()):
            self._fill(group)
        else:
            self._joins = False
            self._step()

    # --- joining ---

    def _next_group(self) -> list[Row]:
        """Rows that wait and fit, of one rounded length, taken off the waiting list."""
        group: list[Row] = []
        longest = max((row.need for row in self._rows), default=0)
        prompts: set[tuple[int, ...]] = set()
        while self._waiting:
            row = self._waiting[-1]
            longest = max(longest, row.need)
            rows = len(self._rows) + len(group) + 1
            fits = rows <= self._budget.rows and rows * round_up(longest) <= self._budget.kv_tokens
            if rows > 1 and not fits:  # a single one is tried whatever it takes
                break
            width = self._width(row)
            prompts.add(tuple(row.context))
            alike = width == self._width(group[0]) if group else True
            if not alike or (group and len(prompts) * width > self._budget.prompt_tokens):
                break
            group.append(self._waiting.pop())
        return group

    def _width(self, row: Row) -> int:
        """The places that it is read with, but for the last token: a matter of its length alone."""
        before = len(row.context) - 1
        return round_up(self._model.width(before)) if before else 0

    def _fill(self, group: list[Row]) -> None:
        """Run the prompts, but for their last tokens, into the next rows of the cache."""
        first = len(self._rows)
        self._rows += group  # from here on a failure finds them
        alike: dict[tuple[int, ...], list[int]] = {}
        for at, row in enumerate(group):
            alike.setdefault(tuple(row.context), []).append(first + at)
        width = self._width(group[0])
        if not width:
            return
        # Equal prompts are copied afterwards, so the others must lie side by side.
        places = list(alike.values())
        order = [at for each in places for at in each[:1]] + [at for each in places for at in each[1:]]
        self._rows[first:] = [self._rows[at] for at in order]
        prompts = torch.zeros(len(alike), width, dtype=torch.long)
        for at, prompt in enumerate(alike):
            prompts[at, : len(prompt) - 1] = torch.tensor(prompt[:-1])
        self._reserve(len(self._rows), width)
        self._cache.fill(first, len(alike))
        self._model.forward(
            input_ids=prompts.to(self._model.device),
            position_ids=torch.arange(width, device=self._model.device)[None],
            past_key_values=self._cache,
        )
        copy_to = first + len(alike)
        for at, each in enumerate(places):
            self._cache.move(first + at, range(copy_to, copy_to + len(each) - 1), width)
            copy_to += len(each) - 1

    def _reserve(self, rows: int, length: int) -> None:
        """Have room in the cache. It grows in large steps, because growing copies, but never beyond the budget."""
        cache, most = self._cache, round_up(max(row.need for row in self._rows))
        if rows > cache.rows:
            rows = max(rows, min(self._budget.rows, 2 * cache.rows))
        if length > cache.length:
            length = max(length, min(most, 3 * cache.length // 2))
        rows, length = max(rows, cache.rows), round_up(max(length, cache.length))
        if rows * length > self._budget.kv_tokens:  # it has known longer rows than those of now
            length = most
        cache.resize(rows, length)

    # --- one token more ---

    def _longest(self) -> int:
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
        longest = self._longest()
        self._reserve(len(places), longest + 1)
        self._cache.extend(places, longest)
        return self._model.forward(
            input_ids=tokens,
            position_ids=places[:, None],
            past_key_values=self._cache,
            attention_mask=decoding_mask(self._model.config, places, self._cache.window),
        )

    def _leave(self) -> list[Row]:
        """Take out the rows that are done, and close their gaps with the last rows."""
        places = [at for at, row in enumerate(self._rows) if row.is_done]
        done, self._failed = [self._rows[at] for at in places] + self._failed, []
        for at in reversed(places):
            last = self._rows.pop()
            if at < len(self._rows):
                self._cache.move(len(self._rows), [at], last.place)
                self._rows[at] = last
        return done

    # --- too little memory ---

    def _attempt(self, advance: Callable[[], None]) -> None:
        """Advance; when memory runs out, halve the budget and let all rows begin again. A row that was alone has
        failed, and the others get the full budget back."""
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
            log.warning("one row of %d tokens alone is too large: %s", rows[0].need, message)
            self._budget = self._full
            rows[0].error = DeviceOutOfMemory()
            self._failed += rows
            return
        prompt_tokens = min(self._budget.prompt_tokens, sum(len(row.context) for row in rows))
        self._budget = Budget(len(rows) // 2, self._budget.kv_tokens, prompt_tokens // 2)
        log.warning("out of memory with %d rows: going on with %d at most (%s)", len(rows), self._budget.rows, message)
        for row in rows:
            row.restart()
        self._wait(rows)
