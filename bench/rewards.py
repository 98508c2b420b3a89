"""A trainer's step with rewards beside it: `python -m bench.rewards`. Takes about three minutes.

512 responses of 64 groups are judged by the development API, which takes 1 to 4 s a call with a long tail, 128 calls in
flight; the trainer's own computing is a sleep. In one run: judging alone, the step one after the other, and the step
with `submit` and `collect`.
"""

import time
from types import SimpleNamespace
from typing import Any

import torch
from assay.rewards import LengthPenaltyConfig, LengthPenaltyRewardManager

from bench.http import gunicorn
from bench.spread import brief, line, note, spread
from bench.stack import stack
from workers.development_api.handle import running

RESPONSES, GROUPS, COMPUTE_S, ROUNDS = 512, 64, 8.0, 3
PROFILE = """
[profiles.main]
base_url = "{url}"
models = ["development"]
concurrency = 128
concurrency_start = 128
"""


class Bytes:
    """A tokenizer: every byte is a token."""

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool = False) -> str:  # noqa: ARG002  # it has none
        return bytes(ids.tolist()).decode()


def batch(first: int) -> Any:
    """A verl DataProto, as far as a reward manager looks at one; every response is a new question."""
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
    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._first = 0

    def _batch(self) -> Any:
        self._first += RESPONSES
        return batch(self._first)

    def judging(self) -> float:
        return self._timed(lambda data: self._checked(self._manager(data, return_dict=True)))

    def in_turn(self) -> float:
        def step(data: Any) -> None:
            time.sleep(COMPUTE_S)
            self._checked(self._manager(data, return_dict=True))

        return self._timed(step)

    def beside(self) -> float:
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
        assert all(result["reward_extra_info"]["valid"]), "every response is judged"


def main() -> None:
    with running(latency_ms="1000-4000") as api, stack() as stand:
        profiles = stand.folder / "profiles.toml"
        profiles.write_text(PROFILE.format(url=api.url))
        stand.settings = stand.settings.model_copy(update={"profiles_file": profiles})
        with stand.workers(1, cpu=1, api=2), gunicorn(stand) as (port, _):
            config = LengthPenaltyConfig(
                enable_openai_reward=True, profile="main", url=f"http://127.0.0.1:{port}", num_async_workers=128
            )
            with LengthPenaltyRewardManager(Bytes(), 0, lambda **_: 1.0, length_penalty_config=config) as manager:
                trainer = Trainer(manager)
                trainer.judging()  # warm
                rounds = [(trainer.judging(), trainer.in_turn(), trainer.beside()) for _ in range(brief(ROUNDS))]
    judging, in_turn, beside = (spread(each) for each in zip(*rounds, strict=True))
    longer = max(spread([COMPUTE_S]), judging, key=lambda each: each.middle)
    note(f"seconds: judging {judging}, computing {COMPUTE_S}, one after the other {in_turn}, beside it {beside}")
    line("step with submit and collect, over the longer of the two", beside.over(longer), "<= 1.05")
    line("the step one after the other, over the longer of the two", in_turn.over(longer), "none")


if __name__ == "__main__":
    main()
