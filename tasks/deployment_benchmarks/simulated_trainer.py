"""Asynchronous training run with a simulated trainer, which sleeps instead of computing gradients.

Samples are generated, rewarded, queued, taken and acknowledged, and versions are announced, as in real training.
Generation is simulated, or done by a real model; each new version of that model has the same weights.
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

from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.model import Figure, Measured
from tasks.deployment_benchmarks.weight_syncs import WeightSyncs
from tasks.inference.model import Sampling
from tasks.measurement.timed_job import MeasurementFailed
from tasks.rollouts.kind import Rollout
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.sample_queue import Batch, Wish
from tasks.rollouts.simulation import Simulation
from tasks.scoring.model import ScoreSpec

#: Timeout of a batch, a weight sync or a pause, in seconds.
TIMEOUT_S = 300.0
#: Seconds between two polls of the sample queue.
POLL_S = 0.002
#: Batches between two pauses.
PAUSE_EVERY = 4
PROMPTS = 256
#: Maximum number of tokens that a real model generates for a sample, so that small machines finish within minutes.
REAL_TOKENS = 16
_REWARD = ScoreSpec.model_validate({"scorers": [{"name": "numeric_match"}]})


class Configuration(BaseModel):
    """Settings of an asynchronous training run, as trainers declare them: see `MINIMAL` and `PERFORMANCE`."""

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
    train_batch_size=4,
    max_prompt_length=512,
    max_response_length=1024,
    total_training_steps=2,
    trainer_devices=2,
    rollout_devices=2,
    staleness_threshold=3,
    max_queue_size=100,
)
PERFORMANCE = Configuration(
    train_batch_size=16,
    max_prompt_length=512,
    max_response_length=1024,
    total_training_steps=10,
    trainer_devices=6,
    rollout_devices=2,
    staleness_threshold=3,
    max_queue_size=1000,
    generation_timeout=30.0,
)


class Training(BaseModel):
    """Parameters of a simulated training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    configuration: Configuration
    warm_up: int = Field(1, ge=0, description="Number of unmeasured steps before the measurement.")
    train_s: float = Field(
        ge=0,
        le=600,
        description="Seconds of a training step on a single device; divided by the number of trainer devices.",
    )
    generate_s: float = Field(0.2, ge=0, le=600, description="Seconds for a sample, if generation is simulated.")
    at_once: int = Field(8, ge=1, le=500, description="Samples that a device generates concurrently.")
    reward_s: float = Field(
        0.05, ge=0, le=600, description="Mean seconds of a reward; the distribution has a long tail."
    )
    sync_every: int = Field(1, ge=1, description="Batches between two versions.")
    pauses: bool = False
    model: str = Field("", description="Model that generates; empty: generation is simulated.")

    @property
    def engine(self) -> str:
        """Part of the basis of stored figures: a change of this text starts a new history."""
        return f"{self.model} (real), training is a wait" if self.model else "simulated generation and training"

    def changed(self, **values: Any) -> Self:
        """Return a copy with these values, which may belong to the configuration."""
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
    """Counts and times of the measured steps."""

    syncs: WeightSyncs
    began: float = field(default_factory=time.monotonic)
    samples: int = 0
    waited_s: float = 0.0
    ages: list[int] = field(default_factory=list)
    """For each sample, the number of versions that it was behind."""
    steps: int = 0
    filled: list[float] = field(default_factory=list)
    """Fill level of the sample queue, before and after each batch was taken."""
    pauses_s: list[float] = field(default_factory=list)
    resumes_s: list[float] = field(default_factory=list)
    dropped: int = 0


class Trainer:
    """Runs the training loop against a deployment and measures it."""

    def __init__(self, deployment: Deployment, training: Training) -> None:
        self._deployment = deployment
        self._training = training
        self._configuration = training.configuration
        self._version = 0

    def run(self) -> Measured:
        devices = self._configuration.rollout_devices
        sums = ({"prompt": f"{n}+{n % 7}=", "reference": str(n + n % 7)} for n in range(PROMPTS))
        prompts = [json.dumps(each).encode() for each in sums]
        with self._deployment.rollout(self._spec(), prompts, devices) as rollout:
            last, syncs = "", WeightSyncs(self._deployment.rollouts, rollout)
            for _ in range(self._training.warm_up):
                last = self._step(rollout, last, _Tally(syncs))
            self._wait_for_sync(syncs)
            syncs.reset()
            with self._deployment.observed(devices) as observation:
                tally = _Tally(syncs)
                for step in range(self._configuration.total_training_steps):
                    last = self._step(rollout, last, tally)
                    if self._training.pauses and step % PAUSE_EVERY == PAUSE_EVERY - 1:
                        self._pause(rollout, tally)
                seconds = time.monotonic() - tally.began
            self._wait_for_sync(syncs)
            if syncs.replaced:
                self._deployment.add_log(f"{syncs.replaced} versions were replaced before every device had them")
            self._deployment.rollouts.acknowledge(rollout, last)
        figures = self._figures(tally, seconds) | observation.figures()
        return Measured(figures, self._training.engine, self._deployment.log, seconds, observation.disturbed)

    def _spec(self) -> RolloutSpec:
        asked, training = self._configuration, self._training
        simulated = None
        if not training.model:
            simulated = Simulation(
                generate_s=training.generate_s,
                reward_s=training.reward_s,
                tail=1.0,
                at_once=training.at_once,
                tokens=asked.max_response_length,
            )
        return RolloutSpec(
            model=training.model,
            chat="never",
            simulated=simulated,
            reward=None if simulated else _REWARD,
            sampling=Sampling(temperature=1.0, max_new_tokens=min(asked.max_response_length, REAL_TOKENS)),
            max_staleness=asked.staleness_threshold,
            train_batch_size=asked.train_batch_size * training.sync_every,
            max_queue_size=max(asked.max_queue_size, asked.train_batch_size * training.sync_every),
            generation_timeout=asked.generation_timeout,
        )

    def _step(self, rollout: str, last: str, tally: _Tally) -> str:
        """Take a batch and train on it. Returns the batch's id."""
        asked = time.monotonic()
        batch = self._get(rollout, last, tally)
        tally.waited_s += time.monotonic() - asked
        tally.samples += batch.samples
        tally.ages += [self._version - part.oldest for part in batch.parts for _ in range(part.count)]
        room = self._configuration.max_queue_size
        tally.filled += [(batch.queued + batch.samples) / room, batch.queued / room]
        tally.steps += 1
        time.sleep(self._training.train_s / self._configuration.trainer_devices)
        self._deployment.add_log(
            f"step at version {self._version}: {batch.samples} samples, age {fmean(tally.ages[-batch.samples :]):.2f}, "
            f"{batch.queued} in the queue"
        )
        if tally.steps % self._training.sync_every == 0:
            self._sync(tally)
        return batch.id

    def _get(self, rollout: str, last: str, tally: _Tally) -> Batch:
        until, size = time.monotonic() + TIMEOUT_S, self._configuration.train_batch_size
        while True:
            wish = Wish(samples=size, version=self._version, consumer="trainer", acknowledge=last)
            batch = self._deployment.rollouts.get(rollout, wish)
            tally.dropped += batch.dropped  # reported once, even without a batch
            if batch.id:
                return batch
            self._wait(until, "no batch was available")

    def _sync(self, tally: _Tally) -> None:
        """Announce a new version. Wait for the devices only if no staleness is allowed."""
        self._version += 1
        tally.syncs.announce(self._version, *(self._weights if self._training.model else ("", "")))
        if self._configuration.staleness_threshold == 0:
            self._wait_for_sync(tally.syncs)

    def _wait_for_sync(self, syncs: WeightSyncs) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not syncs.is_complete():
            self._wait(until, f"version {self._version} was not loaded by every device")

    @cached_property
    def _weights(self) -> tuple[str, str]:
        """URI and checksum of the model's own weights, in a file that every device can read."""
        kind = cast(Rollout, self._deployment.core.kinds[Rollout.name])
        file = Path(kind.model(self._spec()).name) / "model.safetensors"
        if not file.is_file():
            raise MeasurementFailed(f"{self._training.model} has no model.safetensors, which a new version needs.")
        with file.open("rb") as opened:
            return file.as_uri(), hashlib.file_digest(opened, "sha256").hexdigest()

    def _pause(self, rollout: str, tally: _Tally) -> None:
        """Measure a pause, until generation has stopped, and a resume, until the next sample is in the queue."""
        rollouts, began = self._deployment.rollouts, time.monotonic()
        held = rollouts.hold(rollout, True)
        while not held.holds:
            self._wait(began + TIMEOUT_S, "generation has not stopped for the pause")
            held = rollouts.hold(rollout)
        tally.pauses_s.append(time.monotonic() - began)
        began = time.monotonic()
        before = rollouts.statistics(rollout)["total_generated_samples"]
        rollouts.hold(rollout, False)
        while True:
            statistics = rollouts.statistics(rollout)
            if statistics["total_generated_samples"] > before:
                tally.resumes_s.append(time.monotonic() - began)
                return
            if not statistics["samples_under_way"]:  # the queue is full: no sample will come
                return
            self._wait(began + TIMEOUT_S, "generation has not resumed")

    def _wait(self, until: float, problem: str) -> None:
        self._deployment.require_not_cancelled()
        if time.monotonic() > until:
            raise MeasurementFailed(f"After {TIMEOUT_S:.0f} s {problem}.")
        time.sleep(POLL_S)

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
