"""An asynchronous training run whose trainer only takes its time: samples are generated, rewarded, queued, taken and
acknowledged, versions are announced, as a trainer does it.

Generation is simulated, or done by a real model that is given its own weights as every new version.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field

from tasks.benchmarks.model import Figure, Measured
from tasks.benchmarks.stand import MeasurementFailed, Stand
from tasks.benchmarks.syncs import Syncs
from tasks.inference.model import Sampling
from tasks.rollouts.kind import Rollout
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.queue import Batch, Wish
from tasks.rollouts.simulation import Simulation
from tasks.scoring.model import ScoreSpec

#: Seconds a batch, a sync or a pause may take.
MOST_S = 300.0
#: Seconds between two looks at the sample queue.
LOOK_S = 0.002
#: Batches between two pauses.
PAUSE_EVERY = 4
PROMPTS = 256
#: Tokens that a real model generates at most: small machines are to get through in minutes.
REAL_TOKENS = 16
_REWARD = ScoreSpec.model_validate({"scorers": [{"name": "numeric_match"}]})


class Configuration(BaseModel):
    """A run as trainers configure it. Two are declared: `MINIMAL` and `PERFORMANCE`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_batch_size: int = Field(ge=1)
    max_prompt_length: int = Field(ge=1)
    max_response_length: int = Field(ge=1)
    total_training_steps: int = Field(ge=1)
    trainer_devices: int = Field(ge=1)
    rollout_devices: int = Field(ge=1)
    staleness_threshold: int = Field(ge=0)
    max_queue_size: int = Field(ge=1)
    generation_timeout: float = Field(600.0, gt=0)


MINIMAL = Configuration(
    train_batch_size=4, max_prompt_length=512, max_response_length=1024, total_training_steps=2, trainer_devices=2,
    rollout_devices=2, staleness_threshold=3, max_queue_size=100,
)  # fmt: skip
PERFORMANCE = Configuration(
    train_batch_size=16, max_prompt_length=512, max_response_length=1024, total_training_steps=10, trainer_devices=6,
    rollout_devices=2, staleness_threshold=3, max_queue_size=1000, generation_timeout=30.0,
)  # fmt: skip


class Training(BaseModel):
    """All that determines a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    configuration: Configuration
    warm_up: int = Field(1, ge=0, description="Steps that do not count.")
    train_s: float = Field(ge=0, le=600, description="Seconds of a step on one device; on several, a share of it.")
    generate_s: float = Field(0.2, ge=0, le=600, description="Seconds of one sample, where generation is simulated.")
    at_once: int = Field(8, ge=1, le=500, description="Samples that a device generates side by side.")
    reward_s: float = Field(0.05, ge=0, le=600, description="Seconds of its reward, on average; with a long tail.")
    sync_every: int = Field(1, ge=1, description="Batches between two versions.")
    pauses: bool = False
    model: str = Field("", description="Empty: generation is simulated.")

    @property
    def engine(self) -> str:
        return f"{self.model} (real), training is a wait" if self.model else "simulated generation and training"

    def changed(self, **values: Any) -> Self:
        """The same with other values, of the configuration too."""
        own = {name: value for name, value in values.items() if name in type(self).model_fields}
        rest = {name: value for name, value in values.items() if name not in own}
        return self.model_copy(update=own | {"configuration": self.configuration.model_copy(update=rest)})


FIGURES: Sequence[Figure] = (
    Figure("samples_s", "samples/s", "higher"),
    Figure("steps_s", "steps/s", "higher"),
    Figure("sample_age", "versions"),
    Figure("oldest_sample", "versions"),
    Figure("sync_s", "s", "lower"),
    Figure("device_utilisation", "share"),
    Figure("queue_utilisation", "share"),
    Figure("trainer_idle", "share", "lower"),
    Figure("dropped_samples", "samples", "lower"),
    Figure("pause_s", "s", "lower"),
    Figure("resume_s", "s", "lower"),
    Figure("gpu_utilisation", "share"),
    Figure("gpu_memory_mb", "MB"),
    Figure("memory_mb", "MB"),
)


@dataclass(slots=True)
class _Tally:
    syncs: Syncs
    began: float = field(default_factory=time.monotonic)
    samples: int = 0
    waited_s: float = 0.0
    ages: list[int] = field(default_factory=list)
    """Of every sample: versions behind."""
    steps: int = 0
    filled: list[float] = field(default_factory=list)
    """Of the queue, before and after each batch is taken."""
    pauses_s: list[float] = field(default_factory=list)
    resumes_s: list[float] = field(default_factory=list)
    dropped: int = 0


class Trainer:
    def __init__(self, stand: Stand, training: Training) -> None:
        self._stand = stand
        self._training = training
        self._configuration = training.configuration
        self._version = 0

    def run(self) -> Measured:
        devices = self._configuration.rollout_devices
        sums = ({"prompt": f"{n}+{n % 7}=", "reference": str(n + n % 7)} for n in range(PROMPTS))
        prompts = [json.dumps(each).encode() for each in sums]
        with self._stand.rollout(self._spec(), prompts, devices) as rollout:
            last, syncs = "", Syncs(self._stand.rollouts, rollout)
            for _ in range(self._training.warm_up):
                last = self._step(rollout, last, _Tally(syncs))
            self._end(syncs)
            syncs.forget()
            with self._stand.observed(devices) as observation:
                tally = _Tally(syncs)
                for step in range(self._configuration.total_training_steps):
                    last = self._step(rollout, last, tally)
                    if self._training.pauses and step % PAUSE_EVERY == PAUSE_EVERY - 1:
                        self._pause(rollout, tally)
                seconds = time.monotonic() - tally.began
            self._end(syncs)
            if syncs.replaced:
                self._stand.say(f"{syncs.replaced} versions were replaced before all devices had them")
            self._stand.rollouts.acknowledge(rollout, last)
        figures = self._figures(tally, seconds) | observation.figures()
        return Measured(figures, self._training.engine, self._stand.log, seconds, observation.disturbed)

    def _spec(self) -> RolloutSpec:
        asked, training = self._configuration, self._training
        simulated = None
        if not training.model:
            simulated = Simulation(
                generate_s=training.generate_s, reward_s=training.reward_s, tail=1.0, at_once=training.at_once,
                tokens=asked.max_response_length,
            )  # fmt: skip
        return RolloutSpec(
            model=training.model, chat="never", simulated=simulated, reward=None if simulated else _REWARD,
            sampling=Sampling(temperature=1.0, max_new_tokens=min(asked.max_response_length, REAL_TOKENS)),
            max_staleness=asked.staleness_threshold, train_batch_size=asked.train_batch_size * training.sync_every,
            max_queue_size=max(asked.max_queue_size, asked.train_batch_size * training.sync_every),
            generation_timeout=asked.generation_timeout,
        )  # fmt: skip

    def _step(self, rollout: str, last: str, tally: _Tally) -> str:
        """One batch, trained on; returns its name."""
        asked = time.monotonic()
        batch = self._get(rollout, last, tally)
        tally.waited_s += time.monotonic() - asked
        tally.samples += batch.samples
        tally.ages += [self._version - part.oldest for part in batch.parts for _ in range(part.count)]
        room = self._configuration.max_queue_size
        tally.filled += [(batch.queued + batch.samples) / room, batch.queued / room]
        tally.steps += 1
        time.sleep(self._training.train_s / self._configuration.trainer_devices)
        self._stand.say(
            f"step at version {self._version}: {batch.samples} samples, age {fmean(tally.ages[-batch.samples :]):.2f}, "
            f"{batch.queued} in the queue"
        )
        if tally.steps % self._training.sync_every == 0:
            self._sync(tally)
        return batch.id

    def _get(self, rollout: str, last: str, tally: _Tally) -> Batch:
        until, size = time.monotonic() + MOST_S, self._configuration.train_batch_size
        while True:
            wish = Wish(samples=size, version=self._version, consumer="trainer", acknowledge=last)
            batch = self._stand.rollouts.get(rollout, wish)
            tally.dropped += batch.dropped  # told once, also where there is no batch yet
            if batch.id:
                return batch
            self._wait(until, "no batch came")

    def _sync(self, tally: _Tally) -> None:
        """As long as devices may lag behind, the trainer does not wait for them."""
        self._version += 1
        tally.syncs.announce(self._version, *(self._weights if self._training.model else ("", "")))
        if self._configuration.staleness_threshold == 0:
            self._end(tally.syncs)

    def _end(self, syncs: Syncs) -> None:
        until = time.monotonic() + MOST_S
        while not syncs.is_over():
            self._wait(until, f"version {self._version} is not there")

    @cached_property
    def _weights(self) -> tuple[str, str]:
        """The model's own, as a file that every device can read, with their checksum."""
        kind = cast(Rollout, self._stand.core.kinds[Rollout.name])
        file = Path(kind.model(self._spec()).name) / "model.safetensors"
        if not file.is_file():
            raise MeasurementFailed(f"{self._training.model} has no model.safetensors to take as new weights.")
        with file.open("rb") as opened:
            return file.as_uri(), hashlib.file_digest(opened, "sha256").hexdigest()

    def _pause(self, rollout: str, tally: _Tally) -> None:
        """Until nothing is generated any more; then go on, until something is put into the queue again."""
        rollouts, began = self._stand.rollouts, time.monotonic()
        held = rollouts.hold(rollout, True)
        while not held.holds:
            self._wait(began + MOST_S, "a pause does not hold")
            held = rollouts.hold(rollout)
        tally.pauses_s.append(time.monotonic() - began)
        began = time.monotonic()
        before = rollouts.statistics(rollout)["total_generated_samples"]
        rollouts.hold(rollout, False)
        while True:
            told = rollouts.statistics(rollout)
            if told["total_generated_samples"] > before:
                tally.resumes_s.append(time.monotonic() - began)
                return
            if not told["samples_under_way"]:  # the queue is as full as it may be: there is nothing to wait for
                return
            self._wait(began + MOST_S, "generation does not go on")

    def _wait(self, until: float, trouble: str) -> None:
        self._stand.require_wanted()
        if time.monotonic() > until:
            raise MeasurementFailed(f"After {MOST_S:.0f} s {trouble}.")
        time.sleep(LOOK_S)

    def _figures(self, tally: _Tally, seconds: float) -> dict[str, float]:
        figures = {
            "samples_s": tally.samples / seconds,
            "steps_s": tally.steps / seconds,
            "sample_age": fmean(tally.ages),
            "oldest_sample": float(max(tally.ages)),
            "queue_utilisation": fmean(tally.filled),
            "trainer_idle": tally.waited_s / seconds,
            "dropped_samples": float(tally.dropped),
        }
        times = {"sync_s": tally.syncs.seconds, "pause_s": tally.pauses_s, "resume_s": tally.resumes_s}
        for name, values in times.items():
            if values:
                figures[name] = fmean(values)
        return figures
