"""Named rewards: validation of the rewards file; and parsing of samples in the formats of trainers."""

from pathlib import Path
from typing import Any

import pytest

from config.rewards import Reward, Rewards, UnknownReward, load_rewards, read_rewards
from config.settings import Settings, SettingsError
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.errors import InvalidRequest
from tests.conftest import ROOT
from web.rewards.named_rewards import usable_rewards
from web.rewards.requests import QueryBatch, Sample, VerifyRequest, response_of, without_end

SPEC = '[rewards.a.spec]\nscorers = [{name = "numeric_match"}]\n'
KINDS = create_core(Settings(), create_celery(Settings())).kinds
EXAMPLE = ROOT / "config/rewards.example.toml"


def reward(name: str = "a", **fields: Any) -> Reward:
    return Reward(name=name, spec={"scorers": [{"name": "numeric_match"}]}, **fields)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_example_shows_every_field_and_can_be_used() -> None:
    rewards = usable_rewards(Settings(rewards_file=EXAMPLE), KINDS)
    assert {each.name for each in rewards} == {"math", "boxed", "robot"}
    assert rewards.get(None).name == "math"
    assert not [field for field in Reward.model_fields if field not in (*EXAMPLE.read_text().split(), "name", "spec")]


def test_the_error_without_a_file_says_how_to_define_a_reward() -> None:
    rewards = load_rewards(Settings())
    assert list(rewards) == []
    for name in (None, "math"):
        with pytest.raises(UnknownReward, match=r"has no named rewards.*ASSAY_REWARDS_FILE"):
            rewards.get(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[rewards.a]\nfil = 1.0\n{SPEC}", "reward a: fil: extra inputs are not permitted"),
        (f"[rewards.a]\nfill = nan\n{SPEC}", "reward a: fill: input should be a finite number"),
        (f"[rewards.a]\nfill = true\n{SPEC}", "reward a: fill: input should be a valid number"),
        (f'[rewards.a]\nfill = "0"\n{SPEC}', "reward a: fill: input should be a valid number"),
        (f'[rewards.a]\nend_tokens = [""]\n{SPEC}', "reward a: end_tokens: must not contain an empty text"),
        ("[rewards.a]\nfill = 0.0", "reward a: spec: field required"),
        ("[rewards.a]\nspec = 3", "reward a: spec: input should be a valid dictionary"),
        ("[rewards.a.spec]\nweights = [1.0, inf]", "reward a: spec.weights[1]: input should be a finite number"),
        ("[rewards.a.spec]\nday = 2026-01-01", "reward a: spec.day: input was not a valid JSON value"),
        ('[rewards."a b"]\nspec = {}', "reward a b: name: string should match pattern"),
        (f'default = "b"\n{SPEC}', "default: there is no reward b"),
        (f"default = 1\n{SPEC}", "default: must be the name of a reward"),
        ("[reward.a.spec]\n", "write each reward as a table [rewards.NAME], not reward"),
        ("rewards = 3", "write each reward as a table [rewards.NAME]"),
        ("[rewards", "cannot be read"),
        ("[rewards.a.spec]\nscorers = []", "reward a: spec: `scorers` is empty: name at least one scorer"),
        ('[rewards.a.spec]\npenalties = [{name = "repetition"}]', "reward a: spec: trainers send no `base_score`"),
        (
            '[rewards.a.spec]\nscorers = [{name = "numeric_match"}]\npenalties = [{name = "group_length"}]',
            "reward a: spec.tokenizer: trainers send no lengths",
        ),
        (
            '[rewards.a.spec]\nscorers = [{name = "numeric_match"}]\ntokenizer = "none"',
            "reward a: spec.tokenizer: unknown tokenizer 'none'",
        ),
        ('[rewards.a.spec]\njudge = {profile = "none"}', "reward a: spec.judge.profile: unknown profile 'none'"),
        (
            '[rewards.a.spec]\nscorers = [{name = "numeric_mach"}]',
            "reward a: spec.scorers[0].name: unknown scorer 'numeric_mach'",
        ),
        (
            '[rewards.a.spec]\nscorers = [{name = "numeric_match", options = {tolerance = -1.0}}]',
            "reward a: spec.scorers[0].options.tolerance: input should be greater than or equal to 0",
        ),
        (
            '[rewards.a.spec]\nscorers = [{name = "numeric_match", as = "valid"}]',
            "reward a: spec: no part may be named `valid`",
        ),
    ],
)
def test_a_mistake_is_named_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rewards.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        usable_rewards(Settings(rewards_file=path), KINDS)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_every_mistake_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rewards.toml"
    path.write_text("[rewards.a]\n[rewards.b.spec]\nscorers = 1\n[rewards.c.spec]\nscorers = []\n")
    with pytest.raises(SettingsError, match="reward a: spec"):
        read_rewards(path)
    path.write_text(path.read_text().partition("\n")[2])
    with pytest.raises(SettingsError) as error:
        usable_rewards(Settings(rewards_file=path), KINDS)
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == ["reward b", "reward c"]


def test_a_single_reward_is_the_default_and_several_need_a_name() -> None:
    one, other = reward("one"), reward("other")
    assert Rewards(one).get(None) is one
    assert Rewards(one, other, default="other").get(None) is other
    assert Rewards(one, other, default="other").get("one") is one
    for rewards, name in ((Rewards(one, other), None), (Rewards(one), "onne"), (Rewards(one), "")):
        with pytest.raises(UnknownReward, match=r"\?reward=NAME to a known reward \(one.*\[rewards.NAME\]"):
            rewards.get(name)


# --- samples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "prompt", "response"),
    [
        ("2+3?It is 5.", "2+3?", "It is 5."),
        ("<|begin_of_text|>2+3?It is 5.", "2+3?", "It is 5."),
        ("2+3?2+3?5", "2+3?", "2+3?5"),
        ("2+3?", "2+3?", ""),
        ("It is 5.", "2+3?", "It is 5."),
        (f"{'x' * 100}2+3?It is 5.", "2+3?", f"{'x' * 100}2+3?It is 5."),
        ("2+3?It is 5.", "", "2+3?It is 5."),
        ("2+3?It is 5.", None, "2+3?It is 5."),
        ("", "", ""),
    ],
)
def test_the_response_is_the_text_after_its_prompt(query: str, prompt: str | None, response: str) -> None:
    assert response_of(query, prompt) == response


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("It is 5.<|im_end|>", "It is 5."),
        ("It is 5.<|im_end|>\n<|endoftext|><|endoftext|> \n", "It is 5."),
        ("It is 5. \n", "It is 5. \n"),
        ("<|im_end|> is a token", "<|im_end|> is a token"),
        ("</s>", ""),
        ("", ""),
    ],
)
def test_end_of_turn_tokens_are_not_part_of_the_response(text: str, kept: str) -> None:
    assert without_end(text, reward().end_tokens) == kept


def test_megabytes_of_end_tokens_are_cut_off_before_the_test_times_out() -> None:
    # A copy of the remaining text for each token would exceed the time limit of any test.
    assert without_end("5" + "</s> " * 2_000_000, reward().end_tokens) == "5"


def test_responses_to_one_prompt_are_a_group() -> None:
    batch = QueryBatch(query=["p1", "q2", "p3", "q4"], prompts=["p", "q", "p", "q"], labels=["1", None, 3, [4, "4"]])
    items = batch.items(reward())
    assert [(item["group_id"], item["response"]) for item in items] == [("0", "1"), ("1", "2"), ("0", "3"), ("1", "4")]
    assert [item["reference"] for item in items] == ["1", None, 3, [4, "4"]]
    alone = QueryBatch(query=["p1", "p1"]).items(reward())
    assert [(item["group_id"], item["prompt"], item["reference"]) for item in alone] == [(None, None, None)] * 2


def test_a_sample_may_be_messages() -> None:
    messages = [{"role": "user", "content": "2+3?"}]
    sample = Sample.model_validate({"prompt": messages, "response": "5<|im_end|>", "label": 5, "extra": {"a": 1}})
    item = sample.item(reward())
    assert (item["prompt"][0]["content"], item["response"], item["reference"]) == ("2+3?", "5", 5)
    spoken = Sample.model_validate({"response": [{"role": "assistant", "content": "5"}]}).item(reward())
    assert spoken["response"][0]["content"] == "5"
    with pytest.raises(ValueError, match="role is assistant"):
        Sample.model_validate({"response": messages})


def verified(output: Any, asked: Any = "2+3?", on: Reward | None = None, **fields: Any) -> dict[str, Any]:
    body = {"responses_create_params": {"input": asked}, "response": {"id": "r", "output": output}} | fields
    return VerifyRequest.model_validate(body).item(on or reward())


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]} | fields


def test_a_response_of_the_responses_api_becomes_chat_messages() -> None:
    item = verified(
        [
            {"type": "reasoning", "summary": [{"text": "hm"}], "content": 5},
            said("Let me see."),
            {"type": "function_call", "name": "add", "arguments": '{"a": 2}', "call_id": "c1"},
            {"type": "function_call", "name": "sub", "arguments": "{}", "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "5"},
            {"type": "function_call_output", "call_id": "c2", "output": {"value": 1}},
            {"type": "function_call", "name": "check", "arguments": "{}", "call_id": "c3"},
            said("It is 5."),
        ],
        expected_answer="5",
    )
    roles = [message["role"] for message in item["response"]]
    assert roles == ["assistant", "tool", "tool", "assistant", "assistant"]
    calls = [[call["function"]["name"] for call in each.get("tool_calls", ())] for each in item["response"]]
    assert calls == [["add", "sub"], [], [], ["check"], []]
    assert item["response"][2]["content"] == '{"value": 1}'
    assert item["prompt"] == [{"role": "user", "content": "2+3?"}]
    assert item["reference"] == "5"


def test_a_prompt_of_the_responses_api_is_a_text_or_items_after_instructions() -> None:
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "input_text"}]}]
    assert [each["role"] for each in verified([said("5")], items)["prompt"]] == ["developer", "user"]
    body = {"responses_create_params": {"instructions": "Add."}, "response": {"output": []}}
    item = VerifyRequest.model_validate(body).item(reward())
    assert (item["prompt"], item["response"]) == ([{"role": "system", "content": "Add."}], "")
    assert verified([], None)["prompt"] is None


def test_the_reference_is_in_the_named_field_or_in_a_usual_one() -> None:
    row = {"label": "1", "answer": "2", "gold": "3", "expected_answer": None}
    assert verified([said("5")], **row)["reference"] == "2"
    assert verified([said("5")], on=reward(reference_field="gold"), **row)["reference"] == "3"
    assert verified([said("5")], on=reward(reference_field="none"), **row)["reference"] is None
    with pytest.raises(InvalidRequest, match=r"^answer: must be a string, a number, a list"):
        verified([said("5")], answer={"value": 5})


@pytest.mark.parametrize(
    ("output", "field"),
    [
        (None, "response.output"),
        ("5", "response.output"),
        ([5], "response.output[0]"),
        ([said("5"), said("5", content=5)], "response.output[1].content"),
        ([said("5", content=[{"text": 5}])], "response.output[0].content"),
    ],
)
def test_the_error_for_an_invalid_response_names_it(output: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        verified(output)
    assert error.value.field == field
