"""How fast an asynchronous run can be: the same prompts, rewards and trainer, with nothing in between that takes time.

A simulation event by event, under the version-lag rule. What a real run needs beyond it is overhead.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Run:
    steps: int
    batch: int
    """Prompts of a step, one sample each."""
    at_once: int
    """Prompts that the device generates side by side."""
    generate_s: float
    train_s: float
    reward_s: Callable[[int], float]
    """Of each prompt, by its index."""
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
    """Index and version of samples that wait, in the order in which they came."""
    pending: list[int] = field(default_factory=list)
    is_training: bool = False


def seconds(run: Run) -> float:
    """From the begin to the end of the last step."""
    state, events = _State(), list[tuple[float, int, str, int, int]]()
    order, now, steps = 0, 0.0, 0

    def at(when: float, what: str, index: int = 0, version: int = 0) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (when, order, what, index, version))

    def feed() -> None:
        running = state.begun - state.put
        room = (run.max_staleness + state.version + 1) * run.batch - (state.put - state.dropped) - running
        for _ in range(max(0, min(room, run.max_queue_size - len(state.queue) - running))):
            state.pending.append(state.begun)
            state.begun += 1
        while state.pending and state.slots < run.at_once:
            state.slots += 1
            at(now + run.generate_s, "generated", state.pending.pop(0), state.version)

    def train() -> None:
        fresh = [each for each in state.queue if state.version - each[1] <= run.max_staleness]
        state.dropped += len(state.queue) - len(fresh)
        state.queue = fresh
        if not state.is_training and len(fresh) >= run.batch:
            state.queue = fresh[run.batch :]
            state.is_training = True
            at(now + run.train_s, "trained")

    feed()
    while steps < run.steps:
        now, _, what, index, version = heapq.heappop(events)
        if what == "generated":
            state.slots -= 1
            at(now + run.reward_s(index), "rewarded", index, version)
        elif what == "rewarded":
            state.queue.append((index, version))
            state.put += 1
        else:
            steps += 1
            state.is_training = False
            state.version += 1
        train()
        feed()
    return now
