"""What staleness, queue size, the interval between versions, pauses and more devices do to an asynchronous run: real
generation by a tiny model, or by one of yours, and a trainer that only takes its time.

Run: ./run_benchmark.sh, which starts a system for it; or, on one that is up, python examples/async_benchmark.py
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from addition import ANSWER_TOKENS, network, questions, write
from assay.rollouts import FullyAsyncRollouter, ParameterSynchronizer
from async_grpo import weights_of
from transformers import AutoModelForCausalLM

SAMPLES, BATCH = 8, 128
#: Batches that count for nothing: the model is loaded meanwhile.
WARM_UP = 3

Figures = dict[str, Any]


@dataclass(frozen=True)
class Case:
    effect: str
    staleness: int = 2
    queue_batches: int = 4
    interval: int = 1
    """Batches that are trained on between two versions."""
    pauses: bool = False
    slots: int = 1

    @property
    def name(self) -> str:
        return f"{self.effect}-{self.staleness}-{self.queue_batches}-{self.interval}-{self.slots}"


def cases(slots: int, only_division: bool) -> Iterator[Case]:
    if only_division:
        yield Case("division", slots=slots)
        return
    usual = Case("", slots=slots)
    yield from (replace(usual, effect="staleness", staleness=each, queue_batches=each + 2) for each in (0, 1, 2, 4))
    yield from (replace(usual, effect="queue", queue_batches=each) for each in (1, 2, 4, 8))
    yield from (replace(usual, effect="interval", interval=each) for each in (1, 2, 4))
    yield replace(usual, effect="pause", pauses=True)
    yield replace(usual, effect="division")


def run(case: Case, model: str, weights: bytes, steps: int, train_s: float, log: Path) -> Figures:
    rollouter = FullyAsyncRollouter(
        prompts=questions(400, 1), model=model, chat="never", n=SAMPLES, temperature=1.0,
        max_new_tokens=ANSWER_TOKENS, reward={"scorers": [{"name": "numeric_match"}]}, max_staleness=case.staleness,
        train_batch_size=BATCH * case.interval, max_queue_size=BATCH * max(case.queue_batches, case.interval),
    )  # fmt: skip
    queue, synchronizer = rollouter.queue(whole_groups=True), ParameterSynchronizer(rollouter)
    began, version, waited = time.monotonic(), 0, 0.0
    rows: list[Figures] = []
    held: list[float] = []
    with log.open("w") as file:
        for step in range(steps + WARM_UP):
            if step == WARM_UP:
                began, waited, rows = time.monotonic(), 0.0, []
                psutil.cpu_percent()
            asked = time.monotonic()
            batch = queue.get_samples(BATCH, 300.0, version)
            if batch is None:
                raise SystemExit("no samples within five minutes: `assay doctor` tells what is wrong")
            waited += time.monotonic() - asked
            time.sleep(train_s)
            if (step + 1) % case.interval == 0:
                version += 1
                synchronizer.sync_weights(version, weights, timeout=60.0 if case.staleness == 0 else 0.0)
            if case.pauses and step % 5 == 4:
                held.append(_pause(rollouter))
            known = batch[1]
            told = rollouter.get_statistics()
            rows.append(known | {"utilization": told["queue_utilization"], "sync_s": synchronizer.status.get("sync_s")})
            file.write(json.dumps({"step": step, "seconds": time.monotonic() - began, "version": version,
                                   "age": known["freshness/avg_sample_age"]}) + "\n")  # fmt: skip
        seconds = time.monotonic() - began
        sync_s = [float(row["sync_s"]) for row in rows if row["sync_s"]]
        figures = {
            "effect": case.effect, "staleness": case.staleness, "queue": BATCH * case.queue_batches,
            "interval": case.interval, "slots": case.slots, "steps_s": steps / seconds,
            "samples_s": steps * BATCH / seconds, "idle": waited / seconds,
            "age": statistics.fmean(row["freshness/avg_sample_age"] for row in rows),
            "oldest": max(row["freshness/max_sample_age"] for row in rows),
            "dropped": sum(row["dropped_stale_samples"] for row in rows),
            "utilization": statistics.fmean(row["utilization"] for row in rows),
            "sync_s": statistics.fmean(sync_s) if sync_s else 0.0, "cpu": psutil.cpu_percent(),
            "memory_mb": psutil.virtual_memory().used / 1e6,
            "pause_s": statistics.fmean(held) if held else None,
        }  # fmt: skip
        file.write(json.dumps(figures) + "\n")
    queue.acknowledge()
    rollouter.end()
    rollouter.close()
    return figures


def _pause(rollouter: FullyAsyncRollouter) -> float:
    """Seconds until a pause holds. What was generated before is still rewarded and queued; then nothing comes."""
    asked = time.monotonic()
    if not rollouter.pause_rollout():
        raise SystemExit("a pause does not hold after five minutes")
    seconds = time.monotonic() - asked
    until, before, now = time.monotonic() + 30, -1, 0
    while before != now:
        if time.monotonic() > until:
            raise SystemExit("samples are generated during a pause")
        before, now = now, int(rollouter.get_statistics()["total_generated_samples"])
        time.sleep(0.2)
    rollouter.resume_rollout()
    return seconds


COLUMNS = {
    "effect": "", "staleness": "d", "queue": "d", "interval": "d", "slots": "d", "steps_s": ".2f", "samples_s": ".0f",
    "idle": ".0%", "age": ".2f", "oldest": "d", "dropped": "d", "utilization": ".0%", "sync_s": ".3f", "cpu": ".0f",
    "memory_mb": ".0f",
}  # fmt: skip
_NOTES = """
Batches of {batch} samples, {samples} to a prompt; training is a wait of {train_s:g} s.

- `idle`: the share of the time that the trainer waited for samples. `age` and `oldest`: versions behind.
- `interval`: batches between two versions. Generation has no interval of its own: it goes on while there is room.
- `sync_s`: from the announcement of a version until every device has it.
- `cpu` (percent) and `memory_mb` are the whole machine's. There is no figure for GPUs: nothing was run on one here.
"""


def report(folder: Path, train_s: float) -> None:
    """From the logs of all cases in the folder."""
    found = [json.loads(file.read_text().splitlines()[-1]) for file in sorted(folder.glob("*.log"), key=_age)
             if file.stem != "benchmark"]  # fmt: skip
    head = "| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS)
    lines = ["| " + " | ".join(format(row[name], form) for name, form in COLUMNS.items()) + " |" for row in found]
    pauses = [row["pause_s"] for row in found if row["pause_s"] is not None]
    pause = f"\nA pause holds after {statistics.fmean(pauses):.3f} s on average.\n" if pauses else ""
    notes = _NOTES.format(batch=BATCH, samples=SAMPLES, train_s=train_s)
    (folder / "performance_report.md").write_text(
        "\n".join(["# Fully asynchronous rollouts", "", head, *lines, pause, notes])
    )
    best = max(found, key=lambda row: float(row["samples_s"]))
    (folder / "summary.txt").write_text(
        "throughput: {samples_s:.0f} samples/s, {steps_s:.2f} training steps/s ({effect}, staleness {staleness})\n"
        "latency: average sample age {age:.2f} versions, parameter sync {sync_s:.3f} s\n"
        "resources: queue utilisation {utilization:.0%}, CPU {cpu:.0f} %, memory {memory_mb:.0f} MB\n".format(**best)
    )


def _age(file: Path) -> float:
    return file.stat().st_mtime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--train_s", type=float, default=0.1)
    parser.add_argument("--slots", type=int, default=1, help="of the system that is up, for the report")
    parser.add_argument("--only_division", action="store_true", help="only what shows the number of slots")
    parser.add_argument("--models", type=Path, default=Path("data/models"), help="the server's ASSAY_MODELS_DIR")
    parser.add_argument("--model", type=Path, help="a model instead of our own; the server must know its path")
    parser.add_argument("--output", type=Path, default=Path("benchmark_results"))
    options = parser.parse_args()
    torch.manual_seed(0)
    model: Any
    if options.model:
        name, model = str(options.model.resolve()), AutoModelForCausalLM.from_pretrained(options.model)
    else:
        name, model = "addition-untrained", network()
        write(model, options.models / name)
    weights = weights_of(model)
    options.output.mkdir(parents=True, exist_ok=True)
    for case in cases(options.slots, options.only_division):
        figures = run(case, name, weights, options.steps, options.train_s, options.output / f"{case.name}.log")
        print(f"{case.name:<24} {figures['samples_s']:7.0f} samples/s  {figures['steps_s']:6.2f} steps/s  "
              f"age {figures['age']:.2f}  idle {figures['idle']:.0%}", flush=True)  # fmt: skip
    report(options.output, options.train_s)
    print((options.output / "summary.txt").read_text(), end="")


if __name__ == "__main__":
    main()
