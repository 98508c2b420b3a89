"""GRPO's statistics of a group, checked against tables calculated by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.scoring.group_statistics import statistics_of


@pytest.mark.parametrize(
    ("rewards", "mean", "variance", "away"),
    [
        # the variance: sum of squared differences between reward and mean, divided by n - 1
        ([1.0, 0.0, 0.0, 1.0], 0.5, 1 / 3, [0.5, -0.5, -0.5, 0.5]),
        ([1.0, 2.0, 3.0], 2.0, 2 / 2, [-1, 0, 1]),
        ([-3.0, 1.0], -1.0, 8 / 1, [-2, 2]),
        ([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], 5.0, 32 / 7, [-3, -1, -1, -1, 0, 0, 2, 4]),
    ],
)
def test_mean_deviation_and_advantage(rewards: list[float], mean: float, variance: float, away: list[float]) -> None:
    group = statistics_of(rewards)
    assert group
    assert group.mean == mean
    assert group.std == pytest.approx(variance**0.5)
    expected = [each / (variance**0.5 + 0.000001) for each in away]
    assert [group.advantage_of(reward) for reward in rewards] == pytest.approx(expected, rel=1e-9)


def test_a_single_item_has_neither_deviation_nor_advantage() -> None:
    group = statistics_of([0.3])
    assert group
    assert (group.mean, group.std, group.advantage_of(0.3)) == (0.3, 0.0, 0.0)


def test_a_group_without_valid_items_has_no_statistics() -> None:
    assert statistics_of([]) is None


@given(st.floats(-1e6, 1e6), st.integers(1, 64))
def test_equal_rewards_have_advantage_zero(reward: float, count: int) -> None:
    group = statistics_of([reward] * count)
    assert group
    assert (group.mean, group.std, group.advantage_of(reward)) == (reward, 0.0, 0.0)


REWARDS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=32)


@given(REWARDS.flatmap(lambda rewards: st.tuples(st.just(rewards), st.permutations(rewards))))
def test_the_order_of_a_group_does_not_matter(case: tuple[list[float], list[float]]) -> None:
    rewards, mixed = case
    assert statistics_of(rewards) == statistics_of(mixed)


@given(st.lists(st.integers(-100, 100).map(lambda tenths: tenths / 10), min_size=2, max_size=32))
def test_advantages_balance_and_keep_the_order_of_rewards(rewards: list[float]) -> None:
    group = statistics_of(rewards)
    assert group
    advantages = [group.advantage_of(reward) for reward in rewards]
    assert sum(advantages) == pytest.approx(0, abs=1e-6)
    ranked = [advantage for _, advantage in sorted(zip(rewards, advantages, strict=True))]
    assert ranked == sorted(advantages)
