"""Allocation of GPUs to workers, by the rules and tables of the multi-worker inference system."""

import pytest

from workers.devices.allocation import allocate


def gpus(count: int) -> list[str]:
    return [str(index) for index in range(count)]


def test_eight_gpus_for_four_workers_are_pairs() -> None:
    assert allocate(gpus(8), 4).groups == (("0", "1"), ("2", "3"), ("4", "5"), ("6", "7"))


@pytest.mark.parametrize(
    ("total", "workers", "each"),
    [
        (4, 2, 2),  # development
        (8, 4, 2),  # balanced
        (8, 8, 1),  # most parallel
        (8, 2, 4),  # large models
        (1, 1, 1),  # a single GPU
        (8, 1, 8),
    ],
)
def test_recommended_configurations(total: int, workers: int, each: int) -> None:
    allocation = allocate(gpus(total), workers)
    assert [len(group) for group in allocation.groups] == [each] * workers
    assert [gpu for group in allocation.groups for gpu in group] == gpus(total), (
        "ranges are contiguous and disjoint, and cover every GPU"
    )
    assert not allocation.note
    assert not allocation.shared


def test_a_remainder_is_given_out_and_reported() -> None:
    allocation = allocate(gpus(8), 3)
    assert allocation.groups == (("0", "1", "2"), ("3", "4", "5"), ("6", "7"))
    assert allocation.note == "8 GPUs do not divide by 3 workers: the first 2 get 3, the others 2."


def test_more_workers_than_gpus_share_with_a_warning() -> None:
    allocation = allocate(gpus(2), 5)
    assert allocation.groups == (("0",), ("1",), ("0",), ("1",), ("0",))
    assert allocation.shared
    assert "share" in allocation.note


def test_without_gpus_every_worker_is_a_cpu_slot() -> None:
    assert allocate([], 2).groups == ((), ())


def test_no_worker_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        allocate(gpus(2), 0)
