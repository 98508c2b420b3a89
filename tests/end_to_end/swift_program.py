"""Let ms-swift load and call the plugin of examples/. test_real_trainers.py runs it in an environment with ms-swift.

Prints a JSON list with a list of rewards for each sample.
"""

import json
import math
from pathlib import Path

import torch
from swift.rewards import orms
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import compute_rewards_per_func
from swift.utils import import_external_file

SAID = ["<think>48 + 24</think><answer>72</answer>", "<think>48 + 48</think><answer>96</answer>"]


def sample(said: str, solution: str | None) -> GRPOSample:
    messages = [{"role": "user", "content": "48 + 24?"}, {"role": "assistant", "content": said}]
    return GRPOSample(messages=messages, extra={"solution": solution}, response_token_ids=[[1, 2, 3]])


def main() -> None:
    import_external_file(str(Path(__file__).parents[2] / "examples/swift_plugin.py"))
    samples = [sample(said, "72") for said in SAID] + [sample("<answer>72</answer>", None)]
    rewards = compute_rewards_per_func(samples, [orms["assay"](args=None)], [None], torch.device("cpu"))
    told = [[None if math.isnan(each) else each for each in row] for row in rewards.tolist()]
    print("RESULT", json.dumps(told))


if __name__ == "__main__":
    main()
