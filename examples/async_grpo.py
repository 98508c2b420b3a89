"""Fully asynchronous GRPO on small sums: Assay generates and rewards continuously, this process only trains.

It uses only the client: it creates a rollout, takes batches of samples, and sends each new version of the weights,
which devices load between two tokens. Samples are up to `--staleness` versions old; their importance weights use the
log-probabilities recorded during generation. `--staleness 0` is the synchronous run.

Run: make up, then  python examples/async_grpo.py   (ASSAY_URL, ASSAY_TOKEN; needs torch and transformers)
Three seeds, synchronous and asynchronous, on a separate system, with a plot: ./run_e2e_test.sh
"""

import argparse
import json
import statistics
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from addition import ANSWER_TOKENS, pretrain, questions, write
from assay.rollouts import FullyAsyncRollouter, MessageQueueClient, ParameterSynchronizer
from grpo import Sample, advantages, loss_of
from safetensors.torch import save
from transformers import AutoModelForCausalLM, PreTrainedModel

#: Samples per prompt, prompts per batch, and the learning rate.
SAMPLES, GROUPS, RATE = 8, 16, 5e-4
#: Number of steps at the start and at the end of the run whose mean rewards are compared.
COMPARED = 15
#: Maximum time to wait for a batch, in seconds.
WAIT_S = 120.0

Row = dict[str, Any]


def weights_of(model: PreTrainedModel) -> bytes:
    """Serialize the weights as safetensors; a tensor with two names (tied weights) is stored once."""
    unique = {each.data_ptr(): (name, each) for name, each in reversed(model.state_dict().items())}
    return bytes(save({name: each.contiguous() for name, each in unique.values()}))


def groups_of(samples: list[Row]) -> list[list[Row]]:
    """Group the samples by prompt; drop samples without a valid reward."""
    groups = [list(group) for _, group in groupby(samples, key=lambda sample: sample["index"])]
    return [valid for group in groups if (valid := [each for each in group if each["valid"]])]


def training_samples(groups: list[list[Row]]) -> list[Sample]:
    """Return the samples with a non-zero advantage; a group with equal rewards has no such sample."""
    return [
        Sample(each["prompt_ids"], each["token_ids"], each["logprobs"], advantage)
        for group in groups
        for each, advantage in zip(group, advantages([each["reward"] for each in group]), strict=True)
        if advantage
    ]


def train(
    model: PreTrainedModel, queue: MessageQueueClient, synchronizer: ParameterSynchronizer, steps: int, waits: bool
) -> list[Row]:
    """Train; each step sends a version of the weights. With `waits`, a step starts only after the devices have it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    began, rows = time.monotonic(), []
    for version in range(steps):
        requested = time.monotonic()
        batch = queue.get_samples(SAMPLES * GROUPS, WAIT_S, version)
        if batch is None:
            raise SystemExit(f"no samples within {WAIT_S:g} s: run `assay doctor` for the cause")
        waited_s, groups = time.monotonic() - requested, groups_of(batch[0])
        metrics: dict[str, float] = {}
        if samples := training_samples(groups):
            loss, metrics = loss_of(model, samples)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        is_synced = synchronizer.sync_weights(version + 1, weights_of(model), timeout=60.0 if waits else 0.0)
        if waits and not is_synced:
            raise SystemExit(f"version {version + 1} reached no device: {synchronizer.status['reason']}")
        rows.append(_row(version, time.monotonic() - began, waited_s, groups, batch[1]) | metrics)
        if version % 25 == 0:
            print("step {step:4d}  {seconds:6.1f} s  reward {reward:.2f}  age {age:.2f}".format(**rows[-1]), flush=True)
    return rows


def _row(version: int, seconds: float, waited_s: float, groups: list[list[Row]], metadata: Row) -> Row:
    ages = [version - number for group in groups for each in group for number, _ in each["versions"]]
    rewards = [statistics.fmean(each["reward"] for each in group) for group in groups]
    return {
        "step": version,
        "seconds": round(seconds, 3),
        "waited_s": round(waited_s, 3),
        "groups": rewards,
        "reward": statistics.fmean(rewards),
        "age": statistics.fmean(ages),
        "oldest": max(ages),
        "dropped": metadata["dropped_stale_samples"],
    }


def compare(rows: list[Row]) -> dict[str, float]:
    """Compare the mean rewards of the first and the last steps. The standard error is over prompts, the random draw."""
    first, last = ([mean for row in part for mean in row["groups"]] for part in (rows[:COMPARED], rows[-COMPARED:]))
    error = (statistics.variance(first) / len(first) + statistics.variance(last) / len(last)) ** 0.5
    rise = statistics.fmean(last) - statistics.fmean(first)
    return {"first": statistics.fmean(first), "last": statistics.fmean(last), "rise": rise, "standard_error": error}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--models", type=Path, default=Path("data/models"), help="the server's ASSAY_MODELS_DIR")
    model_help = "model to train instead of the tiny model; the server must have it under the same path"
    parser.add_argument("--model", type=Path, help=model_help)
    rise_help = "minimum increase of the mean reward for the run to succeed"
    parser.add_argument("--least_rise", type=float, default=0.2, help=rise_help)
    parser.add_argument("--output", type=Path, default=Path("grpo-output"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # leave the other cores to generation
    model: Any
    if options.model:
        name = str(options.model.resolve())
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    else:
        name, began = f"addition-{options.seed}", time.monotonic()
        model = pretrain(90, options.seed)
        write(model, options.models / name)
        print(f"pre-trained in {time.monotonic() - began:.0f} s", flush=True)
    rollouter = FullyAsyncRollouter(
        prompts=questions(400, options.seed),
        model=name,
        chat="never",
        seed=options.seed,
        n=SAMPLES,
        temperature=1.0,
        max_new_tokens=ANSWER_TOKENS,
        reward={"scorers": [{"name": "numeric_match"}]},
        max_staleness=options.staleness,
        train_batch_size=SAMPLES * GROUPS,
        max_queue_size=SAMPLES * GROUPS * (options.staleness + 2),
    )
    try:
        queue, synchronizer = rollouter.queue(whole_groups=True), ParameterSynchronizer(rollouter)
        rows = train(model.train(), queue, synchronizer, options.steps, waits=options.staleness == 0)
        queue.acknowledge()
        rollout_statistics = rollouter.get_statistics()
    finally:
        rollouter.end()
        rollouter.close()
    found = compare(rows) | {
        "seed": options.seed,
        "staleness": options.staleness,
        "seconds": rows[-1]["seconds"],
        "oldest": max(row["oldest"] for row in rows),
        "age": statistics.fmean(row["age"] for row in rows),
        "waited_s": sum(row["waited_s"] for row in rows),
        "statistics": rollout_statistics,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"seed{options.seed}-staleness{options.staleness}"
    stem.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stem.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    summary = (
        "reward {first:.3f} -> {last:.3f}: up {rise:.3f}, standard error {standard_error:.3f}; {seconds:.0f} s, "
        "oldest token {oldest} versions old, {age:.2f} on average"
    )
    print(summary.format(**found))
    if found["oldest"] > options.staleness:
        print("failed: a sample was staler than --staleness", file=sys.stderr)
    elif found["rise"] < max(options.least_rise, 3 * found["standard_error"] if options.least_rise > 0 else -1):
        print("failed: the mean reward increased by less than --least_rise or its error", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
