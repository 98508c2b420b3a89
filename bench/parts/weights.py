"""Benchmark of weight updates: swapping the weights of a loaded model against reloading the model.

`python -m bench.parts.weights [--threads N] [--rounds N]`. Both alternate in a process and read the same files from
the system's file cache, so that the comparison covers our code and not the disk. Reading includes the checksum.
A running generation waits for the swap only: reading happens in parallel with it.
"""

import argparse
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.report.figures import brief, line, note
from tasks.inference.engine import GenerateRequest, ModelRef, Sampling
from tasks.measurement.spread import spread_of
from workers.engines.default_models import SMOLLM2, prepare
from workers.engines.engine import EngineOptions, TransformersEngine

TARGET = 5.0


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.parts.weights", description=__doc__)
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
        reloads.append(seconds_of(reload))
        started = time.perf_counter()
        weights = engine.read(file.as_uri(), checksum)
        reads.append(time.perf_counter() - started)
        swaps.append(seconds_of(lambda weights=weights, at=at: engine.swap(swapped, weights, str(at))))  # type: ignore[misc]
        del weights
    note(f"SmolLM2, {file.stat().st_size / 1e6:.0f} MB, {arguments.threads} threads, {arguments.rounds} rounds")
    for name, seconds in (("reload from disk", reloads), ("read with checksum", reads), ("swap", swaps)):
        note(f"{name}, seconds: {spread_of(seconds)}")
    total = [reload / (read + swap) for reload, read, swap in zip(reloads, reads, swaps, strict=True)]
    stall = [reload / swap for reload, swap in zip(reloads, swaps, strict=True)]
    line("reload over swap (generation waits for the swap only)", spread_of(stall), f">= {TARGET:g}")
    line("reload over read, checksum and swap", spread_of(total), "none")


if __name__ == "__main__":
    main()
