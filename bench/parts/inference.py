"""Benchmark of inference jobs on a real model (SmolLM2): `python -m bench.parts.inference [--rows N] [--rounds N]`.

Takes about five minutes. Compares in a single run: the job, the same engine in a process without a queue, and a
`generate` call of transformers for each row.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.baselines.plain_generation import load_generator
from bench.processes.stack import Stack, running_stack
from bench.report.figures import brief, line, note
from config.settings import load_settings
from tasks.measurement.spread import Spread, spread_of
from workers.engines import default_models
from workers.engines.default_models import SMOLLM2

PLAIN_ROWS, TOKENS = 8, 24


def questions(number: int, first: int) -> list[str]:
    """Return `number` different prompts of several lengths, as real contexts have."""
    return [f"What is {n} plus {n % 7}? " + "Think of the carry. " * (n % 5) for n in range(first, first + number)]


# --- a process without a queue: reads prompts as JSON lines, prints the seconds they took -----------------------------


def serve(mode: str, model: str) -> None:
    run = _by_engine(model) if mode == "engine" else _row_by_row(model)
    for given in sys.stdin:
        asked = json.loads(given)
        started = time.perf_counter()
        run(asked)
        print(time.perf_counter() - started, flush=True)


def _by_engine(model: str) -> Any:
    from tasks.inference.engine import Generated, GenerateRequest, ModelRef, Sampling
    from workers.engines.engine import EngineOptions, TransformersEngine

    engine = TransformersEngine(EngineOptions({}))

    def run(asked: list[str]) -> None:
        sampling = Sampling(max_new_tokens=TOKENS)
        requests = [GenerateRequest([{"role": "user", "content": each}], sampling) for each in asked]
        assert all(isinstance(each, Generated) for each in engine.generate(ModelRef(model), requests))

    return run


def _row_by_row(model: str) -> Any:
    generate = load_generator(model, TOKENS)

    def run(asked: list[str]) -> None:
        for each in asked:
            generate([[{"role": "user", "content": each}]])

    return run


class BareProcess:
    """A process that generates without Assay's queue: by the engine, or by plain transformers."""

    def __init__(self, mode: str, model: str, threads: int) -> None:
        command = [sys.executable, "-m", "bench.parts.inference", mode, model]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.seconds(questions(2, 900_000))  # load the model and warm up

    def start(self, asked: list[str]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def finish(self) -> float:
        assert self._process.stdout
        return float(self._process.stdout.readline())

    def seconds(self, asked: list[str]) -> float:
        self.start(asked)
        return self.finish()

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


# --- the job ----------------------------------------------------------------------------------------------------------


class InferenceJobs:
    """Inference jobs of Assay, timed from submit to end."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def seconds(self, asked: list[str]) -> float:
        items = [{"id": str(at), "query": each} for at, each in enumerate(asked)]
        spec = {"model": "smollm2", "sampling": {"max_new_tokens": TOKENS}}
        return self._stack.time("inference", items, spec=spec, cache="off").seconds


def compare(stack: Stack, model: str, slots: int, threads: int, rows: int, rounds: int) -> list[Spread]:
    """Return the seconds of the job, of `slots` bare processes, and the latency ratio of a single row.

    The ratio is the duration of a single-row job over the duration of the same row in a bare process."""
    bare = [BareProcess("engine", model, threads) for _ in range(slots)]
    ours, theirs, firsts = [], [], []
    with stack.workers(slots):
        jobs = InferenceJobs(stack)
        jobs.seconds(questions(16 * slots, 800_000))  # every slot loads the model
        for number in range(rounds):
            asked = questions(rows, 1000 * number)
            ours.append(jobs.seconds(asked))
            for at, process in enumerate(bare):
                process.start(asked[at::slots])
            theirs.append(max(process.finish() for process in bare))
            for _ in range(3):
                one = questions(1, 500_000 + number)
                firsts.append(jobs.seconds(one) / bare[0].seconds(one))
    for process in bare:
        process.end()
    note(f"{slots} slots of {threads} threads: job {spread_of(ours)} s, bare engine {spread_of(theirs)} s")
    return [spread_of(ours), spread_of(theirs), spread_of(firsts)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of inference jobs against their targets.")
    parser.add_argument("--rows", type=int, default=brief(192, 16))
    parser.add_argument("--rounds", type=int, default=brief(3))
    arguments = parser.parse_args()
    rows, rounds = arguments.rows, arguments.rounds
    settings = load_settings()
    places = default_models.prepare(settings.data_dir)
    cores = os.cpu_count() or 2
    with running_stack() as stack:
        models = stack.folder / "models"
        default_models.link(models, places)
        os.environ["ASSAY_MODELS_DIR"] = str(models)
        stack.configure(models_dir=models)
        model = str(Path(places[SMOLLM2]))
        plain = BareProcess("plain", model, cores)
        each_s = spread_of([plain.seconds(questions(PLAIN_ROWS, 700_000)) / PLAIN_ROWS for _ in range(rounds)])
        plain.end()
        job_s, bare_s, first = compare(stack, model, 1, cores, rows, rounds)
        two_s, two_bare_s, _ = compare(stack, model, 2, max(1, cores // 2), rows, rounds)
    note(f"a `generate` call for each row: {each_s} s a row")
    line(
        f"{rows} rows as a job, rate over a generate call for each row",
        spread_of([each_s.middle * rows]).over(job_s),
        ">= 3.5",
    )
    line("job's rate, share of a bare engine's rate", bare_s.over(job_s), ">= 0.93")
    line("two slots of 1 thread, share of two bare engines' rate", two_bare_s.over(two_s), ">= 0.93")
    line("first answer of a job, over the engine's own time for it", first, "<= 1.2")


if __name__ == "__main__":
    if sys.argv[1:2] in (["engine"], ["plain"]):
        serve(sys.argv[1], sys.argv[2])
    else:
        main()
