"""Benchmark of asynchronous rewards: a training step with judging in the background. `python -m bench rewards`.

Takes about three minutes. The development API judges 512 responses of 64 groups; a call takes 1 to 4 s with a long
tail, and 128 calls are in flight. The trainer's own computation is a sleep. Measured in a single run: judging alone,
the step with blocking rewards, and the step with `submit` and `collect`.
"""

import time
from types import SimpleNamespace
from typing import Any

import torch
from assay.rewards import LengthPenaltyConfig, LengthPenaltyRewardManager

from bench.parts.http import gunicorn
from bench.processes.stack import running_stack
from bench.report.figures import brief, line, note
from tasks.measurement.spread import spread_of
from workers.development_api.control import running

RESPONSES, GROUPS, COMPUTE_S, ROUNDS = 512, 64, 8.0, 3


class ByteTokenizer:
    """Tokenizer in which every byte is a token."""

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool = False) -> str:  # noqa: ARG002  # no special tokens exist
        return bytes(ids.tolist()).decode()


def batch(first: int) -> Any:
    """Return the fields of a verl DataProto that a reward manager reads. All responses differ: the cache answers
    none."""
    prompts = torch.tensor([list(b"How many?")] * RESPONSES)
    texts = [f"There are {number:09d}.".encode() for number in range(first, first + RESPONSES)]
    responses = torch.tensor([list(text) for text in texts])
    mask = torch.ones(RESPONSES, prompts.shape[1] + responses.shape[1], dtype=torch.long)
    entries = {
        "uid": [str(at % GROUPS) for at in range(RESPONSES)],
        "data_source": ["bench"] * RESPONSES,
        "reward_model": [{"ground_truth": ""}] * RESPONSES,
    }
    tensors = {"prompts": prompts, "responses": responses, "attention_mask": mask}
    return SimpleNamespace(batch=tensors, non_tensor_batch=entries, meta_info={})


class Trainer:
    """A training step with rewards, in three variants; each method returns the seconds of a step."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._first = 0

    def _batch(self) -> Any:
        self._first += RESPONSES
        return batch(self._first)

    def judging(self) -> float:
        return self._timed(lambda data: self._checked(self._manager(data, return_dict=True)))

    def blocking(self) -> float:
        def step(data: Any) -> None:
            time.sleep(COMPUTE_S)
            self._checked(self._manager(data, return_dict=True))

        return self._timed(step)

    def concurrent(self) -> float:
        def step(data: Any) -> None:
            handle = self._manager.submit(data)
            time.sleep(COMPUTE_S)
            self._checked(handle.collect(return_dict=True))

        return self._timed(step)

    def _timed(self, step: Any) -> float:
        data = self._batch()
        started = time.perf_counter()
        step(data)
        return time.perf_counter() - started

    def _checked(self, result: Any) -> None:
        assert all(result["reward_extra_info"]["valid"]), "not every response was judged"


def main() -> None:
    with running(latency_ms="1000-4000") as api, running_stack() as stack:
        stack.use_api(api.url)
        with stack.workers(1, cpu=1, api=2), gunicorn(stack) as (port, _):
            config = LengthPenaltyConfig(
                enable_openai_reward=True, profile="main", url=f"http://127.0.0.1:{port}", num_async_workers=128
            )
            with LengthPenaltyRewardManager(
                ByteTokenizer(), 0, lambda **_: 1.0, length_penalty_config=config
            ) as manager:
                trainer = Trainer(manager)
                trainer.judging()  # warm up
                rounds = [(trainer.judging(), trainer.blocking(), trainer.concurrent()) for _ in range(brief(ROUNDS))]
    judging, blocking, concurrent = (spread_of(each) for each in zip(*rounds, strict=True))
    longer = max(spread_of([COMPUTE_S]), judging, key=lambda each: each.middle)
    note(
        f"seconds: judging {judging}, computing {COMPUTE_S}; step with blocking rewards {blocking}, "
        f"with submit and collect {concurrent}"
    )
    line("step with submit and collect, over the longer of the two", concurrent.over(longer), "<= 1.05")
    line("step with blocking rewards, over the longer of the two", blocking.over(longer), "none")


if __name__ == "__main__":
    main()
