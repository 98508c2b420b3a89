"""Workload of the load clients: generators of jobs of every kind, with the allowed outcomes of each item."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bench.soak.findings import Expected
from bench.soak.system_under_test import MODEL, STORED_ITEMS
from tasks.simulated.model import SimulatedItem
from tasks.simulated.stages import score

#: Allowed errors of an item that calls an API while the API fails.
API_ERRORS = (
    "api_unavailable",
    "api_unreachable",
    "api_timeout",
    "verdict_missing",
    "reply_refused",
    "reply_cut",
    "reply_filtered",
)
#: Allowed errors of an episode while policy servers are killed.
POLICY_ERRORS = ("policy_unavailable", "policy_timeout", "policy_broken", "simulator_lost", "episode_timeout")
COLOURS = ("red", "green", "blue", "yellow")
#: Workloads with items that kill or block their worker.
POISONOUS = ("poison", "hang")


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to be submitted, with the allowed outcome of each item."""

    name: str
    kind: str
    items: list[dict[str, Any]]
    spec: dict[str, Any]
    expected: list[Expected]
    options: dict[str, Any] = field(default_factory=dict)
    is_streamed: bool = False
    """Whether the items are streamed from a generator."""


def rules(chance: random.Random) -> PlannedJob:
    """Generate a score job: correct sums, wrong sums, and sums without a reference."""
    items: list[dict[str, Any]] = []
    expected = []
    for at in range(chance.randint(5, 120)):
        a, b, is_right = chance.randrange(100), chance.randrange(100), chance.random() < 0.5
        item: dict[str, Any] = {"id": f"r{at}", "response": f"{a} + {b} = {a + b + (not is_right)}"}
        if chance.random() < 0.05:
            expected.append(Expected(f"r{at}", is_good=False, errors=("reference_missing",)))
        else:
            item["reference"] = str(a + b)
            expected.append(Expected(f"r{at}", score=float(is_right)))
        items.append(item)
    return PlannedJob("rules", "score", items, {"scorers": [{"name": "numeric_match"}]}, expected)


def reward(chance: random.Random) -> PlannedJob:
    """Generate a score job: groups of answers with a judge and a length penalty."""
    items, expected = [], []
    for group in range(chance.randint(2, 6)):
        a = chance.randrange(1000)
        for at in range(4):
            is_right = chance.random() < 0.7
            name = f"g{group}.{at}"
            response = f"The answer is {a if is_right else a + 1}. " + "word " * chance.randrange(20)
            items.append(
                {
                    "id": name,
                    "group_id": f"g{group}",
                    "prompt": "How many?",
                    "response": response,
                    "reference": str(a),
                    "response_tokens": len(response.split()),
                }
            )
            expected.append(Expected(name, part=("base", float(is_right)), errors=API_ERRORS))
    spec = {
        "scorers": [{"name": "numeric_match"}],
        "judge": {"profile": "development", "reward_coefficient": 0.1, "timeout_s": 5},
        "penalties": [{"name": "group_length", "scale": 0.1}],
        "group_statistics": True,
    }
    return PlannedJob("reward", "score", items, spec, expected)


def judge(chance: random.Random) -> PlannedJob:
    """Generate a judge job: the development API grades by whether the response has the reference."""
    items, expected = [], []
    for at in range(chance.randint(3, 25)):
        a, is_right = chance.randrange(300), chance.random() < 0.5
        items.append({"id": f"j{at}", "prompt": "?", "response": f"x{a if is_right else -a}y", "reference": f"x{a}y"})
        is_right = items[-1]["reference"] in items[-1]["response"]
        expected.append(Expected(f"j{at}", score=10.0 if is_right else 1.0, errors=API_ERRORS))
    spec = {"profile": "development", "mode": "reference", "timeout_s": 5}
    return PlannedJob("judge", "judge", items, spec, expected)


def inference(chance: random.Random) -> PlannedJob:
    """Generate an inference job: sums for a tiny model."""
    items: list[dict[str, Any]] = [
        {"id": f"q{at}", "query": f"{chance.randrange(20)}+{chance.randrange(20)}="}
        for at in range(chance.randint(4, 40))
    ]
    spec = {"backend": "local", "model": MODEL, "chat": "never", "sampling": {"max_new_tokens": 6}}
    expected = [Expected(item["id"], errors=("empty_answer",)) for item in items]
    return PlannedJob("inference", "inference", items, spec, expected)


def policy(chance: random.Random) -> PlannedJob:
    """Generate a score job with a robot policy: one of four colours is right; each item has two trials."""
    items, expected = [], []
    for at in range(chance.randint(1, 3)):
        colour = chance.choice(COLOURS)
        items.append({"id": f"p{at}", "response": f"reach the {colour} target"})
        expected.append(Expected(f"p{at}", score=float(colour == "red"), errors=POLICY_ERRORS))
    options = {"trials": 2, "task_id": 0, "seed": chance.randrange(50)}
    return PlannedJob("policy", "score", items, {"scorers": [{"name": "policy", "options": options}]}, expected)


def shared(chance: random.Random) -> PlannedJob:
    """Generate a cacheable job: other jobs compute some of its items concurrently."""
    items = [{"x": chance.randrange(400)} for _ in range(chance.randint(20, 200))]
    spec = {"cost_s": 0.004, "batch_items": chance.choice([1, 8, 50]), "cacheable": True}
    return _simulated("shared", items, spec)


def staged(chance: random.Random) -> PlannedJob:
    """Generate a job of three stages: device worker, API worker, and CPU worker group by group."""
    items = [{"x": chance.randrange(10**6), "group_id": f"g{at // 3}"} for at in range(chance.randint(6, 60))]
    stages = [
        {"name": "first", "pool": "device"},
        {"name": "second", "pool": "api"},
        {"name": "third", "pool": "cpu", "grouped": True},
    ]
    return _simulated("staged", items, {"cost_s": 0.005, "batch_items": 10, "stages": stages})


def flaky(chance: random.Random) -> PlannedJob:
    """Generate a job in which some items always fail, and some fail on their first attempts."""
    items: list[dict[str, Any]] = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(20, 80))]
    for item in chance.sample(items, 6):
        item |= chance.choice([{"fail": True}, {"fail_times": 1}, {"fail_times": 2}])
    return _simulated("flaky", items, {"cost_s": 0.01, "batch_items": 8})


def poison(chance: random.Random) -> PlannedJob:
    """Generate a job with an item that always kills its worker; the remaining items must succeed."""
    items: list[dict[str, Any]] = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(5, 40))]
    chance.choice(items)["crash"] = True
    return _simulated("poison", items, {"cost_s": 0.02, "batch_items": 8})


def hang(chance: random.Random) -> PlannedJob:
    """Generate a job with an item that never returns: it sleeps, or holds the interpreter."""
    items: list[dict[str, Any]] = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(3, 12))]
    chance.choice(items)["hang"] = chance.choice(["sleep", "interpreter"])
    return _simulated("hang", items, {"cost_s": 0.02, "batch_items": 4, "timeout_s": 3})


def stored(chance: random.Random) -> PlannedJob:
    """Generate a job with more items than Redis may hold: they go to a file in the storage, sometimes in several
    parts."""
    number = chance.choice([STORED_ITEMS + 1, 2000, 3000, 6000])
    items = [{"x": chance.randrange(10**6)} for _ in range(number)]
    planned = _simulated("stored", items, {"cost_s": 0.0002})
    return replace(planned, options={"cache": "off"}, is_streamed=True)


def late(chance: random.Random) -> PlannedJob:
    """Generate a job that takes longer than its deadline."""
    items = [{"x": chance.randrange(10**6)} for _ in range(60)]
    planned = _simulated("late", items, {"cost_s": 0.3, "batch_items": 2})
    return replace(planned, options={"deadline_s": chance.uniform(1.0, 4.0)})


def bulky(chance: random.Random) -> PlannedJob:
    """Generate a job with values that are too large for Redis and go to files."""
    items = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(2, 8))]
    return _simulated("bulky", items, {"cost_s": 0.01, "batch_items": 2, "result_bytes": 100_000})


def trials(chance: random.Random) -> PlannedJob:
    """Generate a job whose items have three trials each."""
    items = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(4, 20))]
    stages = [{"name": "run", "pool": "device"}, {"name": "sum", "pool": "cpu", "grouped": True}]
    return _simulated("trials", items, {"cost_s": 0.005, "batch_items": 6, "stages": stages, "trials": 3})


def _simulated(name: str, items: list[dict[str, Any]], spec: dict[str, Any]) -> PlannedJob:
    for at, item in enumerate(items):
        item["id"] = f"s{at}"
    return PlannedJob(name, "simulated", items, spec, [_expected_of(item) for item in items])


def _expected_of(item: dict[str, Any]) -> Expected:
    if item.get("crash"):
        return Expected(item["id"], is_good=False, errors=("worker_lost",))
    if item.get("hang"):
        return Expected(item["id"], is_good=False, errors=("worker_lost", "timed_out", "batch_timeout"))
    if item.get("fail"):
        return Expected(item["id"], is_good=False, errors=("simulated_failure",))
    return Expected(item["id"], score=score(SimulatedItem(x=item["x"])))


#: Relative frequency of each workload.
WEIGHTS: dict[Callable[[random.Random], PlannedJob], float] = {
    rules: 3,
    reward: 2,
    judge: 3,
    inference: 3,
    policy: 1.5,
    shared: 3,
    staged: 2,
    flaky: 2,
    poison: 0.7,
    hang: 0.5,
    stored: 1,
    late: 1,
    bulky: 1,
    trials: 1,
}


def draw_job(chance: random.Random, with_poison: bool) -> PlannedJob:
    """Draw the next job. Poison kills workers, so it is excluded while memory is measured."""
    weights = {make: weight for make, weight in WEIGHTS.items() if with_poison or make.__name__ not in POISONOUS}
    planned = chance.choices(list(weights), list(weights.values()))[0](chance)
    priority = chance.choices(["interactive", "normal", "bulk"], [1, 3, 1])[0]
    return replace(planned, options=planned.options | {"priority": priority})
