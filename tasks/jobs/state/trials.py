"""Trials: items that are run several times, such as an instruction that is run in several episodes.

Every trial is a row of the ledger: dispatched, cached, retried and recovered independently. The rows of an item are
consecutive and form a group, whose grouped stage combines them into a single outcome, stored with the first row. Rows
are internal to the ledger: counters and results are in items. The job's layout states its number of trials.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def key_of(key: Mapping[str, Any], trial: int) -> Mapping[str, Any]:
    """Return the cache key of a trial, derived from the key of its item: each trial has a different key, which does not
    depend on the number of trials."""
    return {**key, "trial": trial} if trial else key


def folded(rows: Iterable[tuple[int, str | None]], trials: int) -> Iterator[tuple[int, str | None]]:
    """Convert rows of the ledger and their outcomes to items and their outcomes, in the form that clients read."""
    for row, line in rows:
        item, trial = divmod(row, trials)
        if trial == 0:
            yield item, line and f'{{"index":{item}{line[line.index(",") :]}'
