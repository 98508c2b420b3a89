"""Every penalty, checked on each branch and border against tables calculated by hand."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.errors import CannotJudge
from tasks.scoring.penalties import BUILT_IN, find
from tasks.scoring.penalties.group_length import GroupLength, median_of, penalty_of
from tasks.scoring.penalty import GroupPenalty, ItemPenalty
from tasks.scoring.reference_page import penalties_as_markdown
from tests.conftest import ROOT


def of_item(name: str, text: str, length: int | None, **options: Any) -> float:
    penalty = find(name)
    assert isinstance(penalty, ItemPenalty)
    return penalty.of_item(text, length, penalty.options.model_validate(options))


def of_group(lengths: Sequence[int], valid: Sequence[bool] = (), **options: Any) -> list[float]:
    """Return the penalty of each length; by default every item is valid."""
    penalty = find("group_length")
    assert isinstance(penalty, GroupPenalty)
    counted = [length for length, is_valid in zip(lengths, valid or [True] * len(lengths), strict=True) if is_valid]
    return list(map(penalty.of_group(counted, penalty.options.model_validate(options)), lengths))


DEFAULT = GroupLength()
WIDE = GroupLength(max_penalty=2.0, peak_ratio=0.25, outer_ratio=0.75)


@pytest.mark.parametrize(
    ("length", "median", "options", "expected"),
    [
        # p = 0.3, o = 0.5, at most 1, M = 100: free from 70 to 130, full at 50 and at 150
        (100, 100, DEFAULT, 0.0),
        (71, 100, DEFAULT, 0.0),
        (70, 100, DEFAULT, 0.0),
        (69, 100, DEFAULT, 0.05),  # (70 - 69) / (70 - 50)
        (60, 100, DEFAULT, 0.5),  # 10 / 20
        (51, 100, DEFAULT, 0.95),  # 19 / 20
        (50, 100, DEFAULT, 1.0),
        (49, 100, DEFAULT, 1.0),
        (0, 100, DEFAULT, 1.0),
        (129, 100, DEFAULT, 0.0),
        (130, 100, DEFAULT, 0.0),
        (131, 100, DEFAULT, 0.05),  # (131 - 130) / (150 - 130)
        (140, 100, DEFAULT, 0.5),  # 10 / 20
        (149, 100, DEFAULT, 0.95),  # 19 / 20
        (150, 100, DEFAULT, 1.0),
        (151, 100, DEFAULT, 1.0),
        (10**9, 100, DEFAULT, 1.0),
        # p = 0.25, o = 0.75, at most 2, M = 8: free from 6 to 10, full at 2 and at 14
        (6, 8, WIDE, 0.0),
        (10, 8, WIDE, 0.0),
        (5, 8, WIDE, 0.5),  # 2 * 1 / 4
        (12, 8, WIDE, 1.0),  # 2 * 2 / 4
        (2, 8, WIDE, 2.0),
        (14, 8, WIDE, 2.0),
        (1, 8, WIDE, 2.0),
        (15, 8, WIDE, 2.0),
        # a median between two lengths: M = 10.5, free from 7.35 to 13.65, full at 5.25 and at 15.75
        (8, 10.5, DEFAULT, 0.0),
        (7, 10.5, DEFAULT, 1 / 6),  # 0.35 / 2.1
        (14, 10.5, DEFAULT, 1 / 6),
        (6, 10.5, DEFAULT, 9 / 14),  # 1.35 / 2.1
        (5, 10.5, DEFAULT, 1.0),
        (16, 10.5, DEFAULT, 1.0),
        # no free zone: p = 0, o = 0.1
        (100, 100, GroupLength(peak_ratio=0, outer_ratio=0.1), 0.0),
        (105, 100, GroupLength(peak_ratio=0, outer_ratio=0.1), 0.5),  # 5 / 10
        (90, 100, GroupLength(peak_ratio=0, outer_ratio=0.1), 1.0),
        # an outer border below 0 is never reached: p = 0.5, o = 1.5, M = 100
        (0, 100, GroupLength(peak_ratio=0.5, outer_ratio=1.5), 0.5),  # (50 - 0) / (50 + 50)
        (250, 100, GroupLength(peak_ratio=0.5, outer_ratio=1.5), 1.0),
        # M = 0
        (0, 0, DEFAULT, 0.0),
        (500, 0, DEFAULT, 0.0),
    ],
)
def test_the_group_length_penalty_follows_its_formula(
    length: int, median: float, options: GroupLength, expected: float
) -> None:
    assert penalty_of(length, median, options) == pytest.approx(expected, rel=1e-12, abs=0)


@given(st.integers(1, 98), st.integers(1, 100), st.integers(1, 10**7))
def test_lengths_on_a_border_are_exact(peak: int, more: int, hundredth: int) -> None:
    outer, median = peak + more, 100 * hundredth
    options = GroupLength(peak_ratio=peak / 100, outer_ratio=outer / 100, max_penalty=3.0)
    assert penalty_of(median - peak * hundredth, median, options) == 0.0
    assert penalty_of(median + peak * hundredth, median, options) == 0.0
    assert penalty_of(median + peak * hundredth + 1, median, options) > 0.0
    assert penalty_of(median + outer * hundredth, median, options) == 3.0
    assert penalty_of(median + outer * hundredth - 1, median, options) < 3.0
    if outer <= 100:
        assert penalty_of(median - outer * hundredth, median, options) == 3.0


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([], 0.0), ([7], 7.0), ([7, 0], 3.5), ([9, 1, 5], 5.0), ([1, 100, 4, 3], 3.5), ([5, 5, 5, 5], 5.0)],
)
def test_the_median_is_the_middle_or_the_mean_of_the_middle_two(lengths: list[int], expected: float) -> None:
    assert median_of(lengths) == expected


@pytest.mark.parametrize(
    ("lengths", "valid", "expected"),
    [
        ([100, 60, 140, 50, 151], [], [0.0, 0.5, 0.5, 1.0, 1.0]),  # M = 100
        ([60, 80, 120, 140], [], [0.5, 0.0, 0.0, 0.5]),  # M = (80 + 120) / 2
        ([123], [], [0.0]),
        ([0], [], [0.0]),
        ([64, 64, 64], [], [0.0, 0.0, 0.0]),
        ([0, 0, 900], [], [0.0, 0.0, 0.0]),  # M = 0
        ([100, 9000, 100, 9000, 100], [True, False, True, False, True], [0.0, 1.0, 0.0, 1.0, 0.0]),  # M = 100, not 9000
        ([100, 140, 60], [True, False, False], [0.0, 0.5, 0.5]),
        ([10, 20, 30], [False, False, False], [0.0, 0.0, 0.0]),
        ([], [], []),
    ],
)
def test_a_group_penalty_uses_the_median_of_valid_items(
    lengths: list[int], valid: list[bool], expected: list[float]
) -> None:
    assert of_group(lengths, valid) == pytest.approx(expected)


GROUP = st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), min_size=1, max_size=16)
OPTIONS = st.builds(
    lambda peak, more, most: {"peak_ratio": peak, "outer_ratio": peak + more, "max_penalty": most},
    st.floats(0, 2),
    st.floats(0.01, 2),
    st.floats(0, 10),
)


@given(GROUP.flatmap(lambda group: st.tuples(st.just(group), st.permutations(range(len(group))))), OPTIONS)
def test_a_permutation_of_a_group_permutes_its_penalties(
    case: tuple[list[tuple[int, bool]], list[int]], options: dict[str, float]
) -> None:
    group, order = case
    lengths, valid = zip(*group, strict=True)
    penalties = of_group(lengths, valid, **options)
    mixed = of_group([lengths[at] for at in order], [valid[at] for at in order], **options)
    assert mixed == [penalties[at] for at in order]


@given(GROUP, OPTIONS, st.integers(2, 1000))
def test_scaling_lengths_keeps_the_penalties_of_a_group(
    group: list[tuple[int, bool]], options: dict[str, float], factor: int
) -> None:
    lengths, valid = zip(*group, strict=True)
    assert of_group([factor * length for length in lengths], valid, **options) == of_group(lengths, valid, **options)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6), OPTIONS)
def test_the_penalty_is_bounded_and_grows_with_distance_from_the_median(
    one: int, other: int, median: int, options: dict[str, float]
) -> None:
    chosen = GroupLength.model_validate(options)
    near, far = sorted((one, other), key=lambda length: abs(length - median))
    assert 0 <= penalty_of(near, median, chosen) <= penalty_of(far, median, chosen) <= chosen.max_penalty


@given(
    st.integers(0, 3000), st.integers(0, 2000), st.integers(0, 150), st.integers(1, 150), st.integers(0, 50)
)  # twice the median, hundredths, tenths
def test_the_penalty_equals_its_formula_in_exact_arithmetic(
    length: int, twice: int, peak: int, more: int, most: int
) -> None:
    median, p, o, height = Fraction(twice, 2), Fraction(peak, 100), Fraction(peak + more, 100), Fraction(most, 10)
    if median == 0 or (1 - p) * median <= length <= (1 + p) * median:
        expected = Fraction(0)
    elif length <= (1 - o) * median or length >= (1 + o) * median:
        expected = height
    elif length < median:
        expected = height * ((1 - p) * median - length) / ((1 - p) * median - (1 - o) * median)
    else:
        expected = height * (length - (1 + p) * median) / ((1 + o) * median - (1 + p) * median)
    options = GroupLength(peak_ratio=float(p), outer_ratio=float(o), max_penalty=float(height))
    assert penalty_of(length, float(median), options) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("length", "factor", "overlong_buffer", "soft_overlong"),
    [
        # a limit of 100 tokens, with the last 20 as the buffer
        (0, 1.0, 0.0, 0.0),
        (79, 1.0, 0.0, 0.0),
        (80, 1.0, 0.0, 0.0),
        (81, 1.0, 0.05, 0.05),  # 1 / 20
        (90, 1.0, 0.5, 0.5),  # 10 / 20
        (99, 1.0, 0.95, 0.95),  # 19 / 20
        (100, 1.0, 1.0, 1.0),
        (101, 1.0, 1.05, 1.0),  # 21 / 20; beyond the limit only one of the two penalties grows
        (130, 1.0, 2.5, 1.0),  # 50 / 20
        (80, 3.0, 0.0, 0.0),
        (90, 3.0, 1.5, 0.5),  # 3 * 10 / 20
        (100, 3.0, 3.0, 1.0),
        (130, 0.0, 0.0, 1.0),
    ],
)
def test_the_overlong_penalty_starts_at_the_buffer(
    length: int, factor: float, overlong_buffer: float, soft_overlong: float
) -> None:
    buffered = of_item("overlong_buffer", "", length, max_length=100, buffer_length=20, factor=factor)
    assert buffered == pytest.approx(overlong_buffer)
    assert of_item("soft_overlong", "", length, max_length=100, cache_length=20) == pytest.approx(soft_overlong)


def test_a_buffer_may_cover_the_full_length() -> None:
    assert of_item("overlong_buffer", "", 5, max_length=10, buffer_length=10) == 0.5
    assert of_item("soft_overlong", "", 5, max_length=10, cache_length=10) == 0.5


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 10**9))
def test_overlong_penalties_grow_with_length(one: int, other: int, limit: int, buffer: int) -> None:
    (shorter, longer), (buffer, limit) = sorted((one, other)), sorted((limit, buffer))
    soft = [of_item("soft_overlong", "", each, max_length=limit, cache_length=buffer) for each in (shorter, longer)]
    hard = [of_item("overlong_buffer", "", each, max_length=limit, buffer_length=buffer) for each in (shorter, longer)]
    assert 0 <= soft[0] <= soft[1] <= 1
    assert 0 <= hard[0] <= hard[1]
    assert soft == [min(each, 1.0) for each in hard]


@pytest.mark.parametrize("name", ["overlong_buffer", "soft_overlong"])
def test_a_missing_length_fails_an_overlong_penalty(name: str) -> None:
    penalty = find(name)
    assert isinstance(penalty, ItemPenalty)
    options = {"max_length": 9, "buffer_length" if name == "overlong_buffer" else "cache_length": 1}
    with pytest.raises(CannotJudge, match="`response_tokens`") as caught:
        penalty.of_item("a text", None, penalty.options.model_validate(options))
    assert caught.value.reason == "length_missing"


@pytest.mark.parametrize(
    ("text", "ngram", "expected"),
    [
        ("", 3, 0.0),
        (" \n", 1, 0.0),
        ("a b", 3, 0.0),  # no n-gram
        ("a b c", 3, 0.0),  # a single n-gram
        ("a b c d e", 3, 0.0),  # 3 of 3 distinct
        ("a b c a b c", 3, 0.25),  # abc bca cab abc: 3 of 4 distinct
        ("a\tb \n c a  b c ", 3, 0.25),
        ("The cat THE Cat", 2, 1 / 3),  # the cat, cat the, the cat: 2 of 3
        ("a a a a", 3, 0.5),  # 1 of 2
        ("no " * 100, 1, 0.99),  # 1 of 100
        ("a a b", 1, 1 / 3),  # 2 of 3
        ("ab ab", 1, 0.5),
        ("aaaaaa", 3, 0.0),  # a single word
        ("我爱你我爱你", 3, 0.25),  # as abcabc
        ("我爱 你我爱你", 3, 0.25),
        ("あいうあいう", 3, 0.25),
        ("アイウアイウ", 3, 0.25),
        ("กขคกขค", 3, 0.25),
        ("go去go去", 2, 1 / 3),  # go去, 去go, go去: 2 of 3
        ("Köln köln", 1, 0.5),
    ],
)
def test_repetition_is_the_share_of_repeated_ngrams(text: str, ngram: int, expected: float) -> None:
    assert of_item("repetition", text, None, ngram=ngram) == pytest.approx(expected)
    assert of_item("repetition", text, None, ngram=ngram, max_penalty=4.0) == pytest.approx(4 * expected)


@given(st.text(alphabet="ab 我爱\nกข", max_size=60), st.integers(1, 5), st.floats(0, 10))
def test_repetition_is_bounded_and_does_not_fall_for_a_doubled_text(text: str, ngram: int, most: float) -> None:
    once = of_item("repetition", text, None, ngram=ngram, max_penalty=most)
    twice = of_item("repetition", f"{text} {text}", None, ngram=ngram, max_penalty=most)
    assert 0 <= once <= twice <= most


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.integers(1, 4))
def test_repetition_equals_a_count_over_listed_ngrams(words: list[str], ngram: int) -> None:
    seen: list[str] = []
    again = 0
    for at in range(len(words) - ngram + 1):
        here = " ".join(words[at : at + ngram])
        again += here in seen
        seen.append(here)
    expected = again / len(seen) if seen else 0.0
    assert of_item("repetition", " ".join(words), None, ngram=ngram) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("group_length", {"peak_ratio": 0.5, "outer_ratio": 0.5}, "`peak_ratio` must be less than `outer_ratio`"),
        ("group_length", {"peak_ratio": 0.6}, "`peak_ratio` must be less than `outer_ratio`"),
        ("group_length", {"peak_ratio": -0.1}, "greater than or equal to 0"),
        ("group_length", {"max_penalty": -1.0}, "greater than or equal to 0"),
        ("group_length", {"max_penalty": float("nan")}, "finite number"),
        ("group_length", {"outer_ratio": float("inf")}, "finite number"),
        ("group_length", {"max_penalty": "1"}, "valid number"),
        ("group_length", {"peak": 0.1}, "Extra inputs"),
        ("overlong_buffer", {}, "Field required"),
        ("overlong_buffer", {"max_length": 10, "buffer_length": 0}, "greater than 0"),
        ("overlong_buffer", {"max_length": 10, "buffer_length": 11}, "`buffer_length` must not be greater than"),
        ("overlong_buffer", {"max_length": 10**12, "buffer_length": 1}, "less than or equal to 1000000000"),
        ("overlong_buffer", {"max_length": 10, "buffer_length": True}, "valid integer"),
        ("soft_overlong", {"max_length": 0, "cache_length": 1}, "greater than 0"),
        ("soft_overlong", {"max_length": 10, "cache_length": 11}, "`cache_length` must not be greater than"),
        ("repetition", {"ngram": 0}, "greater than or equal to 1"),
    ],
)
def test_inconsistent_options_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        find(name).options.model_validate(options)


def test_penalties_declare_whether_they_need_length_or_group() -> None:
    assert [(each.name, each.grouped, each.needs_length) for each in BUILT_IN] == [
        ("group_length", True, True),
        ("overlong_buffer", False, True),
        ("soft_overlong", False, True),
        ("repetition", False, False),
    ]


def test_an_unknown_penalty_is_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"unknown penalty 'group_lenght'; did you mean 'group_length'\?"):
        find("group_lenght")
    with pytest.raises(ValueError, match="penalties are group_length, overlong_buffer, repetition, soft_overlong"):
        find("zzz")


def test_docs_list_every_penalty_with_current_options() -> None:
    assert penalties_as_markdown() in (ROOT / "docs/scoring.md").read_text(), "run `make docs`"
    assert all(each.description for each in BUILT_IN)
