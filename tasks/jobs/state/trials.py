"""Items that are run several times over, as an instruction is in several episodes.

Every trial is a row of the ledger: dispatched, cached, repeated and recovered by itself. The rows of an item follow
each other and are a group, whose stage makes one outcome of them; the first row has it. Nobody outside the ledger sees
rows: what is counted and read back is items. A job says in its layout how many trials it has.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def key_of(key: Mapping[str, Any], trial: int) -> Mapping[str, Any]:
    """What determines the answer of this trial, from what determines that of the item: however many trials there are,
    each has its own."""
    return {**key, "trial": trial} if trial else key


def folded(rows: Iterable[tuple[int, str | None]], trials: int) -> Iterator[tuple[int, str | None]]:
    """From rows of the ledger and their outcomes, as clients read them, to items and theirs."""
    for row, line in rows:
        item, trial = divmod(row, trials)
        if trial == 0:
            yield item, line and f'{{"index":{item}{line[line.index(",") :]}'
