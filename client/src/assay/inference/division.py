"""How rows and GPUs divide among workers if all are equally fast. The server gives rows to whoever is free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    worker: int
    rows: range
    gpus: tuple[int, ...]


def divide(rows: int, workers: int, most_each: int | None = None) -> list[range]:
    """Contiguous and even: a rest goes to the first workers, one row each."""
    if most_each is not None:
        rows = min(rows, most_each * workers)
    each, rest = divmod(rows, workers)
    starts = [worker * each + min(worker, rest) for worker in range(workers + 1)]
    return [range(start, end) for start, end in zip(starts, starts[1:])]


def allocate(gpus: int, workers: int, gpus_per_worker: int | None = None) -> list[tuple[int, ...]]:
    """Contiguous and exclusive, `gpus // workers` each unless told; with more workers than GPUs they share."""
    if not gpus:
        return [()] * workers
    if workers > gpus:
        return [(worker % gpus,) for worker in range(workers)]
    if gpus_per_worker:
        return [tuple(range(worker * gpus_per_worker, (worker + 1) * gpus_per_worker)) for worker in range(workers)]
    return [tuple(share) for share in divide(gpus, workers)]


def shares(
    rows: int, workers: int, gpus: int = 0, gpus_per_worker: int | None = None, most_each: int | None = None
) -> list[Share]:
    parts = zip(divide(rows, workers, most_each), allocate(gpus, workers, gpus_per_worker))
    return [Share(worker, *part) for worker, part in enumerate(parts)]
