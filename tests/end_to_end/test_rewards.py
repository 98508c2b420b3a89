"""Rewards for trainers through the real processes: web, CPU and API workers, and a judge API at the wire."""

import asyncio
import logging
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from assay import Assay
from assay.rewards import LengthPenaltyRewardManager, Reward, verl
from assay.rewards.trl import TrlReward

from tests.conftest import ROOT
from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.end_to_end.test_client import run_python
from tests.support.data_proto import DataProto, Letters, make_data
from tests.support.judge_api import JudgeApi
from tests.support.programs import PATIENCE_S, Program
from tests.support.redis_server import RedisServer
from workers.development_api.knobs import Knobs, draw_fate

PROFILE = """
[profiles.main]
base_url = "{url}"
models = ["development"]
concurrency = 128
concurrency_start = 128
timeout_s = 300
"""
REWARDS = """
[rewards.number]
fill = -1.0
[rewards.number.spec]
scorers = [{name = "numeric_match"}]
penalties = [{name = "repetition"}]
"""
GROUPS, EACH = 8, 8


class Stack:
    def __init__(self, run: Callable[..., Program], system: System, api: JudgeApi, profiles: Path) -> None:
        self.api, self.system = api, system
        settings, rewards = {"ASSAY_PROFILES_FILE": str(profiles)}, profiles.with_name("rewards.toml")
        rewards.write_text(REWARDS)
        system.launch("cpu", **settings)
        system.launch("api", **settings)
        self.served = Served(
            run, system.state.url, ASSAY_CACHE_URL=system.cache.url, ASSAY_STORAGE_URL=system.settings.storage_url,
            ASSAY_REWARDS_FILE=str(rewards), **settings,
        )  # fmt: skip
        self.url = f"http://127.0.0.1:{self.served.port}"
        system.wait_for_workers(2)

    def manager(self, compute_score: Any = None, **config: Any) -> LengthPenaltyRewardManager:
        given = {
            "url": self.url,
            "enable_openai_reward": True,
            "api_endpoint": f"{self.api.url}/chat/completions",
            "model_name": "development",
            "reward_coefficient": 0.1,
            "timeout_seconds": 2 * PATIENCE_S,
        } | config
        return LengthPenaltyRewardManager(Letters(), 0, compute_score or right_or_wrong, length_penalty_config=given)


@pytest.fixture
def stack(run: Callable[..., Program], tmp_path: Path) -> Iterator[Stack]:
    with (
        RedisServer(tmp_path / "state") as state,
        RedisServer(tmp_path / "cache", "cache") as cache,
        JudgeApi(run) as api,
    ):
        profiles = tmp_path / "profiles.toml"
        profiles.write_text(PROFILE.format(url=api.url))
        system = System(run, state, cache, tmp_path / "journal")
        yield Stack(run, system, api, profiles)
        system.stop()


def right_or_wrong(solution_str: str, ground_truth: Any, **_: Any) -> float:
    return float(str(ground_truth) in solution_str)


def batch(step: int, seed: int = 1, wrong: int = 0) -> DataProto:
    """Make 64 answers of very different lengths to 8 prompts, shuffled; `wrong` of them are wrong."""
    chance = random.Random(seed)
    rows = []
    for number in range(GROUPS * EACH):
        group = number % GROUPS
        said = "nothing" if number < wrong else f"answer {group}"
        rows.append(
            (f"step {step}, number {number}: {said}" + "." * chance.randrange(60), f"u{group}", f"answer {group}")
        )
    chance.shuffle(rows)
    responses, uids, truths = zip(*rows, strict=True)
    return make_data(responses, uids, truths)


def extra_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    extra = result["reward_extra_info"]
    return [dict(zip(extra, values, strict=True)) for values in zip(*extra.values(), strict=True)]


def seed_where_one_hangs(share: float) -> int:
    """The seed decides the fate of each call: return a seed under which a single call of the batch hangs."""
    for seed in range(1000):
        chance, knobs = random.Random(seed), Knobs(share_hang=share)
        if [draw_fate(knobs, chance) for _ in range(GROUPS * EACH)].count("hang") == 1:
            return seed
    raise AssertionError("no such seed")


def test_one_hanging_judge_call_costs_one_reward_of_64(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "assay.rewards")
    share = 1 / 64
    stack.api.set(share_hang=share, seed=seed_where_one_hangs(share))
    data = batch(1)
    rows = extra_of(stack.manager(timeout_seconds=30.0)(data, return_dict=True))
    assert sum(row["valid"] for row in rows) == 63
    assert stack.api.calls == 64
    (lost,) = [row for row in rows if not row["valid"]]
    assert (lost["openai_quality_reward"], lost["original_score"]) == (0.0, 1.0)
    assert lost["reward"] == 1.0 - lost["length_penalty"]
    assert all(1.0 <= row["openai_quality_reward"] <= 10.0 for row in rows if row["valid"])
    warnings = re.findall(r"Timeout waiting for OpenAI API result for request [0-9a-f]{16}", caplog.text)
    assert len(warnings) == 1
    said = [record.getMessage() for record in caplog.records if record.name.startswith("assay.rewards")]
    assert said[:3] == [
        "Starting OpenAI worker processes for asynchronous API calls...",
        "OpenAI worker processes started successfully.",
        "Using asynchronous OpenAI workers to evaluate 64 responses",
    ]
    with Assay(stack.url) as client:
        (job,) = client.jobs()
        assert job.state == "cancelled"
        assert job.metadata["client"] == "length_penalty"


def test_the_manager_and_a_job_that_composes_agree(stack: Stack) -> None:
    data = batch(2, wrong=9)
    rows = extra_of(stack.manager(penalty_scale=0.5)(data, return_dict=True))
    items = [
        {
            "prompt": f"prompt of {uid}",
            "response": Letters().decode(ids, skip_special_tokens=True),
            "group_id": uid,
            "base_score": row["original_score"],
            "response_tokens": row["response_length"],
        }
        for uid, ids, row in zip(data.non_tensor_batch["uid"], data.batch["responses"], rows, strict=True)
    ]
    spec = {
        "judge": {"profile": "main", "rubric": "weighted", "reward_coefficient": 0.1},
        "penalties": [{"name": "group_length", "scale": 0.5}],
    }
    with Assay(stack.url) as client:
        composed = list(client.submit("score", items, spec).wait(PATIENCE_S).results())
    assert [row["reward"] for row in rows] == pytest.approx([row.score for row in composed])
    assert [row["length_penalty"] for row in rows] == pytest.approx([row.parts["group_length"] for row in composed])
    assert [row["median_length"] for row in rows] == [row.parts["median_length"] for row in composed]
    assert [row["openai_quality_reward"] for row in rows] == [row.parts.get("judge", 0.0) for row in composed]
    assert stack.api.calls == 64 - 9, "the cache answered the second job, and items with base score 0 were not judged"


def test_a_permuted_batch_gets_permuted_rewards(stack: Stack) -> None:
    data = batch(3)
    order = list(range(len(data)))
    random.Random(3).shuffle(order)
    turned = DataProto(
        {name: tensor[order] for name, tensor in data.batch.items()},
        {name: values[order] for name, values in data.non_tensor_batch.items()},
    )
    with stack.manager() as manager:
        straight, permuted = manager(data), manager(turned)
    assert straight[order].tolist() == permuted.tolist()
    assert straight.abs().sum() > 0


def test_trainers_that_share_a_server_never_mix(stack: Stack) -> None:
    """Each trainer gets the same rewards as alone."""
    batches = [batch(10 + number, seed=number, wrong=number) for number in range(6)]
    stack.api.set(latency_ms="5-200")
    managers = [stack.manager(), stack.manager(), stack.manager()]
    handles = [managers[number % 3].submit(data) for number, data in enumerate(batches)]
    together = [handle.collect() for handle in reversed(handles)][::-1]
    stack.api.set(latency_ms="0")
    stack.system.cache.client().flushall()
    for data, rewards in zip(batches, together, strict=True):
        assert rewards.tolist() == stack.manager()(data).tolist()
    assert len({str(rewards.tolist()) for rewards in together}) == 6


def test_base_scores_by_the_servers_scorers(stack: Stack) -> None:
    data = make_data(["It is 5.", "It is 6.", "so 5"], ["u", "u", "u"], ["5", "5", "5"])
    manager = LengthPenaltyRewardManager(
        Letters(), 0, length_penalty_config={"url": stack.url, "scorers": ["numeric_match"]}
    )
    assert [row["original_score"] for row in extra_of(manager(data, return_dict=True))] == [1.0, 0.0, 1.0]
    judged = LengthPenaltyRewardManager(
        Letters(),
        0,
        length_penalty_config={
            "url": stack.url, "scorers": ["numeric_match"], "enable_openai_reward": True, "profile": "main",
        },
    )  # fmt: skip
    rows = extra_of(judged(data, return_dict=True))
    assert [row["openai_quality_reward"] > 0 for row in rows] == [True, False, True]
    assert stack.api.calls == 2
    stack.api.set(share_hang=1.0)
    stack.system.cache.client().flushall()
    judged.config.timeout_seconds = 20.0
    rows = extra_of(judged(data, return_dict=True))
    assert [(row["original_score"], row["openai_quality_reward"]) for row in rows] == [
        (1.0, 0.0),
        (0.0, 0.0),
        (1.0, 0.0),
    ]
    assert [row["valid"] for row in rows] == [False, True, False]


def test_an_api_that_refuses_the_server_is_asked_by_the_trainer(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """The server's scorers give the base scores, and only the trainer has the API key."""
    data = make_data(["It is 5.", "It is 6.", "so 5"], ["u", "u", "u"], ["5", "5", "5"])
    config = {
        "url": stack.url, "scorers": ["numeric_match"], "enable_openai_reward": True, "model_name": "development",
        "api_endpoint": stack.api.url, "api_key": "sk-trainer", "reward_coefficient": 0.1,
    }  # fmt: skip
    manager = LengthPenaltyRewardManager(Letters(), 0, length_penalty_config=config)
    before = extra_of(manager(data, return_dict=True))
    stack.system.cache.client().flushall()
    stack.api.set(key="sk-trainer")
    assert extra_of(manager(data, return_dict=True)) == before
    assert [row["valid"] for row in before] == [True, True, True]
    assert [row["openai_quality_reward"] > 0 for row in before] == [True, False, True]
    (warning,) = [line for line in caplog.messages if "synchronously instead" in line]
    assert "2 responses (api_refused" in warning


def test_the_batch_goes_on_without_the_server(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    data = batch(4)
    before = stack.manager()(data)
    stack.served.program.stop()
    manager = stack.manager(api_key="none-needed")
    after = manager(data)
    assert after.tolist() == before.tolist(), "the same question, asked by the trainer, gets the same verdict"
    assert stack.api.calls == 128
    assert "synchronously instead" in caplog.text


def test_adapters_against_the_real_server(stack: Stack) -> None:
    reward = Reward(["numeric_match"], url=stack.url, window_s=0.5)  # long enough for concurrent calls to share a job
    assert reward(["It is 5.", "6"], references=["5", "5"], prompts=["2+3?"] * 2) == [1.0, 0.0]
    named = verl.compute_score("gsm8k", "so 5", "5", {"prompt": "2+3?"}, reward="number", url=stack.url)
    assert named == {"score": 1.0, "valid": True, "numeric_match": 1.0, "base": 1.0, "repetition": 0.0}
    lacking = verl.compute_score("gsm8k", "so 5", None, None, reward="number", url=stack.url)
    assert (lacking["score"], lacking["valid"], lacking.keys()) == (-1.0, False, named.keys())
    compared = TrlReward(
        {
            "scorers": [{"name": "numeric_match"}],
            "judge": {"profile": "main", "rubric": "weighted", "reward_coefficient": 0.1},
            "penalties": [{"name": "group_length"}],
            "group_statistics": True,
        },
        url=stack.url,
    )
    tables: dict[str, list[Any]] = {}
    rewards = compared(
        prompts=[[{"role": "user", "content": "2+3?"}]] * 3,
        completions=[[{"role": "assistant", "content": text}] for text in ("5", "it is 5", "6")],
        completion_ids=[[1] * 10, [1] * 10, [1] * 30],
        answer=["5"] * 3,
        log_extra=tables.__setitem__,
    )
    assert tables["assay/numeric_match"] == [1.0, 1.0, 0.0]
    assert tables["assay/group_length"] == [0.0, 0.0, 1.0]
    assert tables["assay/median_length"] == [10.0] * 3
    assert rewards[2] == -1.0
    assert {"assay/base", "assay/judge", "assay/advantage", "assay/response_length"} < tables.keys()

    async def one_by_one() -> list[list[float | None]]:
        calls = [reward.call_async([str(number)], ["5"], ["2+3?"]) for number in range(40)]
        return list(await asyncio.gather(*calls))

    with Assay(stack.url) as client:
        before = len(list(client.jobs()))
        assert asyncio.run(one_by_one()) == [[float(number == 5)] for number in range(40)]
        assert len(list(client.jobs())) - before < 5, "forty calls at once are few jobs"
    for each in (reward, compared):
        each.client.close()


EXAMPLES = {
    "verl_reward.py": ["1.0 True", "0.0 True", "1.0 True"],
    "openrlhf_reward.py": ["'rewards': [1.0, 0.0]", "'valid': [1.0, 1.0]"],
    "slime_reward.py": ["[1.0, 0.0] [1.0, 0.0]"],
    "length_penalty_manager.py": ["INFO - Using asynchronous OpenAI workers to evaluate 3 responses", "'valid': 1"],
}


def test_every_example_that_needs_no_trainer_runs(stack: Stack, tmp_path: Path) -> None:
    for example, printed in EXAMPLES.items():
        ended = run_python(stack.served, tmp_path, str(ROOT / "examples" / example), "main")
        assert ended.returncode == 0, ended.stderr
        for part in printed:
            assert part in ended.stdout + ended.stderr, example


def test_judging_goes_on_while_the_trainer_computes(stack: Stack) -> None:
    with stack.api.held():
        handle = stack.manager().submit(batch(5))
        assert not handle.done
    assert float(handle.collect().abs().sum()) > 0
