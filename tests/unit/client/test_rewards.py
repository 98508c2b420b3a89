"""Pure functions of the client's rewards: formula, composition, verdicts, prompts, profiles and specs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from assay.rewards.items import make_items, references_in
from assay.rewards.length_penalty.composition import ScoredResponse, compose
from assay.rewards.length_penalty.config import LengthPenaltyConfig
from assay.rewards.length_penalty.direct_judge import completions_url
from assay.rewards.length_penalty.formula import group_medians, length_penalty
from assay.rewards.length_penalty.judge_profile import JudgeProfile, ProfileMissing, find_profile, host_of
from assay.rewards.length_penalty.judge_prompt import judge_messages
from assay.rewards.length_penalty.question import Question, as_reference
from assay.rewards.length_penalty.verdict import read_verdict
from assay.rewards.spec import RewardSpec, named_reward, parse_reward
from hypothesis import given
from hypothesis import strategies as st

from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.judging.prompts import prompts
from tasks.judging.rubrics import Rubrics
from tasks.scoring.model import ScoreSpec
from tasks.scoring.penalties import BUILT_IN
from tasks.scoring.penalties.group_length import GroupLength, penalty_of
from tests.unit.tasks.test_verdicts import SCALE
from web.rewards.named_rewards import part_names

# Values computed by hand for a median of 100: no penalty from 70 to 130, the maximum up to 50 and from 150 on.
BY_HAND = [
    (100, 0.0),
    (70, 0.0),
    (130, 0.0),
    (69, 0.05),
    (131, 0.05),
    (60, 0.5),
    (140, 0.5),
    (51, 0.95),
    (149, 0.95),
    (50, 1.0),
    (150, 1.0),
    (49, 1.0),
    (151, 1.0),
    (0, 1.0),
    (10_000, 1.0),
]


@pytest.mark.parametrize(("length", "expected"), BY_HAND)
def test_every_branch_of_the_length_penalty_has_the_expected_value(length: int, expected: float) -> None:
    assert length_penalty(length, 100) == pytest.approx(expected)


@pytest.mark.parametrize(("median", "length"), [(10, 7), (10, 13), (30, 21), (1000, 1300), (7, 7)])
def test_lengths_at_the_edges_of_the_flat_range_have_no_penalty(median: int, length: int) -> None:
    assert length_penalty(length, median) == 0.0


def test_the_ratios_and_the_maximum_penalty_can_be_changed() -> None:
    assert length_penalty(15, 10, max_penalty=2.0, peak_ratio=0.0, outer_ratio=1.0) == 1.0
    assert length_penalty(5, 10, max_penalty=2.0, peak_ratio=0.0, outer_ratio=1.0) == 1.0
    assert length_penalty(40, 10, max_penalty=2.0, peak_ratio=0.0, outer_ratio=1.0) == 2.0
    assert length_penalty(5, 10, max_penalty=0.0) == 0.0


def test_a_median_of_zero_gives_no_penalty() -> None:
    assert length_penalty(5000, 0) == 0.0


def test_group_medians_do_not_need_adjacent_items() -> None:
    groups, lengths = ["a", "b", "a", "c", "b", "a"], [10, 100, 30, 7, 300, 20]
    assert group_medians(groups, lengths, [True] * 6) == [20, 200, 20, 7, 200, 20]
    without = [True, True, False, False, True, True]
    assert group_medians(groups, lengths, without) == [15, 200, 15, 0, 200, 15]


@given(
    length=st.integers(0, 10_000),
    median=st.integers(0, 10_000) | st.floats(0, 10_000),
    most=st.floats(0, 100),
    peak=st.floats(0, 2),
    width=st.floats(0.01, 2),
)
def test_client_and_server_have_the_same_formula(
    length: int, median: float, most: float, peak: float, width: float
) -> None:
    options = GroupLength(max_penalty=most, peak_ratio=peak, outer_ratio=peak + width)
    assert length_penalty(length, median, most, peak, peak + width) == penalty_of(length, median, options)


# Composition of rewards


def reward_of(*parts: ScoredResponse, **config: Any) -> list[float]:
    return compose(LengthPenaltyConfig(**config), parts)["reward"]


def test_a_reward_is_base_plus_judge_minus_penalty() -> None:
    group = [ScoredResponse("g", 10, 1.0, 8.0), ScoredResponse("g", 10, 0.5), ScoredResponse("g", 14, 1.0, 6.0)]
    rewards = reward_of(*group, reward_coefficient=0.1, penalty_scale=2.0)
    assert rewards == pytest.approx([1.8, 0.5, 1.0 + 0.6 - 2.0 * 0.5])
    assert reward_of(*group, enable=False) == [9.0, 0.5, 7.0]


def test_a_group_with_a_single_response_has_no_penalty() -> None:
    assert reward_of(ScoredResponse("g", 4000, 1.0)) == [1.0]


def test_invalid_responses_do_not_count_for_the_median_and_keep_base_and_penalty() -> None:
    extra = compose(
        LengthPenaltyConfig(),
        [ScoredResponse("g", 10, 1.0), ScoredResponse("g", 10, 1.0), ScoredResponse("g", 1000, 0.5, valid=False)],
    )
    assert extra["median_length"] == [10.0, 10.0, 10.0]
    assert extra["valid"] == [True, True, False]
    assert extra["reward"] == [1.0, 1.0, -0.5]


def test_a_group_of_failed_responses_has_no_penalty() -> None:
    extra = compose(LengthPenaltyConfig(), [ScoredResponse("g", 10, 1.0, valid=False), ScoredResponse("g", 99, None)])
    assert (extra["median_length"], extra["length_penalty"]) == ([0.0, 0.0], [0.0, 0.0])
    assert (extra["reward"], extra["valid"]) == ([1.0, 0.0], [False, False])


def test_equal_lengths_have_no_penalty_even_if_they_are_zero() -> None:
    assert reward_of(*[ScoredResponse("g", 12, 1.0)] * 4) == [1.0] * 4
    assert reward_of(*[ScoredResponse("g", 0, 1.0)] * 3) == [1.0] * 3, "the median is 0"


def parts() -> st.SearchStrategy[ScoredResponse]:
    return st.builds(
        ScoredResponse,
        group=st.sampled_from("abc"),
        length=st.integers(0, 50),
        base_score=st.none() | st.floats(-2, 2),
        judge_score=st.floats(0, 10),
        valid=st.booleans(),
    )


@given(st.lists(parts(), max_size=12).flatmap(lambda each: st.tuples(st.just(each), st.permutations(range(len(each))))))
def test_a_permutation_of_the_input_permutes_the_output(case: tuple[list[ScoredResponse], list[int]]) -> None:
    given_parts, order = case
    straight = compose(LengthPenaltyConfig(), given_parts)
    turned = compose(LengthPenaltyConfig(), [given_parts[index] for index in order])
    for name, values in straight.items():
        assert turned[name] == [values[index] for index in order], name


# Verdicts and prompts of direct calls


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("There are 2 issues; score: 8", 8),
        ('{"rationale": "There are 2 issues.", "score": 8}', 8),
        ('{"score": 8, "rationale": "It has 3 flaws."}', 8),
        ('{"rationale": "It has 3 flaws.", "score": 8.0}', 8),
        ('{"rationale": "It has 3 flaws.", "score": 7.5}', None),
        ('{"rationale": "It has 3 flaws.", "score": true}', None),
        ('{"rationale": "It has 3 flaws.", "score": Infinity}', None),
        ("<think>Maybe 3. Score: 3</think>\n8", 8),
        ("<think>Score: 3", None),
        ("8/10", 8),
        ("**Score: 7/10**", 7),
        ("最终得分：6", 6),
        ("评分：8分", 8),
        ("Score: 11", None),
        ("Score: 0", None),
        ("Score: 7.5", None),
        ("Score: 7-8", None),
        ("Score: 4/5", None),
        ("The response gives 3 reasons and cites 2 papers.", None),
        ("I cannot judge this.", None),
        ("", None),
    ],
)
def test_the_verdict_is_the_last_score_that_the_judge_states(reply: str, expected: int | None) -> None:
    assert read_verdict(reply, 1, 10) == expected


@pytest.mark.parametrize(("reply", "by_server"), SCALE)
def test_client_and_server_never_parse_different_verdicts(reply: str, by_server: float | str) -> None:
    by_client = read_verdict(reply, 1, 10)
    assert by_client in (None, by_server)


def test_client_and_server_parse_the_requested_reply_forms() -> None:
    requested = [
        (reply, score) for reply, score in SCALE if reply.startswith(('{"rationale"', "Score:")) and score in range(11)
    ]
    parsed = [read_verdict(reply, 1, 10) == score for reply, score in requested]
    assert sum(parsed) >= 0.7 * len(parsed), "a parser without any verdict would agree with the server too"


@pytest.mark.parametrize(
    ("prompt", "response"),
    [("2+3?", "It is 5."), ("", ""), ("Fenced {braces} {code}", "<<<RESPONSE 0123\n评分：10"), ("ä\n\n", "\n  x ")],
)
def test_a_direct_call_sends_the_same_prompt_as_the_server(prompt: str, response: str) -> None:
    spec = JudgeSpec(profile="main", mode="scale", rubric="weighted", scale=(1, 10))
    (asked,) = prompts(spec, Rubrics().find("weighted"), JudgeItem(prompt=prompt, response=response))
    assert judge_messages(prompt, response) == [dict(message) for message in asked.messages]


def test_a_request_hash_covers_everything_that_determines_the_answer() -> None:
    question = Question(0, "2+3?", "5")
    hashes = {
        question.request_hash(LengthPenaltyConfig(api_endpoint="https://a/v1")),
        question.request_hash(LengthPenaltyConfig(api_endpoint="https://b/v1")),
        question.request_hash(LengthPenaltyConfig(api_endpoint="https://a/v1", model_name="other")),
        Question(0, "2+4?", "5").request_hash(LengthPenaltyConfig(api_endpoint="https://a/v1")),
        Question(0, "2+3?", "6").request_hash(LengthPenaltyConfig(api_endpoint="https://a/v1")),
    }
    assert len(hashes) == 5
    again = Question(9, "2+3?", "5", group="other").request_hash(LengthPenaltyConfig(api_endpoint="https://a/v1"))
    assert again in hashes, "index and group do not change the request"


# Selection of the profile


def profile(name: str, host: str, *models: str) -> dict[str, Any]:
    return {"name": name, "host": host, "models": list(models)}


QIANFAN = profile("qianfan", "qianfan.baidubce.com", "deepseek-v3", "ernie")
LOCAL = profile("local", "127.0.0.1:8000", "deepseek-v3")
DEVELOPMENT = profile("development", "127.0.0.1:6010", "development")


def test_a_profile_is_found_by_host_and_model() -> None:
    config = LengthPenaltyConfig(api_endpoint="https://qianfan.baidubce.com/v2/chat/completions")
    assert find_profile([LOCAL, QIANFAN], config) == JudgeProfile("qianfan", "deepseek-v3")
    config = LengthPenaltyConfig(api_endpoint="http://127.0.0.1:8000/v1")
    assert find_profile([QIANFAN, LOCAL], config) == JudgeProfile("local", "deepseek-v3")


def test_a_profile_can_be_given_by_name() -> None:
    assert find_profile([QIANFAN], LengthPenaltyConfig(profile="qianfan")) == JudgeProfile("qianfan", "deepseek-v3")
    named = LengthPenaltyConfig(profile="qianfan", model_name="ernie")
    assert find_profile([QIANFAN], named) == JudgeProfile("qianfan", "ernie")
    assert find_profile([DEVELOPMENT], LengthPenaltyConfig(profile="development")) == JudgeProfile("development", "")
    with pytest.raises(ProfileMissing, match="has no model 'gpt'; it has deepseek-v3, ernie"):
        find_profile([QIANFAN], LengthPenaltyConfig(profile="qianfan", model_name="gpt"))


def test_the_development_profile_is_the_default_if_it_is_the_only_profile() -> None:
    assert find_profile([DEVELOPMENT], LengthPenaltyConfig()) == JudgeProfile("development", "")
    with pytest.raises(ProfileMissing):
        find_profile([DEVELOPMENT, LOCAL], LengthPenaltyConfig())
    with pytest.raises(ProfileMissing):
        find_profile([DEVELOPMENT], LengthPenaltyConfig(api_endpoint="https://qianfan.baidubce.com/v2"))


def test_the_error_for_a_missing_profile_says_how_to_add_it() -> None:
    config = LengthPenaltyConfig(api_endpoint="https://api.example.com/v1", model_name="judge-1", api_key="sk-secret")
    with pytest.raises(ProfileMissing) as raised:
        find_profile([LOCAL], config)
    for part in ("ASSAY_PROFILES_FILE", 'base_url = "https://api.example.com/v1"', 'models = ["judge-1"]', "local"):
        assert part in str(raised.value)
    assert "sk-secret" not in str(raised.value)
    config.api_endpoint = "https://user:sk-secret@api.example.com/v1"
    with pytest.raises(ProfileMissing, match=r'base_url = "https://api\.example\.com/v1"') as raised:
        find_profile([LOCAL], config)
    assert "sk-secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://api.example.com/v1", "api.example.com"),
        ("https://API.example.com:443/v1/", "api.example.com"),
        ("http://api.example.com:443", "api.example.com:443"),
        ("http://[::1]:8000/v1", "[::1]:8000"),
        ("api.example.com/v1", "api.example.com"),
    ],
)
def test_hosts_are_formatted_like_on_the_server(url: str, host: str) -> None:
    assert host_of(url) == host


# Configuration of the manager


class Mapped:
    """Stand-in for OmegaConf's DictConfig: not a dict, but with `items`, and with lists that are not Python lists."""

    def __init__(self, **entries: Any) -> None:
        self._entries = entries

    def items(self) -> Any:
        return self._entries.items()


def test_a_config_can_be_a_dataclass_a_dict_or_a_mapping_like_object() -> None:
    config = LengthPenaltyConfig.of(Mapped(enable_openai_reward=True, api_key=None, scorers=iter([Mapped(name="x")])))  # type: ignore[arg-type]
    assert (config.enable_openai_reward, config.api_key, config.scorers) == (True, "", [{"name": "x"}])
    assert LengthPenaltyConfig.of(config) is config
    assert LengthPenaltyConfig.of(None) == LengthPenaltyConfig()


def test_the_defaults_match_the_documentation() -> None:
    config = LengthPenaltyConfig()
    assert (config.model_name, config.num_async_workers, config.timeout_seconds) == ("deepseek-v3", 4, 300.0)
    assert (config.reward_coefficient, config.penalty_scale, config.max_penalty) == (1.0, 1.0, 1.0)
    assert (config.peak_ratio, config.outer_ratio) == (0.3, 0.5)


def test_a_config_hides_secrets_and_rejects_unknown_fields() -> None:
    assert "sk-1" not in repr(LengthPenaltyConfig(api_key="sk-1", token="sk-1"))
    with pytest.raises(TypeError, match="has unknown fields: num_workers; known fields: enable"):
        LengthPenaltyConfig.of({"num_workers": 4})


@pytest.mark.parametrize(
    "wrong",
    [
        {"peak_ratio": 0.5},
        {"max_penalty": -1},
        {"num_async_workers": 0},
        {"timeout_seconds": 0},
        {"api_key": "你的密钥"},
        {"api_key": "sk-1\nX-Other: 2"},
    ],
)
def test_an_invalid_config_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as raised:
        LengthPenaltyConfig(**wrong)
    assert str(wrong.get("api_key", "?")) not in str(raised.value)


def test_line_ends_of_keys_and_missing_schemes_of_endpoints_are_accepted() -> None:
    assert LengthPenaltyConfig(api_key=" sk-1\n").api_key == "sk-1"
    whole = "https://qianfan.baidubce.com/v2/chat/completions"
    for given_url in (whole, "https://qianfan.baidubce.com/v2/", "qianfan.baidubce.com/v2", f" {whole}/ "):
        assert completions_url(given_url) == whole


def test_references_are_converted_to_json_values() -> None:
    np = pytest.importorskip("numpy")
    assert as_reference(np.array(["4", "5"])) == ["4", "5"]
    assert as_reference(np.float64(0.5)) == 0.5
    assert [as_reference(value) for value in (None, "x", 7, True, {"a": 1})] == [None, "x", 7, "True", "{'a': 1}"]


# Specs and items of the adapters

SPEC = {
    "scorers": [{"name": "numeric_match"}, {"name": "format", "as": "shape"}],
    "judge": {"profile": "main"},
    "penalties": [{"name": "group_length"}, {"name": "repetition"}],
    "group_statistics": True,
}
SPEC_AS_SENT = SPEC | {"scorers": [{"name": "numeric_match"}]}


def test_a_reward_can_be_a_spec_a_scorer_list_a_file_a_json_text_or_a_name(tmp_path: Path) -> None:
    scorers = {"scorers": [{"name": "numeric_match"}]}
    path = tmp_path / "reward.json"
    path.write_text(json.dumps({"spec": scorers, "fill": -1.0}))
    assert parse_reward(scorers) == RewardSpec(scorers)
    assert parse_reward(["numeric_match"]) == RewardSpec(scorers)
    assert parse_reward({"scorers": ["numeric_match"]}) == RewardSpec(scorers)
    assert parse_reward(json.dumps(scorers)) == RewardSpec(scorers)
    assert parse_reward(path) == parse_reward(str(path)) == RewardSpec(scorers, fill=-1.0)
    assert parse_reward("math") == "math"
    assert named_reward("math", [{"name": "math", "fill": 0.5, "spec": scorers}]) == RewardSpec(scorers, 0.5)


@pytest.mark.parametrize("nothing", ["", [], 7, " "])
def test_an_invalid_reward_is_rejected(nothing: Any) -> None:
    with pytest.raises(ValueError, match=r"[Rr]eward"):
        parse_reward(nothing)


def test_the_error_for_an_unknown_reward_says_how_to_give_a_scorer() -> None:
    with pytest.raises(ValueError, match=r"it has: code\. A scorer is given as a list: \['math'\]"):
        named_reward("math", [{"name": "code", "spec": {}}])


def test_the_part_names_of_a_reward_follow_from_its_spec() -> None:
    parts_of = RewardSpec(SPEC).parts
    assert parts_of[:4] == ("numeric_match", "shape", "base", "judge")
    assert set(parts_of[4:]) == {
        "group_length",
        "repetition",
        "response_length",
        "median_length",
        "group_mean",
        "group_std",
        "advantage",
    }
    assert RewardSpec({"scorers": [{"name": "numeric_match"}]}).parts == ("numeric_match",)
    assert RewardSpec(SPEC).compares_group == ScoreSpec.model_validate(SPEC_AS_SENT).is_grouped
    assert not RewardSpec({"penalties": [{"name": "repetition"}]}).compares_group


@pytest.mark.parametrize(
    "spec",
    [
        SPEC_AS_SENT,
        {"scorers": [{"name": "numeric_match", "as": "right"}]},
        {"judge": {"profile": "main"}},
        {"scorers": [{"name": "numeric_match"}], "penalties": [{"name": "repetition"}], "tokenizer": "tiny"},
        {"scorers": [{"name": "numeric_match"}], "group_statistics": True},
    ],
)
def test_client_and_server_expect_the_same_parts(spec: dict[str, Any]) -> None:
    assert list(RewardSpec(spec).parts) == part_names(ScoreSpec.model_validate(spec))


@pytest.mark.parametrize("penalty", BUILT_IN, ids=lambda each: each.name)
def test_the_client_knows_the_inputs_of_every_penalty_of_the_server(penalty: Any) -> None:
    reward = RewardSpec({"penalties": [{"name": penalty.name}]})
    assert reward.compares_group == penalty.grouped
    assert ("response_length" in reward.parts) == penalty.needs_length
    assert ("median_length" in reward.parts) == penalty.grouped


def test_items_are_built_from_texts_and_messages() -> None:
    chat = [{"role": "assistant", "content": "5", "tool_calls": None}]
    items = make_items(["5", chat], ["2+3?", [{"role": "user", "content": "2+3?"}]], ["5", None], None, [3, 4])
    assert items == [
        {"response": "5", "prompt": "2+3?", "reference": "5", "group_id": "0", "response_tokens": 3},
        {
            "response": [{"role": "assistant", "content": "5"}],
            "prompt": [{"role": "user", "content": "2+3?"}],
            "group_id": "1",
            "response_tokens": 4,
        },
    ]


def test_responses_to_equal_prompts_form_a_group() -> None:
    def groups(*asked: Sequence[Any]) -> list[str]:
        return [item["group_id"] for item in make_items(["x"] * len(asked), asked)]

    assert groups("a", "b", "a") == ["0", "1", "0"]
    assert groups([{"role": "user", "content": "a"}], [{"content": "a", "role": "user"}]) == ["0", "0"]
    with pytest.raises(ValueError, match="2 responses and 1 prompts"):
        make_items(["x", "y"], ["a"])


def test_the_reference_column_is_found_or_given_by_name() -> None:
    columns = {"solution": ["1"], "answer": ["2"], "level": [3]}
    assert references_in(columns, None) == ["2"]
    assert references_in(columns, "level") == [3]
    assert references_in({}, None) is None
    with pytest.raises(KeyError, match="no column 'truth'; it has answer, level, solution"):
        references_in(columns, "truth")
