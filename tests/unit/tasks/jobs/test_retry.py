"""The decision whether and when a failed item is retried."""

import pytest

from tasks.jobs.execution.retry import FIRST_RETRY_S, MOST_ATTEMPTS, MOST_RESTS, Retry, retry_of
from tasks.jobs.model import ItemError

FINAL = ItemError("refused", "No.")
PASSING = ItemError("api_unavailable", "Later.", retryable=True)
RESTING = ItemError("circuit_open", "Much later.", retryable=True, retry_after_s=30.0)


@pytest.mark.parametrize("error", [None, FINAL])
def test_a_good_result_and_a_permanent_failure_are_not_retried(error: ItemError | None) -> None:
    assert retry_of(error, 1) is None


def test_a_transient_failure_is_retried_with_exponential_backoff() -> None:
    assert [retry_of(PASSING, attempt) for attempt in range(1, MOST_ATTEMPTS + 1)] == [
        Retry(FIRST_RETRY_S),
        Retry(2 * FIRST_RETRY_S),
        None,
    ]


def test_an_open_circuit_pauses_the_whole_stage_until_its_next_probe() -> None:
    assert retry_of(RESTING, MOST_RESTS - 1) == Retry(30.0, rests=True)
    assert retry_of(RESTING, MOST_RESTS) is None


def test_a_result_with_a_fallback_pauses_fewer_times() -> None:
    assert retry_of(RESTING, MOST_ATTEMPTS - 1, MOST_ATTEMPTS) == Retry(30.0, rests=True)
    assert retry_of(RESTING, MOST_ATTEMPTS, MOST_ATTEMPTS) is None
