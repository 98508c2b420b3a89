"""Every scorer on realistic answers: 1 for correct, 0 for wrong, and an error for an item that cannot be scored."""

import random
import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import CannotJudge
from tasks.scoring.latex import last_boxed
from tasks.scoring.numerals import last_numeral
from tasks.scoring.registry import find
from tasks.scoring.scorer import Sample


def judge(scorer: str, text: str, *references: str, **options: Any) -> float:
    found = find(scorer)
    return found.score(Sample(text, references), found.options.model_validate(options))


def reason(scorer: str, text: str, *references: str, **options: Any) -> str:
    with pytest.raises(CannotJudge) as caught:
        judge(scorer, text, *references, **options)
    return caught.value.reason


@pytest.mark.parametrize(
    ("response", "reference"),
    [
        ("The answer is 5.", "5"),
        ("A: 18", "18"),
        ("#### 18", "18"),
        ("**18**", "18"),
        ("18.00", "18"),
        ("18", "16 - 3 - 4 = 9, 9 * 2 = 18\n#### 18"),
        ("10 - 3 = 7", "7"),
        ("5-3", "3"),
        ("-5", "-5"),
        ("it is −5", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("12 apples\n- 5 pears", "5"),
        (r"\boxed{- 5}", "-5"),
        ("1,234.50", "1234.5"),
        ("$1,000,000.00", "1000000"),
        ("1\u202f234", "1234"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        ("1,2,3", "3"),
        ("1, 2, 3", "3"),
        ("3/4", "0.75"),
        ("1 1/2", "1.5"),
        ("1½", "1.5"),
        ("½", "0.5"),
        (".5", "1/2"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{\frac{1}{2}}, in 7 steps", "0.5"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{{{12}}}", "12"),
        (r"\boxed{12} and \boxed{13", "12"),
        (r"1\frac{1}{2}", "1.5"),
        (r"-\frac{1}{2}", "-0.5"),
        (r"\frac12", "0.5"),
        (r"\dfrac{3}{4}", "0.75"),
        (r"so \(\boxed{18}\).", "18"),
        (r"$\$18$", "18"),
        ("５２", "52"),
        ("٣", "3"),
        ("€1,000", "1000"),
        ("Rs.500", "500"),
        ("USD500", "500"),
        ("共5个", "5"),
        ("答案是5，所以", "5"),
        ("1e3", "1000"),
        ("1.5E-3", "0.0015"),
        ("1.5 × 10^3", "1500"),
        (r"3 \times 10^{8}", "3e8"),
        ("3×10⁸", "300000000"),
        ("2^10", "1024"),
        ("5 meters", "5"),
        ("5kg", "5"),
        ("25 m²", "25"),
        (r"25\text{ cm}^2", "25"),
        ("5 million", "5000000"),
        ("5 million", "5"),
        ("75%", "75"),
        (r"75\%", "75%"),
        ("75 percent", "75"),
        ("x=5", "5"),
    ],
)
def test_a_correct_number_is_found_in_any_notation(response: str, reference: str) -> None:
    assert judge("numeric_match", response, reference) == 1.0


@pytest.mark.parametrize(
    ("response", "reference"),
    [
        ("", "5"),
        ("I do not know.", "5"),
        ("5", "-5"),
        ("-5", "5"),
        ("12 or 13", "12"),
        ("75%", "0.75"),
        ("H2O", "2"),
        (r"3\sqrt{2}", "2"),
        ("31π", "3"),
        ("5/0", "5"),
        ("100,200", "200"),
        ("0.3333", "1/3"),
        (r"\boxed{x} in 5 steps", "5"),
        ("1" * 500, "1"),
        ("2^999999", "2"),
        ("1e5000", "1"),
    ],
)
def test_a_wrong_number_scores_zero(response: str, reference: str) -> None:
    assert judge("numeric_match", response, reference) == 0.0


@pytest.mark.parametrize(
    ("response", "reference", "options"),
    [
        ("0.3333", "1/3", {"tolerance": 1e-3}),
        ("101", "100", {"relative_tolerance": 0.01}),
        ("75%", "0.75", {"percent": "as_share"}),
        ("75%", "0.75", {"percent": "either"}),
        ("75%", "75", {"percent": "either"}),
        ("1.234,5", "1234,50", {"decimal_comma": True}),
        ("18\nChecked in 2 ways. A: 18", "18", {"after": "A:"}),
    ],
)
def test_options_change_which_numbers_are_equal(response: str, reference: str, options: dict[str, Any]) -> None:
    assert judge("numeric_match", response, reference, **options) == 1.0


@given(st.integers(-(10**15), 10**15), st.integers(0, 6))
def test_a_number_survives_separators_units_and_a_full_stop(units: int, decimals: int) -> None:
    number = units / 10**decimals
    assert judge("numeric_match", f"We get ${number:,.6f} dollars.", f"{number:.6f}") == 1.0
    assert judge("numeric_match", rf"\boxed{{{number:.6f}\text{{ m}}^2}}", f"{number:.6f}") == 1.0
    assert judge("numeric_match", f"{number:.6f}", f"{number + 1:.6f}") == 0.0


@given(st.text(alphabet="0123456789.,-+/%eE^{}()[]$ \\boxedfract¼²−x\n", max_size=200))
def test_no_text_crashes_the_number_parser(text: str) -> None:
    last_numeral(text)
    last_boxed(text)
    judge("choice_match", text, "A")


@pytest.mark.parametrize(
    ("response", "reference"),
    [
        ("(B)", "B"),
        ("B.", "B"),
        ("b", "B"),
        ("B", "(B) Paris"),
        ("Answer: b", "B"),
        ("**Answer:** B", "B"),
        ("Answer: **B**", "B"),
        ("<answer>B</answer>", "B"),
        ("The answer is B because of A", "B"),
        ("The answer is A because it rains", "A"),
        ("The answer is B, because option A is wrong", "B"),
        ("The answer is B and A is wrong", "B"),
        ("Answer: A. Wait. Answer: B", "B"),
        ("The correct answer would be option D", "D"),
        ("the answer is: \n\nB", "B"),
        ("A dog is not B but C", "C"),
        ("the answer is a dog, D", "D"),
        ("So it's B!", "B"),
        ("b) Paris", "B"),
        ("B. Vitamin C", "B"),
        (r"\boxed{B}", "B"),
        (r"The answer is $\boxed{\text{(B)}}$", "B"),
        ("选B", "B"),
        ("故选：Ｂ", "B"),
        ("正确答案为（D）", "D"),
        ("选BD", "B, D"),
        ("Answer: A, B", "AB"),
    ],
)
def test_a_correct_choice_is_found_in_any_phrasing(response: str, reference: str) -> None:
    assert judge("choice_match", response, reference) == 1.0


@pytest.mark.parametrize(
    "response", ["", "dunno", "A dog", "Answer: A or B", "Options A, B, C.", "The answer is not A: B"]
)
def test_a_missing_choice_scores_zero(response: str) -> None:
    assert judge("choice_match", response, "A") == 0.0


def test_i_is_a_choice_only_where_it_stands_alone() -> None:
    assert judge("choice_match", "I think it is B", "B", choices="ABCDEFGHI") == 1.0
    assert judge("choice_match", "Answer: I", "I", choices="ABCDEFGHI") == 1.0


@pytest.mark.parametrize(
    ("response", "options", "score"),
    [
        (" Paris \n", {}, 1.0),
        ("Pa\u0301ris", {}, 0.0),
        ("paris", {}, 0.0),
        ("paris", {"ignore_case": True}, 1.0),
        ("Paris!", {"ignore_punctuation": True}, 1.0),
        ("the Paris", {"ignore_articles": True}, 1.0),
        ("<think>London?</think>Paris", {}, 1.0),
        ("<think>Paris", {}, 0.0),
        ("It is <answer>Paris</answer>", {"within": "answer"}, 1.0),
        ("Paris", {"within": "answer"}, 0.0),
        ("", {}, 0.0),
    ],
)
def test_exact_match_ignores_differences_by_its_options(response: str, options: dict[str, Any], score: float) -> None:
    from tasks.scoring.extraction import extract_text

    parsed = find("exact_match").options.model_validate(options)
    assert judge("exact_match", extract_text(response, "answer", parsed.within), "Paris", "Parigi", **options) == score


@pytest.mark.parametrize(
    ("options", "score"),
    [
        ({"terms": ["cat"]}, 1.0),
        ({"terms": ["CAT"], "ignore_case": False}, 0.0),
        ({"terms": ["at"], "whole_words": True}, 0.0),
        ({"terms": ["cat"], "whole_words": True}, 1.0),
        ({"terms": ["cat", "dog"], "need": "all"}, 0.0),
        ({"terms": ["cat", "dog"], "need": "any"}, 1.0),
        ({"terms": ["cat", "dog"], "need": "none"}, 0.0),
        ({"terms": ["cat", "dog"], "need": "share"}, 0.5),
        ({}, 1.0),
    ],
)
def test_contains_searches_terms_or_references(options: dict[str, Any], score: float) -> None:
    assert judge("contains", "the Cat sat", "sat", **options) == score


def test_similarity_is_a_share_of_the_best_reference() -> None:
    assert judge("similarity_ratio", "kitten", "mitten", "dog") == pytest.approx(5 / 6)
    assert judge("similarity_ratio", "b a", "a b", ignore_order=True) == 1.0
    assert judge("similarity_ratio", "kitten", "dog", least=0.5) == 0.0


@pytest.mark.parametrize(
    ("options", "score"),
    [
        ({"most": 10}, 1.0),
        ({"most": 9}, 0.0),
        ({"most": 8, "margin": 4}, 0.5),
        ({"least": 12, "margin": 4}, 0.5),
        ({"least": 11}, 0.0),
        ({"unit": "words", "least": 2, "most": 2}, 1.0),
        ({"unit": "lines", "most": 1}, 1.0),
    ],
)
def test_length_decreases_outside_its_bounds(options: dict[str, Any], score: float) -> None:
    assert judge("length", "0123 56789", **options) == score


def test_repetition_is_the_share_of_distinct_n_grams() -> None:
    assert judge("repetition", "a b c d e f g") == 1.0
    assert judge("repetition", "a b c d " * 4) == pytest.approx(4 / 13)
    assert judge("repetition", "a b c d " * 4, allowed=0.7) == 1.0
    assert judge("repetition", "好好好好好好", unit="chars", n=2) == pytest.approx(1 / 5)
    assert judge("repetition", "") == 1.0


@pytest.mark.parametrize(
    ("response", "options", "score"),
    [
        ("<think>a</think> <answer>b</answer>\n", {}, 1.0),
        ("<answer>b</answer><think>a</think>", {}, 0.0),
        ("<think>a</think>", {}, 0.0),
        ("<think>a<answer>b</answer></think>", {}, 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", {}, 0.0),
        ("<think>a</think><answer>b</answer> bye", {}, 0.0),
        ("<think>a</think><answer>b</answer> bye", {"text_outside": True}, 1.0),
        ("<think> </think><answer>b</answer>", {}, 0.0),
        ("<think> </think><answer>b</answer>", {"empty": True}, 1.0),
        ("a</think><answer>b</answer>", {}, 0.0),
        ("a</think><answer>b</answer>", {"opened_by_prompt": True}, 1.0),
        ("<plan>a</plan>", {"tags": ["plan"]}, 1.0),
        ("", {}, 0.0),
    ],
)
def test_format_passes_when_every_tag_occurs_once_and_in_order(
    response: str, options: dict[str, Any], score: float
) -> None:
    assert judge("format", response, **options) == score


def test_a_pattern_matches_or_its_last_group_equals_the_reference() -> None:
    assert judge("regex", "so 5", pattern=r"\d") == 1.0
    assert judge("regex", "so 5", pattern=r"\d", match="full") == 0.0
    assert judge("regex", "SO", pattern="so", ignore_case=True) == 1.0
    assert judge("regex", "A: 4, A: 5", "5", pattern=r"A: (\d)", group=1) == 1.0
    assert judge("regex", "A: 5, A: 4", "5", pattern=r"A: (?P<said>\d)", group="said") == 0.0
    assert judge("regex", "none", "5", pattern=r"A: (\d)", group=1) == 0.0


@pytest.mark.parametrize("options", [{}, {"group": 1}])
def test_a_pattern_that_backtracks_endlessly_times_out(options: dict[str, Any]) -> None:
    assert reason("regex", "a" * 5000 + "b", "a", pattern="(a+)+$", timeout_s=0.1, **options) == "regex_timeout"


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ('{"a": 1}', 1.0),
        ('Here:\n```json\n{"a": 1}\n```\nDone.', 1.0),
        ('{"a": "1"}', 0.0),
        ('{"a": NaN}', 0.0),
        ("no JSON", 0.0),
        ("[" * 100_000, 0.0),
        ("", 0.0),
    ],
)
def test_json_is_validated_against_its_schema(response: str, score: float) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert judge("json_schema", response, schema=schema) == score


def test_a_schema_triggers_no_fetch() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        schema = {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/schema"}
        assert reason("json_schema", "1", schema=schema) == "schema_unusable"
        with pytest.raises(BlockingIOError):  # no request arrived
            server.accept()


def test_an_unusable_schema_gives_no_score() -> None:
    assert reason("json_schema", "1", schema={"$ref": "#/$defs/gone"}) == "schema_unusable"
    assert reason("json_schema", "1", schema={"$ref": "#"}) == "schema_unusable"


@pytest.mark.parametrize("scorer", ["exact_match", "numeric_match", "choice_match", "contains", "similarity_ratio"])
def test_a_missing_reference_gives_no_score(scorer: str) -> None:
    assert reason(scorer, "5") == "reference_missing"


def test_a_reference_without_an_answer_gives_no_score() -> None:
    assert reason("numeric_match", "5", "five") == "reference_unusable"
    assert reason("choice_match", "B", "F") == "reference_unusable"
    assert reason("contains", "B", "") == "reference_unusable"


def test_texts_too_long_to_compare_give_no_score() -> None:
    assert reason("similarity_ratio", "a" * 100_000, "b" * 100_000) == "too_long"


HUGE = [
    "1 " * 100_000, "1" * 200_000, "-" * 200_000, "\\boxed{" * 30_000, "\\frac{" * 30_000, "A and " * 30_000,
    "answer " * 30_000, "<think>" * 30_000, "```\n" * 50_000,
    "".join(random.Random(1).choices("ab 1,.{}\\", k=200_000)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("scorer", "options"),
    [
        ("exact_match", {"ignore_articles": True}),
        ("numeric_match", {}),
        ("choice_match", {}),
        ("contains", {"whole_words": True}),
        ("similarity_ratio", {}),
        ("length", {"most": 1}),
        ("repetition", {"n": 50}),
        ("format", {}),
        ("json_schema", {"schema": True}),
    ],
)
def test_a_huge_response_takes_at_most_linear_time(scorer: str, options: dict[str, Any]) -> None:
    for text in HUGE:
        started = time.process_time()
        judge(scorer, text, "A" if scorer == "choice_match" else "1", **options)
        assert time.process_time() - started < 10, text[:20]  # measured: 0.2 s; quadratic would be minutes
