"""Division of rows and GPUs among equally fast workers, for display. The server dispatches rows to free workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    worker: int
    rows: range
    gpus: tuple[int, ...]


def divide(rows: int, workers: int, most_each: int | None = None) -> list[range]:
    """Divide rows into contiguous ranges of even size; the first workers get the remainder, an extra row each."""
    if most_each is not None:
        rows = min(rows, most_each * workers)
    each, rest = divmod(rows, workers)
    starts = [worker * each + min(worker, rest) for worker in range(workers + 1)]
    return [range(start, end) for start, end in zip(starts, starts[1:])]


def allocate(gpus: int, workers: int, gpus_per_worker: int | None = None) -> list[tuple[int, ...]]:
    """Assign GPUs to workers: contiguous and exclusive, by default `gpus // workers` each. With more workers than GPUs,
    workers share GPUs round-robin."""
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
