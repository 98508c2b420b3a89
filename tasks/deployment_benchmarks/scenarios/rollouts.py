"""Scenarios `async_*`: effect of staleness, queue size, intervals, device division and pauses on asynchronous training.

The quick size starts from the minimal configuration, the full size from the performance configuration. The declared
two steps are too few for a sweep, so its size sets the number of steps; `async_configurations` runs both
configurations unchanged.
"""

from collections.abc import Sequence

from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.deployment_benchmarks.scenarios.scenario import Capabilities, ScenarioUnavailable
from tasks.deployment_benchmarks.simulated_trainer import FIGURES, MINIMAL, PERFORMANCE, Trainer, Training

#: Number of training steps in a sweep.
STEPS: dict[Size, int] = {"quick": 16, "full": 24}
#: Seconds of a training step on a single device: similar to the duration of generation.
TRAIN_S = {"minimal": 0.3, "performance": 0.6}


def base_training(capabilities: Capabilities, size: Size, options: RunOptions) -> Training:
    """Return the parameters of which a sweep changes one; the rollout devices are limited to half of the device
    slots."""
    if not capabilities.slots:
        raise ScenarioUnavailable("no device worker is registered")
    configuration, name = (MINIMAL, "minimal") if size == "quick" else (PERFORMANCE, "performance")
    rollout_devices = min(configuration.rollout_devices, max(1, capabilities.slots // 2))
    training = Training(configuration=configuration, train_s=TRAIN_S[name], model=options.model, warm_up=2)
    return training.changed(
        total_training_steps=STEPS[size],
        rollout_devices=rollout_devices,
        trainer_devices=max(1, min(configuration.trainer_devices, capabilities.slots - rollout_devices)),
        max_queue_size=configuration.train_batch_size * (configuration.staleness_threshold + 1),
    )


def _case(name: str, training: Training) -> Case:
    return Case(name, training.model_dump(mode="json"))


class _Sweep:
    """Base class of the scenarios: runs a case with the simulated trainer."""

    parameters = Training
    figures: Sequence[Figure] = FIGURES

    def run(self, deployment: Deployment, parameters: Training) -> Measured:
        return Trainer(deployment, parameters).run()


class Staleness(_Sweep):
    name = "async_staleness"
    description = "Maximum number of versions that a sample may be behind."

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:
        base = base_training(capabilities, size, options)
        values = (0, 1, 3) if size == "quick" else (0, 1, 2, 3, 5, 8)
        batch = base.configuration.train_batch_size
        return [
            _case(f"staleness_{each}", base.changed(staleness_threshold=each, max_queue_size=batch * (each + 1)))
            for each in values
        ]


class QueueSize(_Sweep):
    name = "async_queue_size"
    description = "Capacity of the sample queue."

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:
        base = base_training(capabilities, size, options)
        batch = base.configuration.train_batch_size
        values = (1, 2, 4) if size == "quick" else (1, 2, 4, 8, 16)
        return [_case(f"{each}_batches", base.changed(max_queue_size=each * batch)) for each in values]


class GenerationInterval(_Sweep):
    name = "async_generation_interval"
    description = "Seconds between two samples of a device, and batches between two versions."

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:
        base = base_training(capabilities, size, options)
        cases = []
        if not options.model:  # the duration of a real model cannot be set
            for each in (0.025, 0.1, 0.2) if size == "quick" else (0.0125, 0.025, 0.05, 0.1):
                cases.append(_case(f"sample_every_{1000 * each:g}_ms", base.changed(generate_s=each * base.at_once)))
        for every in (2,) if size == "quick" else (2, 4):
            cases.append(_case(f"version_every_{every}_batches", base.changed(sync_every=every)))
        return cases


class Division(_Sweep):
    name = "async_division"
    description = (
        "A fixed number of devices, divided between rollout and training; fewer trainer devices make steps longer."
    )

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:
        total = min(capabilities.slots, 8)
        if total < 2:
            raise ScenarioUnavailable("there is only 1 device slot; a division needs 2")
        base = base_training(capabilities, size, options)
        rollout = sorted({1, total // 4, total // 2, 3 * total // 4, total - 1} - {0})
        return [
            _case(f"{each}_of_{total}_generate", base.changed(rollout_devices=each, trainer_devices=total - each))
            for each in rollout
        ]


class PauseResume(_Sweep):
    name = "async_pause_resume"
    description = "Generation paused and resumed every few steps."

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:
        return [_case("every_4_steps", base_training(capabilities, size, options).changed(pauses=True))]


class Configurations(_Sweep):
    name = "async_configurations"
    description = "The minimal and the performance configuration, unchanged."

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:  # noqa: ARG002  # both configurations are small
        if not capabilities.slots:
            raise ScenarioUnavailable("no device worker is registered")
        cases = []
        for name, each in (("minimal", MINIMAL), ("performance", PERFORMANCE)):
            training = Training(configuration=each, train_s=TRAIN_S[name], model=options.model)
            cases.append(_case(name, training.changed(rollout_devices=min(each.rollout_devices, capabilities.slots))))
        return cases
