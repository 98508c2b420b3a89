"""GRPO training with TRL on small sums, with rewards by Assay.

Run: pip install trl ./client && python examples/trl_grpo.py --model Qwen/Qwen3-0.6B   (ASSAY_URL, ASSAY_TOKEN)
"""

import argparse
import json

from assay.rewards.trl import TrlReward
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

#: The spec of a score job; it could also be the name of a reward that is configured on the server.
REWARD = {
    "scorers": [
        {"name": "numeric_match", "weight": 1.0},
        {"name": "length", "weight": 0.2, "options": {"most": 8, "margin": 100}},
    ],
    "penalties": [{"name": "repetition", "scale": 0.5}],
}


def sums(number: int) -> Dataset:
    """Return a dataset of sums; the column `answer` holds the references for the scorers."""
    pairs = [(n % 7, n % 5) for n in range(number)]
    return Dataset.from_list([{"prompt": f"What is {a} + {b}? It is ", "answer": str(a + b)} for a, b in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--output", default="trl-output")
    options = parser.parse_args()
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=TrlReward(REWARD),
        args=GRPOConfig(
            output_dir=options.output,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=32,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=options.cpu,
        ),
        train_dataset=sums(64),
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "rewards/assay/mean" in entry:
            print(json.dumps({"step": entry["step"], "reward": entry["rewards/assay/mean"]}))


if __name__ == "__main__":
    main()
