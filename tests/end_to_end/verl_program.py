"""Let verl call our reward manager and functions. test_real_trainers.py runs it in an environment with verl.

Prints a JSON object with the rewards that verl received.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import assay.rewards.verl as reward_file
import numpy as np
import torch
from assay.rewards import LengthPenaltyRewardManager
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager as LoopManager
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.workers.reward_manager import BatchRewardManager, NaiveRewardManager, get_reward_manager_cls, register

from tests.support.data_proto import Letters, entries, make_data, tensors

RESPONSES = ["so 5", "it is 5, I think", "6", "5"]
UIDS, TRUTHS = ["a", "b", "a", "b"], ["5"] * 4


def real_data() -> DataProto:
    """Make a batch as verl's trainer does: `from_dict`, then split and concatenated again."""
    infos = np.array([{"index": index} for index in range(4)], dtype=object)
    return DataProto.concat(
        DataProto.from_dict(
            tensors([f"prompt of {uid}" for uid in UIDS], RESPONSES), entries(UIDS, TRUTHS) | {"extra_info": infos}
        ).chunk(2)
    )


def ends_right(solution_str: str, ground_truth: str, **_: Any) -> float:
    return float(solution_str.endswith(ground_truth))


def function(path: str, name: str, url: str) -> Any:
    """Load the function as verl does for `custom_reward_function.path=... custom_reward_function.name=...`."""
    kwargs = {"url": url, "reward": {"scorers": [{"name": "numeric_match"}]}}
    custom = {"path": path, "name": name, "reward_kwargs": kwargs}
    return get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": custom}}))


async def through_the_reward_loop(compute_score: Any) -> list[dict[str, Any]]:
    config = OmegaConf.create({})
    manager = LoopManager(config, Letters(), compute_score)
    data = real_data()
    return list(await asyncio.gather(*(manager.run_single(data[index : index + 1]) for index in range(len(data)))))


def main(url: str) -> None:
    config = {"url": url, "enable_openai_reward": True, "profile": "main", "reward_coefficient": 0.1}
    register("length_penalty")(LengthPenaltyRewardManager)
    manager = get_reward_manager_cls("length_penalty")(
        tokenizer=Letters(),
        num_examine=1,
        compute_score=ends_right,
        reward_fn_key="data_source",
        length_penalty_config=OmegaConf.create(config),
    )
    plain = LengthPenaltyRewardManager(Letters(), 0, ends_right, length_penalty_config={"enable": False})
    here = str(Path(reward_file.__file__))
    single, awaited = (
        function(here, "compute_score", url),
        function("pkg://assay.rewards.verl", "compute_score_async", url),
    )
    with_rm = real_data()
    with_rm.batch["rm_scores"] = torch.ones_like(with_rm.batch["responses"], dtype=torch.float32)
    told = {
        "as_verl": torch.equal(plain(real_data()), NaiveRewardManager(Letters(), 0, ends_right)(real_data())),
        "judged": manager(real_data()).tolist(),
        "judged_stand_in": manager(make_data(RESPONSES, UIDS, TRUTHS)).tolist(),
        "extra": manager(real_data(), return_dict=True)["reward_extra_info"],
        "rm_scores": torch.equal(manager(with_rm), with_rm.batch["rm_scores"]),
        "single": NaiveRewardManager(Letters(), 0, single)(real_data(), return_dict=True)["reward_extra_info"],
        "batch": BatchRewardManager(
            Letters(), 0, function(here, "compute_score_batch", url)
        )(real_data(), return_dict=True)["reward_extra_info"],
        "loop": [each["reward_extra_info"] for each in asyncio.run(through_the_reward_loop(awaited))],
    }  # fmt: skip
    print("RESULT", json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
