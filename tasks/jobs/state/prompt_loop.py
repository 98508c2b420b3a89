"""Prompt loop: the items of a rollout are its prompts, repeated epoch after epoch. The index of an item determines its
prompt and its epoch, so that items need no storage."""

import random
from array import array
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class PromptLoop:
    prompts: int
    seed: int | None
    """Seed of the shuffle: each epoch has a different order. None keeps the order of the file."""

    def epoch(self, index: int) -> int:
        return index // self.prompts

    def prompt(self, index: int) -> int:
        epoch, at = divmod(index, self.prompts)
        return at if self.seed is None else _order(self.prompts, self.seed, epoch)[at]


@lru_cache(maxsize=4)
def _order(prompts: int, seed: int, epoch: int) -> "array[int]":
    order = array("l", range(prompts))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order
