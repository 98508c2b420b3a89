"""Batches of texts of like length, as large as memory allows.

On a CPU a batch has texts of one rounded length only: what a text is computed with is then a matter of its own length,
and its result does not depend on its company. On a GPU larger batches are worth more than that.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tasks.errors import AssayError, DeviceOutOfMemory
from workers.engines.memory import free_device_memory, is_out_of_memory

log = logging.getLogger(__name__)

T = TypeVar("T")
In = TypeVar("In")


@dataclass(frozen=True, slots=True)
class TokenBudget:
    tokens: int
    """Rows of a batch times the longest of them."""
    rows: int
    alike: bool = False
    """Whether a batch has texts of one length only."""

    @property
    def half(self) -> "TokenBudget":
        return replace(self, tokens=max(1, self.tokens // 2), rows=max(1, self.rows // 2))


def token_batches(lengths: Sequence[int], places: Sequence[int], budget: TokenBudget) -> Iterator[list[int]]:
    """The places, the longest first, so that a batch is mostly text and little padding. One that alone exceeds the
    budget is a batch of its own."""
    batch: list[int] = []
    for place in sorted(places, key=lambda each: -lengths[each]):
        full = len(batch) >= budget.rows or (batch and (len(batch) + 1) * lengths[batch[0]] > budget.tokens)
        if batch and (full or (budget.alike and lengths[place] != lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def run_batches(
    lengths: Sequence[int], budget: TokenBudget, compute: Callable[[list[int]], Sequence[T]]
) -> list[T | AssayError]:
    """What `compute` gives for each place. When memory runs out, the rest goes on with half the budget; one text that
    alone is too much has failed."""
    found: dict[int, T | AssayError] = {}
    left = list(range(len(lengths)))
    while left:
        for batch in token_batches(lengths, left, budget):
            try:
                found.update(zip(batch, compute(batch), strict=True))
                continue
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            free_device_memory()
            if len(batch) == 1:
                found[batch[0]] = DeviceOutOfMemory()
                continue
            budget = replace(budget, tokens=len(batch) * lengths[batch[0]], rows=len(batch)).half
            log.warning("out of memory with %d texts: going on with %d tokens at most", len(batch), budget.tokens)
            break
        left = [place for place in left if place not in found]
    return [found[place] for place in range(len(lengths))]


def settle_each(asked: Iterable[In], work: Callable[[In], T]) -> list[T | AssayError]:
    """What is wrong with one of them is its own result, and does not concern the others."""
    found: list[T | AssayError] = []
    for each in asked:
        try:
            found.append(work(each))
        except AssayError as error:
            found.append(error)
    return found
