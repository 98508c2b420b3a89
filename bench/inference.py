"""Inference jobs against their targets, on real SmolLM2: `python -m bench.inference [--rows N] [--rounds N]`.

Takes about five minutes.

Side by side in one run: the job, the same engine called by a bare process with no queue, and one `generate` a row.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.plain_generation import load_generator
from bench.spread import Spread, brief, line, note, spread
from bench.stack import Stack, stack
from config.settings import load_settings
from tasks.jobs.core import create_core
from tasks.jobs.model import JobRequest
from workers.engines import default_models
from workers.engines.default_models import SMOLLM2

PLAIN_ROWS, TOKENS = 8, 24


def questions(number: int, first: int) -> list[str]:
    """All different; of several lengths, as contexts are."""
    return [f"What is {n} plus {n % 7}? " + "Think of the carry. " * (n % 5) for n in range(first, first + number)]


# --- a process without a queue, told what to do line by line ----------------------------------------------------------


def serve(way: str, model: str) -> None:
    run = _by_engine(model) if way == "engine" else _row_by_row(model)
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


class Bare:
    def __init__(self, way: str, model: str, threads: int) -> None:
        command = [sys.executable, "-m", "bench.inference", way, model]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.seconds(questions(2, 900_000))  # load and warm

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


class Jobs:
    def __init__(self, stand: Stack) -> None:
        self._stand = stand

    def seconds(self, asked: list[str]) -> float:
        items = [{"id": str(at), "query": each} for at, each in enumerate(asked)]
        spec = {"model": "smollm2", "sampling": {"max_new_tokens": TOKENS}}
        started = time.perf_counter()
        job = self._stand.core.door.submit(JobRequest(kind="inference", items=items, spec=spec, cache="off"))
        ended = self._stand.finish(job)
        assert ended.ok == len(items), ended.reasons
        return time.perf_counter() - started


def compare(stand: Stack, model: str, slots: int, threads: int, rows: int, rounds: int) -> list[Spread]:
    """Seconds of the job, of as many bare processes, and of the job's first answer over the engine's own time."""
    bare = [Bare("engine", model, threads) for _ in range(slots)]
    ours, theirs, firsts = [], [], []
    with stand.workers(slots):
        jobs = Jobs(stand)
        jobs.seconds(questions(16 * slots, 800_000))  # every slot has the model
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
    note(f"{slots} slots of {threads} threads: job {spread(ours)} s, bare engine {spread(theirs)} s")
    return [spread(ours), spread(theirs), spread(firsts)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Inference jobs against their targets.")
    parser.add_argument("--rows", type=int, default=brief(192, 16))
    parser.add_argument("--rounds", type=int, default=brief(3))
    arguments = parser.parse_args()
    rows, rounds = arguments.rows, arguments.rounds
    settings = load_settings()
    places = default_models.prepare(settings.data_dir)
    cores = os.cpu_count() or 2
    with stack() as stand:
        models = stand.folder / "models"
        default_models.link(models, places)
        os.environ["ASSAY_MODELS_DIR"] = str(models)
        stand.settings = stand.settings.model_copy(update={"models_dir": models})
        stand.core = create_core(stand.settings, stand.celery)
        model = str(Path(places[SMOLLM2]))
        plain = Bare("plain", model, cores)
        each_s = spread([plain.seconds(questions(PLAIN_ROWS, 700_000)) / PLAIN_ROWS for _ in range(rounds)])
        plain.end()
        job_s, bare_s, first = compare(stand, model, 1, cores, rows, rounds)
        two_s, two_bare_s, _ = compare(stand, model, 2, max(1, cores // 2), rows, rounds)
    note(f"one generate a row: {each_s} s each")
    line(f"{rows} rows as a job, over one generate a row", spread([each_s.middle * rows]).over(job_s), ">= 3.5")
    line("share of one bare engine's rate", bare_s.over(job_s), ">= 0.93")
    line("two slots of one thread, share of two bare engines' rate", two_bare_s.over(two_s), ">= 0.93")
    line("first answer of a job, over the engine's own time for it", first, "<= 1.2")


if __name__ == "__main__":
    if sys.argv[1:2] in (["engine"], ["plain"]):
        serve(sys.argv[1], sys.argv[2])
    else:
        main()
