"""Upper bound for asynchronous training: a discrete-event simulation of the same prompts, rewards and trainer.

Queues, transport and scheduling take no time in it, and the staleness limit holds. The time that a real run takes
beyond this bound is Assay's overhead.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Run:
    steps: int
    batch: int
    """Prompts in a step, with a single sample each."""
    at_once: int
    """Prompts that the device generates concurrently."""
    generate_s: float
    train_s: float
    reward_s: Callable[[int], float]
    """Seconds of a reward, by the index of its prompt."""
    max_staleness: int
    max_queue_size: int = 10**9


@dataclass(slots=True)
class _State:
    version: int = 0
    begun: int = 0
    put: int = 0
    dropped: int = 0
    slots: int = 0
    queue: list[tuple[int, int]] = field(default_factory=list)
    """Index and version of the samples in the queue, oldest first."""
    pending: list[int] = field(default_factory=list)
    is_training: bool = False


def seconds(run: Run) -> float:
    """Simulate the run. Returns the seconds from its start to the end of the last training step."""
    state, events = _State(), list[tuple[float, int, str, int, int]]()
    order, now, steps = 0, 0.0, 0

    def schedule(when: float, event: str, index: int = 0, version: int = 0) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (when, order, event, index, version))

    def start_prompts() -> None:
        running = state.begun - state.put
        room = (run.max_staleness + state.version + 1) * run.batch - (state.put - state.dropped) - running
        for _ in range(max(0, min(room, run.max_queue_size - len(state.queue) - running))):
            state.pending.append(state.begun)
            state.begun += 1
        while state.pending and state.slots < run.at_once:
            state.slots += 1
            schedule(now + run.generate_s, "generated", state.pending.pop(0), state.version)

    def train() -> None:
        fresh = [each for each in state.queue if state.version - each[1] <= run.max_staleness]
        state.dropped += len(state.queue) - len(fresh)
        state.queue = fresh
        if not state.is_training and len(fresh) >= run.batch:
            state.queue = fresh[run.batch :]
            state.is_training = True
            schedule(now + run.train_s, "trained")

    start_prompts()
    while steps < run.steps:
        now, _, event, index, version = heapq.heappop(events)
        if event == "generated":
            state.slots -= 1
            schedule(now + run.reward_s(index), "rewarded", index, version)
        elif event == "rewarded":
            state.queue.append((index, version))
            state.put += 1
        else:
            steps += 1
            state.is_training = False
            state.version += 1
        train()
        start_prompts()
    return now
