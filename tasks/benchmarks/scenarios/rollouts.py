"""Fully asynchronous rollouts: what staleness, queue size, intervals, the division of devices and pauses do to a run.

The quick size starts from the minimal configuration, the full one from the performance configuration. Two steps show
nothing, so a sweep takes as many as its size says; `async_configurations` runs both as they are declared.
"""

from collections.abc import Sequence

from tasks.benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.benchmarks.scenario import NotHere, Place
from tasks.benchmarks.stand import Stand
from tasks.benchmarks.training import FIGURES, MINIMAL, PERFORMANCE, Trainer, Training

#: Training steps of a sweep.
STEPS: dict[Size, int] = {"quick": 16, "full": 24}
#: Seconds of a training step on one device: about what generation takes.
TRAIN_S = {"minimal": 0.3, "performance": 0.6}


def usual(place: Place, size: Size, options: RunOptions) -> Training:
    """Of what a sweep changes one thing: as many devices generate as the configuration says, if there are so many."""
    if not place.slots:
        raise NotHere("no device worker is there")
    configuration, name = (MINIMAL, "minimal") if size == "quick" else (PERFORMANCE, "performance")
    rollout_devices = min(configuration.rollout_devices, max(1, place.slots // 2))
    training = Training(configuration=configuration, train_s=TRAIN_S[name], model=options.model, warm_up=2)
    return training.changed(
        total_training_steps=STEPS[size],
        rollout_devices=rollout_devices,
        trainer_devices=max(1, min(configuration.trainer_devices, place.slots - rollout_devices)),
        max_queue_size=configuration.train_batch_size * (configuration.staleness_threshold + 1),
    )


def _case(name: str, training: Training) -> Case:
    return Case(name, training.model_dump(mode="json"))


class _Sweep:
    """What the five have in common: how a case is run."""

    parameters = Training
    figures: Sequence[Figure] = FIGURES

    def run(self, stand: Stand, parameters: Training) -> Measured:
        return Trainer(stand, parameters).run()


class Staleness(_Sweep):
    name = "async_staleness"
    description = "Versions that a sample may be behind."

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:
        base = usual(place, size, options)
        values = (0, 1, 3) if size == "quick" else (0, 1, 2, 3, 5, 8)
        batch = base.configuration.train_batch_size
        return [
            _case(f"staleness_{each}", base.changed(staleness_threshold=each, max_queue_size=batch * (each + 1)))
            for each in values
        ]


class QueueSize(_Sweep):
    name = "async_queue_size"
    description = "Samples that may wait for the trainer."

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:
        base = usual(place, size, options)
        batch = base.configuration.train_batch_size
        values = (1, 2, 4) if size == "quick" else (1, 2, 4, 8, 16)
        return [_case(f"{each}_batches", base.changed(max_queue_size=each * batch)) for each in values]


class GenerationInterval(_Sweep):
    name = "async_generation_interval"
    description = "Seconds between two samples of a device, and batches between two versions."

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:
        base = usual(place, size, options)
        cases = []
        if not options.model:  # a real model takes the time it takes
            for each in (0.025, 0.1, 0.2) if size == "quick" else (0.0125, 0.025, 0.05, 0.1):
                cases.append(_case(f"sample_every_{1000 * each:g}_ms", base.changed(generate_s=each * base.at_once)))
        for every in (2,) if size == "quick" else (2, 4):
            cases.append(_case(f"version_every_{every}_batches", base.changed(sync_every=every)))
        return cases


class Division(_Sweep):
    name = "async_division"
    description = "The same devices, divided between rollout and training: with fewer to train on, a step takes longer."

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:
        total = min(place.slots, 8)
        if total < 2:
            raise NotHere("there is one device slot, and one cannot be divided")
        base = usual(place, size, options)
        rollout = sorted({1, total // 4, total // 2, 3 * total // 4, total - 1} - {0})
        return [
            _case(f"{each}_of_{total}_generate", base.changed(rollout_devices=each, trainer_devices=total - each))
            for each in rollout
        ]


class PauseResume(_Sweep):
    name = "async_pause_resume"
    description = "Generation paused and resumed every few steps."

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:
        return [_case("every_4_steps", usual(place, size, options).changed(pauses=True))]


class Configurations(_Sweep):
    name = "async_configurations"
    description = "The minimal and the performance configuration as they are declared."

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:  # noqa: ARG002  # both are small
        if not place.slots:
            raise NotHere("no device worker is there")
        cases = []
        for name, each in (("minimal", MINIMAL), ("performance", PERFORMANCE)):
            training = Training(configuration=each, train_s=TRAIN_S[name], model=options.model)
            cases.append(_case(name, training.changed(rollout_devices=min(each.rollout_devices, place.slots))))
        return cases
