"""New weights for a loaded model against loading it anew: `python -m bench.weights [--threads N] [--rounds N]`.

Both by turns in one process, from the same files, which lie in the system's file cache: what is compared is our work
and not the disk's. Reading includes the checksum. What an answer under way waits for is the swap alone: reading goes
on beside the generation.
"""

import argparse
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.spread import brief, line, note, spread
from tasks.inference.engine import GenerateRequest, ModelRef, Sampling
from workers.engines.default_models import SMOLLM2, prepare
from workers.engines.engine import EngineOptions, TransformersEngine

TARGET = 5.0


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.weights", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=brief(7))
    parser.add_argument("--data", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = prepare(arguments.data)[SMOLLM2]
    file = folder / "model.safetensors"
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    engine = TransformersEngine(EngineOptions({}, on_cpu=True))
    swapped, reloaded = (ModelRef(str(folder), copy=name) for name in ("swapped", "reloaded"))
    one = [GenerateRequest("The", Sampling(max_new_tokens=1))]
    engine.generate(swapped, one)
    engine.generate(reloaded, one)

    def reload() -> None:
        engine.drop(reloaded)
        engine.version(reloaded)

    reloads, reads, swaps = [], [], []
    for at in range(arguments.rounds):
        reloads.append(timed(reload))
        started = time.perf_counter()
        weights = engine.read(file.as_uri(), checksum)
        reads.append(time.perf_counter() - started)
        swaps.append(timed(lambda weights=weights, at=at: engine.swap(swapped, weights, str(at))))  # type: ignore[misc]
        del weights
    note(f"SmolLM2, {file.stat().st_size / 1e6:.0f} MB, {arguments.threads} threads, {arguments.rounds} rounds")
    for name, seconds in (("reload from disk", reloads), ("read with checksum", reads), ("swap", swaps)):
        note(f"{name}, seconds: {spread(seconds)}")
    whole = [reload / (read + swap) for reload, read, swap in zip(reloads, reads, swaps, strict=True)]
    stall = [reload / swap for reload, swap in zip(reloads, swaps, strict=True)]
    line("reload over swap, which is what generation waits for", spread(stall), f">= {TARGET:g}")
    line("reload over read, checksum and swap", spread(whole), "none")


if __name__ == "__main__":
    main()
