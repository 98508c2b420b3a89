"""Reward stages of a score job, applied to groups of samples: judge calls, and effects of a failure on the group."""

import asyncio
from pathlib import Path
from typing import Any

from tasks.errors import ApiUnavailable
from tasks.inference.models import Models
from tasks.jobs.model import Result
from tasks.jobs.stage import AskStage, Stage, Work
from tasks.judging.kind import Judge
from tasks.judging.rubrics import Rubrics
from tasks.providers.call import ApiCall, ApiReply
from tasks.rollouts.kind import Rollout
from tasks.rollouts.model import RolloutItem, RolloutSpec
from tasks.scoring.kind import Score
from tasks.scoring.lengths import Tokenizers

MODELS = Models(Path("models"))
KIND = Rollout(Score(Judge(Rubrics(None)), Tokenizers(), MODELS), MODELS, versions=None)  # type: ignore[arg-type]
JUDGED = {"scorers": [{"name": "length", "options": {"most": 100}}], "judge": {"profile": "main"}}


def stages(reward: dict[str, Any], n: int = 2) -> dict[str, Stage[RolloutItem]]:
    spec = RolloutSpec.model_validate(
        {"model": "m", "rollout": "r", "sampling": {"n": n, "temperature": 1.0}, "reward": reward}
    )
    return {stage.name: stage for stage in KIND.stages(spec)}


def group(*texts: str) -> Any:
    sample = {"finish": "stop", "token_ids": [1], "logprobs": [0.0], "versions": [[1, 1]]}
    samples = [sample | {"text": text} for text in texts]
    return {"prompt_ids": [], "samples": samples, "rows": [{} for _ in samples], "seconds": 0.0}


def carried(value: Any) -> Work[RolloutItem]:
    item = RolloutItem.model_validate({"prompt": "2+3?", "reference": "5"})
    return Work(0, item, {"value": value})


def before_the_judge(*texts: str) -> Work[RolloutItem]:
    value = group(*texts)
    value["rows"] = [{"parts": {"base": 1.0}, "next": "judge", "score": 1.0} for _ in texts]
    return carried(value)


def judge() -> AskStage[RolloutItem]:
    stage = stages(JUDGED)["judge"]
    assert isinstance(stage, AskStage)
    return stage


def test_a_reward_has_the_stages_of_the_score_job_with_batches_of_whole_groups() -> None:
    of_groups, of_samples = stages(JUDGED, n=8), KIND._score.stages(RolloutSpec(reward=JUDGED).reward)  # type: ignore[arg-type]
    assert list(of_groups) == ["generate", *(stage.name for stage in of_samples)]
    for stage in of_samples:
        limits = of_groups[stage.name].limits
        assert (limits.batch_items, limits.cost_s) == (stage.limits.batch_items // 8, stage.limits.cost_s * 8)
        assert of_groups[stage.name].key(carried(group("a"))) is None


def test_each_sample_is_judged_and_the_group_is_put_with_its_rewards() -> None:
    asked: list[ApiCall] = []

    async def ask(call: ApiCall) -> ApiReply:
        asked.append(call)
        return ApiReply(f"Score: {2 * len(asked)}", "stop")

    stage, work = judge(), before_the_judge("5", "6")
    put = stage.advance(work, asyncio.run(stage.ask(ask, work)))
    assert len(asked) == 2
    assert put.bundle is not None
    samples: Any = put.bundle.body["samples"]
    assert sorted(sample["parts"]["judge"] for sample in samples) == [2.0, 4.0]
    assert all(sample["valid"] for sample in samples)


def test_an_unavailable_judge_retries_the_group_and_finally_fails_a_single_sample() -> None:
    async def ask(call: ApiCall) -> ApiReply:
        if "only this one" in str(call.messages):
            raise ApiUnavailable("away")
        return ApiReply("Score: 4", "stop")

    stage, work = judge(), before_the_judge("5", "only this one")
    result = asyncio.run(stage.ask(ask, work))
    assert result.error is not None
    assert result.error.retryable, "the whole group is tried again"
    assert result.if_not_retried is not None
    put = stage.advance(work, result.if_not_retried)
    assert put.bundle is not None
    samples: Any = put.bundle.body["samples"]
    assert [sample["valid"] for sample in samples] == [True, False]
    assert samples[1]["error"]["type"] == "api_unavailable"


def test_a_group_that_failed_stays_failed() -> None:
    stage, work = judge(), before_the_judge("5", "6")
    failed = Result.of_error(ApiUnavailable("away"))
    assert stage.advance(work, failed) is failed
