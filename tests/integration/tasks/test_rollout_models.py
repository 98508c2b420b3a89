"""Rollouts on the real engine, with a tiny random model: versions, rewards, a judge, groups."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tasks.composition import create_core
from tasks.inference.engine import ENGINE
from tests.support import tiny_models
from tests.support.chat_api import ChatApi
from tests.support.fleet import Fleet, Hand
from tests.support.programs import wait_until
from tests.support.rollouts import Stand
from workers.engines.engine import TransformersEngine

SPEC: dict[str, Any] = {
    "model": "tiny",
    "sampling": {"n": 4, "temperature": 1.0, "max_new_tokens": 6},
    "train_batch_size": 8,
    "max_queue_size": 16,
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_models.write(folder / "tiny")
    return folder


@pytest.fixture
def hand(fleet: Fleet, models: Path) -> Hand:
    fleet.settings = fleet.settings.model_copy(update={"models_dir": models, "storage_shared": True})
    fleet.core = create_core(fleet.settings, fleet.celery)
    return fleet.hire()


def test_samples_have_their_tokens_log_probabilities_and_versions(fleet: Fleet, hand: Hand) -> None:
    stand = Stand(fleet, prompts=3, **SPEC)
    stand.work(hand)
    group = stand.groups(stand.get(16, whole=True))[0]
    assert group["prompt_ids"]
    texts = {sample["text"] for sample in group["samples"]}
    assert len(texts) > 1, "each sample is drawn independently"
    for sample in group["samples"]:
        assert len(sample["token_ids"]) == len(sample["logprobs"]) == sum(tokens for _, tokens in sample["versions"])
        assert [number for number, _ in sample["versions"]] == [0]
        assert (sample["reward"], sample["valid"]) == (None, False)


def test_new_weights_are_used_for_the_next_generated_samples(
    fleet: Fleet, hand: Hand, models: Path, tmp_path: Path
) -> None:
    stand = Stand(fleet, prompts=3, **SPEC, max_staleness=0)
    stand.work(hand)
    assert stand.get(8, version=0).samples == 8
    weights = load_file(models / "tiny/model.safetensors")
    save_file({name: tensor * 0.5 for name, tensor in weights.items()}, tmp_path / "new.safetensors")
    stand.rollouts.announce(stand.id, 1, (tmp_path / "new.safetensors").as_uri(), "")
    stand.work(hand)
    status = stand.rollouts.sync_status(stand.id)
    assert (status.state, status.version.number) == ("synced", 1)
    groups = stand.groups(stand.get(8, version=1))
    assert {group["param_version"] for group in groups} == {1}


def test_a_reward_combines_a_rule_scorer_with_group_statistics(fleet: Fleet, hand: Hand) -> None:
    cpu = fleet.hire("cpu")
    reward = {"scorers": [{"name": "regex", "options": {"pattern": "[a-z]"}}], "group_statistics": True}
    stand = Stand(fleet, prompts=3, **SPEC, reward=reward)
    fleet.work(hand, cpu)
    group = stand.groups(stand.get(8, whole=True))[0]
    rewards = [sample["reward"] for sample in group["samples"]]
    assert all(reward in (0.0, 1.0) for reward in rewards)
    mean = sum(rewards) / 4
    assert all(sample["parts"]["group_mean"] == pytest.approx(mean) for sample in group["samples"])
    assert all(sample["valid"] for sample in group["samples"])


def test_a_judge_is_called_only_for_samples_with_a_base_score(fleet: Fleet, hand: Hand, tmp_path: Path) -> None:
    hand.leave()
    with ChatApi() as api:
        verdict = {"role": "assistant", "content": "Score: 6"}
        api.reply = {"choices": [{"index": 0, "message": verdict, "finish_reason": "stop"}]}
        path = tmp_path / "profiles.toml"
        path.write_text(f'[profiles.main]\nbase_url = "{api.url}"\nmodels = ["m"]\n')
        fleet.settings = fleet.settings.model_copy(update={"profiles_file": path})
        fleet.core = create_core(fleet.settings, fleet.celery)
        hands = [fleet.hire(index=0), fleet.hire("cpu"), fleet.hire("api")]
        reward = {
            "scorers": [{"name": "regex", "options": {"pattern": "[a-z]"}}],
            "judge": {"profile": "main", "rubric": "weighted", "reward_coefficient": 0.1, "use_schema": "never"},
            "penalties": [{"name": "group_length"}],
        }
        stand = Stand(fleet, prompts=3, **SPEC, reward=reward)
        wait_until(lambda: bool(fleet.work(*hands) or stand.told("queue_size") == 16), "every sample has its reward")
        samples = stand.samples(stand.get(16))
        judged = [sample for sample in samples if sample["parts"]["base"] == 1.0]
        assert 0 < len(judged) < 16
        for sample in samples:
            expected = 1.0 + 0.6 if sample in judged else 0.0
            assert sample["reward"] == pytest.approx(expected - sample["parts"]["group_length"])
        assert api.answered == len(judged)


def test_a_worker_that_starts_late_joins_at_the_current_version(fleet: Fleet, hand: Hand, models: Path) -> None:
    stand = Stand(fleet, prompts=3, **SPEC)
    stand.work(hand)
    stand.rollouts.announce(stand.id, 3, (models / "tiny/model.safetensors").as_uri(), "")
    hand.leave()
    late = fleet.hire(index=1)
    stand.fleet.core.dispatcher.forget_fleet()
    stand.get(16)
    wait_until(lambda: bool(late.work() or stand.told("queue_size") == 16), "the late worker has filled the queue")
    versions = {group["param_version"] for group in stand.groups(stand.get(16))}
    assert versions == {3}


def test_the_model_copy_of_an_ended_rollout_is_deleted(fleet: Fleet, hand: Hand) -> None:
    engine = fleet.runtime_of(hand).get(ENGINE)
    assert isinstance(engine, TransformersEngine)
    ended, goes_on = (Stand(fleet, prompts=3, **SPEC) for _ in range(2))
    fleet.work(hand)
    assert engine.copies == sorted([ended.id, goes_on.id])
    fleet.core.cancel(ended.id)
    assert fleet.runtime_of(hand).get(ENGINE) is engine, (
        "the next user of the engine gets the same engine, without the copy"
    )
    assert engine.copies == [goes_on.id]
    assert engine.inventory.loaded == (f"{fleet.settings.models_dir / 'tiny'}#{goes_on.id}",)
