"""Translation of requests by clients of the Pi0 reward server to score jobs."""

from pathlib import Path
from typing import Any

import pytest

from config.rewards import Rewards, load_rewards
from config.settings import Settings
from tasks.errors import InvalidRequest
from tasks.scoring.model import ScoreItem, ScoreSpec
from web.policies.requests import ScoreRequest, text_of

NONE = load_rewards(Settings())


def understood(body: dict[str, Any], settings: Settings | None = None, rewards: Rewards = NONE) -> tuple[Any, Any]:
    asked = ScoreRequest.model_validate(body)
    spec = ScoreSpec.model_validate(asked.spec(settings or Settings(), rewards))
    return spec, [ScoreItem.model_validate(item) for item in asked.items(spec)]


@pytest.mark.parametrize(
    "response",
    [
        "go",
        ["go", "stay"],
        {"text": "go"},
        {"generated_text": "go"},
        {"output_text": "go"},
        {"response": "go"},
        {"content": "go"},
        {"outputs": [{"text": "go"}]},
        {"choices": [{"text": "go"}]},
        {"choices": [{"message": {"role": "assistant", "content": "go"}}]},
        {"choices": [{"text": None, "message": {"content": "go"}}]},
        [{"choices": [{"message": {"content": "go"}}]}],
    ],
)
def test_the_text_of_a_response_is_found_in_every_supported_form(response: Any) -> None:
    assert text_of(response) == "go"


@pytest.mark.parametrize("response", ["", [], None])
def test_an_empty_response_is_valid(response: Any) -> None:
    assert text_of(response) == ""


@pytest.mark.parametrize("response", [5, True, {"words": "go"}, {"choices": []}, {"choices": [{"message": "go"}]}])
def test_a_response_without_a_text_is_refused_with_its_index(response: Any) -> None:
    assert text_of(response) is None
    with pytest.raises(InvalidRequest, match=r"responses\[1\]"):
        understood({"responses": ["go", response]})


def test_fields_that_are_not_given_have_the_servers_defaults() -> None:
    spec, (item,) = understood({"responses": ["go"]}, Settings(policy_urls="gpu1:8000"))
    options = spec.policy_options
    assert (options.environment.name, options.environment.suite) == ("libero", "libero_spatial")
    assert (options.environment.resize_size, options.environment.num_steps_wait) == (224, 10)
    assert (options.trials, options.seed, options.init_state, options.replan_steps, options.task_id) == (5, 7, 0, 5, 0)
    assert (options.in_flight, options.video, item.response) == (0, False, "go")


def test_a_null_field_counts_as_not_given() -> None:
    libero = {"task_id": None, "seed": None, "num_trials_per_task": None, "instruction": None}
    kwargs = {"max_workers": None, "libero_cfg": libero, "on_error": None, "cache": None, "scorer_options": None}
    said = {"responses": ["go"], "metas": None, "reward_function_kwargs": kwargs}
    assert understood(said) == understood({"responses": ["go"]})
    assert understood({"responses": ["go"], "reward_function_kwargs": {"libero_cfg": None}}) == understood(said)


def test_known_fields_are_applied_and_irrelevant_fields_are_ignored() -> None:
    kwargs = {
        "alpha": 1.0, "beta": 0.1, "gamma": 0.5, "center_crop": 1, "num_trials_per_task": 2, "num_steps_wait": 4,
        "max_workers": 3, "libero_cfg": {"task_suite_name": "libero_goal", "task_id": 6, "num_trials_per_task": 9,
        "save_videos": True, "seed": 1, "init_state_id": 5, "resize_size": 128, "instruction": "wave"},
    }  # fmt: skip
    metas = [
        {"original_instruction": "pick", "suite": "libero_10", "task_id": 2, "seed": 3, "init_state_id": 4, "x": 1},
        None,
    ]
    spec, (first, second, third) = understood(
        {"responses": ["", "", "go"], "metas": metas, "reward_function_kwargs": kwargs},
        Settings(policy_urls="gpu1:8000"),
    )
    options = spec.policy_options
    assert (options.trials, options.in_flight, options.video, options.environment.num_steps_wait) == (2, 3, True, 4)
    assert (options.environment.suite, options.environment.resize_size) == ("libero_goal", 128)
    assert (first.task.suite, first.task.task_id, first.task.seed, first.task.init_state) == ("libero_10", 2, 3, 4)
    assert [each.task.instruction for each in (first, second, third)] == ["pick", "wave", "wave"]
    assert second.task.suite is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(), "reach"),
        (Settings(policy_urls="gpu1:8000"), "libero"),
        (Settings(policy_environment="gymnasium:Pusher-v5"), "gymnasium"),
    ],
)
def test_the_environment_is_taken_from_the_request_or_the_settings(settings: Settings, name: str) -> None:
    spec, _ = understood({"responses": ["go"]}, settings)
    assert spec.policy_options.environment.name == name
    own = {"responses": ["go"], "reward_function_kwargs": {"environment": {"name": "gymnasium"}}}
    assert understood(own, settings)[0].policy_options.environment.id == "Reacher-v5"


def test_a_request_may_select_a_scorer_a_spec_or_a_named_reward(tmp_path: Path) -> None:
    (tmp_path / "rewards.toml").write_text('[rewards.mine.spec]\nscorers = [{name = "exact_match"}]\n')
    rewards = load_rewards(Settings(rewards_file=tmp_path / "rewards.toml"))
    spec = {"scorers": [{"name": "contains"}]}
    for kwargs, name in [
        ({"scorer": "numeric_match", "scorer_options": {"tolerance": 0.5}}, "numeric_match"),
        ({"spec": spec}, "contains"),
        ({"reward": "mine"}, "exact_match"),
    ]:
        body = {
            "responses": ["5"],
            "metas": [{"original_instruction": "2+3?", "ground_truth": "5"}],
            "reward_function_kwargs": kwargs,
        }
        found, (item,) = understood(body, rewards=rewards)
        assert found.scorers[0].name == name
        assert (item.prompt, item.reference, item.task) == ("2+3?", "5", None)
    with pytest.raises(InvalidRequest, match="remove either"):
        understood({"responses": ["5"], "reward_function_kwargs": {"scorer": "contains", "spec": spec}})


def test_more_metas_than_responses_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="has 2 entries for 1 responses"):
        understood({"responses": ["go"], "metas": [{}, {}]})
