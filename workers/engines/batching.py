"""Batches of texts of similar length, as large as memory allows; halved after an out-of-memory error.

On a CPU a batch holds texts of the same rounded length only: a text's computation then depends on its own length, and
its result does not depend on the other texts. On a GPU the speed of larger batches matters more than this guarantee.
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
    """Number of rows of a batch times the length of the longest row."""
    rows: int
    equal_lengths: bool = False
    """Whether every text of a batch must have the same length."""

    @property
    def half(self) -> "TokenBudget":
        return replace(self, tokens=max(1, self.tokens // 2), rows=max(1, self.rows // 2))


def token_batches(lengths: Sequence[int], places: Sequence[int], budget: TokenBudget) -> Iterator[list[int]]:
    """Yield batches of indices, sorted by length, the longest first, so that a batch has little padding. A text that
    alone exceeds the budget is a batch by itself."""
    batch: list[int] = []
    for place in sorted(places, key=lambda each: -lengths[each]):
        full = len(batch) >= budget.rows or (batch and (len(batch) + 1) * lengths[batch[0]] > budget.tokens)
        if batch and (full or (budget.equal_lengths and lengths[place] != lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def run_batches(
    lengths: Sequence[int], budget: TokenBudget, compute: Callable[[list[int]], Sequence[T]]
) -> list[T | AssayError]:
    """Return the result of `compute` for each text, in order. If memory runs out, retry the remaining texts with half
    the budget; a text that does not fit alone fails with DeviceOutOfMemory."""
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
            log.warning("out of memory with %d texts: continuing with at most %d tokens", len(batch), budget.tokens)
            break
        left = [place for place in left if place not in found]
    return [found[place] for place in range(len(lengths))]


def settle_each(asked: Iterable[In], work: Callable[[In], T]) -> list[T | AssayError]:
    """Apply `work` to each element. An AssayError becomes the result of its own element; other elements are
    unaffected."""
    found: list[T | AssayError] = []
    for each in asked:
        try:
            found.append(work(each))
        except AssayError as error:
            found.append(error)
    return found
