"""Benchmark of the model engine against plain uses of transformers.

`python -m bench.parts.engines [--threads N] [--rows N]`. Takes about twelve minutes. All variants run the same model on
the same prompts in this process and alternate. Rates are per second of CPU time, because the machine may be shared;
rates by wall-clock time are printed beside them. On a GPU the wall-clock rates count.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from bench.report.figures import brief, line, note
from tasks.inference.engine import Generated, GenerateRequest, ModelRef, Sampling
from tasks.measurement.spread import Spread, spread_of
from workers.engines.default_models import MINILM, SMOLLM2, prepare
from workers.engines.engine import EngineOptions, TransformersEngine
from workers.engines.precision import choose_device
from workers.engines.tokenization import encode_prompt

NEW_TOKENS, TEXTS = 32, 512
#: The variant without batching, which has a target of its own.
ROW_BY_ROW = "a generate call for each row"
FACTS = (
    "The harbour was built in 1874 and has been widened twice since then.",
    "numpy.array copies its argument unless copy=False is given and the type agrees.",
    "A leap year has 366 days, because the earth takes a little longer than 365 days for its way.",
    "She sold twelve eggs at two dollars each, and kept the remaining four for her breakfast.",
    "Trains leave every twenty minutes; the last one at night waits for the ferry.",
    "The function raises ValueError when its argument is negative or not a number.",
    "In spring the river carries three times as much water as in autumn.",
)


def documents(number: int, most: int, variant: int) -> list[str]:
    """Return texts of 1 to `most` sentences: their lengths vary as in real contexts."""
    chance = random.Random(variant)
    return [" ".join(chance.choices(FACTS, k=chance.randint(1, most))) for _ in range(number)]


class PlainTransformers:
    """Plain uses of transformers on the same prompts. Each method returns the number of generated tokens."""

    def __init__(self, folder: Path, number: int, most: int) -> None:
        self.device = choose_device()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map=self.device)
        questions = [f"{text}\n\nSay in your own words what this is about." for text in documents(number, most, 0)]
        self.chats = [[{"role": "user", "content": question}] for question in questions]
        self.prompts = [encode_prompt(self.tokenizer, chat) for chat in self.chats]

    def batches(self, order: Sequence[int], size: int) -> int:
        generated = 0
        for at in range(0, len(order), size):
            batch = [self.prompts[place] for place in order[at : at + size]]
            width = max(map(len, batch))
            padded = [[self.tokenizer.pad_token_id] * (width - len(each)) + each for each in batch]
            mask = [[0] * (width - len(each)) + [1] * len(each) for each in batch]
            with torch.inference_mode():
                tokens = self.network.generate(
                    torch.tensor(padded, device=self.device),
                    attention_mask=torch.tensor(mask, device=self.device),
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                )
            generated += sum(_until_end(row, self.tokenizer.eos_token_id) for row in tokens[:, width:].tolist())
        return generated

    def one_by_one(self) -> int:
        """Generate a quarter of the prompts without batching: this is the slowest variant."""
        return self.batches(range(0, len(self.prompts), 4), 1)

    def in_input_order(self) -> int:
        return self.batches(range(len(self.prompts)), 8)

    def sorted_by_length(self) -> int:
        return self.batches(sorted(range(len(self.prompts)), key=lambda place: len(self.prompts[place])), 16)

    def continuous(self) -> int:
        end = self.tokenizer.eos_token_id
        found = self.network.generate_batch(
            self.prompts,
            GenerationConfig(  # type: ignore[no-untyped-call]
                max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=end, pad_token_id=end
            ),
            ContinuousBatchingConfig(max_requests_per_batch=32, max_batch_tokens=512, num_blocks=128),
        )
        failed = [each.error for each in found.values() if each.error]
        assert not failed, failed[0]  # transformers reports these failures nowhere else
        return sum(len(each.generated_tokens) for each in found.values())


def _until_end(tokens: list[int], end: int) -> int:
    return tokens.index(end) + 1 if end in tokens else len(tokens)


def measure_once(work: Callable[[], int]) -> tuple[float, float]:
    """Return the rate of one run, per second of CPU time and per second of wall-clock time."""
    cpu, clock = time.process_time(), time.perf_counter()
    processed = work()
    return processed / (time.process_time() - cpu), processed / (time.perf_counter() - clock)


def measure(about: str, variants: dict[str, Callable[[], int]], unit: str, times: int) -> dict[str, Spread]:
    """Measure the variants alternately, so that other load on the machine slows them equally."""
    device = choose_device()
    rounds = [{name: measure_once(work) for name, work in variants.items()} for _ in range(times)]
    found = {}
    for name in variants:
        by_cpu, by_clock = (spread_of([each[name][side] for each in rounds]) for side in (0, 1))
        found[name] = by_clock if device.type == "cuda" else by_cpu
        note(f"{about}, {name}: {by_cpu} {unit}/s of CPU, {by_clock.middle:.4g} by wall-clock time")
    return found


def generation(
    places: dict[str, Path], name: str, number: int, most: int, target: str, rows: int | None, times: int
) -> None:
    plain = PlainTransformers(places[SMOLLM2], number, most)
    engine = TransformersEngine(EngineOptions(places, rows=rows))
    asked = [GenerateRequest(chat, Sampling(max_new_tokens=NEW_TOKENS)) for chat in plain.chats]

    def ours() -> int:
        answers = engine.generate(ModelRef(SMOLLM2), asked)
        return sum(answer.tokens_out for answer in answers if isinstance(answer, Generated))

    engine.generate(ModelRef(SMOLLM2), asked[:1])  # load the model
    lengths = sorted(map(len, plain.prompts))
    note(f"{number} {name} prompts of {lengths[0]} to {lengths[-1]} tokens, {NEW_TOKENS} new")
    rates = measure(
        f"{name} prompts",
        {
            ROW_BY_ROW: plain.one_by_one,
            "batches of 8 in input order": plain.in_input_order,
            "batches of 16 sorted by length": plain.sorted_by_length,
            "transformers' continuous batching": plain.continuous,
            "the engine": ours,
        },
        "tokens",
        times,
    )
    ours_rate = rates.pop("the engine")
    for other, rate in rates.items():
        line(f"{name} prompts, rate over {other}", ours_rate.over(rate), target if other == ROW_BY_ROW else "> 1")


def scoring(places: dict[str, Path], times: int) -> None:
    texts = [text for most in (1, 3, 12) for text in documents(TEXTS // 3, most, most)]
    random.Random(0).shuffle(texts)
    engine = TransformersEngine(EngineOptions(places))
    tokenizer = AutoTokenizer.from_pretrained(places[MINILM])
    network = AutoModel.from_pretrained(places[MINILM]).eval().to(choose_device())

    def unsorted(size: int, part: Sequence[str]) -> int:
        for at in range(0, len(part), size):
            inputs: Any = tokenizer(
                list(part[at : at + size]), padding=True, truncation=True, max_length=256, return_tensors="pt"
            ).to(network.device)
            with torch.inference_mode():
                states = network(**inputs).last_hidden_state
                weights = inputs["attention_mask"][:, :, None]
                torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1)).tolist()
        return len(part)

    engine.embed(ModelRef(MINILM), texts[:1])
    rates = measure(
        f"embeddings of {len(texts)} texts by MiniLM",
        {
            "single texts": lambda: unsorted(1, texts[::4]),
            "batches of 32, unsorted": lambda: unsorted(32, texts),
            "the engine": lambda: len(engine.embed(ModelRef(MINILM), texts)),
        },
        "texts",
        times,
    )
    line("embeddings, rate over single texts", rates["the engine"].over(rates["single texts"]), "> 1")
    line("embeddings, rate over unsorted batches", rates["the engine"].over(rates["batches of 32, unsorted"]), ">= 1.5")


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of the model engine against plain uses of transformers.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, help="rows in a batch (default: the engine's own choice)")
    parser.add_argument("--times", type=int, default=brief(3))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--only", choices=("short", "long", "scoring"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    places = prepare(arguments.data)
    print(f"{torch.get_num_threads()} threads, {choose_device()}")
    for name, number, most, target in (("short", brief(32, 8), 5, ">= 3.5"), ("long", brief(16, 8), 40, "> 1")):
        if arguments.only in (None, name):  # with long prompts, prefill takes most of the time in every variant
            generation(places, name, number, most, target, arguments.rows, arguments.times)
    if arguments.only in (None, "scoring"):
        scoring(places, arguments.times)


if __name__ == "__main__":
    main()
