"""What customers ask for: jobs of every kind, each with what may become of its items."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.soak.books import Expected
from bench.soak.system import MODEL, STORED_ITEMS
from tasks.simulated.kind import score
from tasks.simulated.model import SimulatedItem

#: Why an item that asks an API may fail while the API is in a storm.
STORM = (
    "api_unavailable", "api_unreachable", "api_timeout", "verdict_missing", "reply_refused", "reply_cut",
    "reply_filtered",
)  # fmt: skip
#: Why an episode may fail while policy servers die.
NO_POLICY = ("policy_unavailable", "policy_timeout", "policy_broken", "simulator_lost", "episode_timeout")
COLOURS = ("red", "green", "blue", "yellow")
#: Kinds whose items kill or block their worker.
POISONOUS = ("poison", "hang")


@dataclass(frozen=True, slots=True)
class Order:
    name: str
    kind: str
    items: list[dict[str, Any]]
    spec: dict[str, Any]
    expected: list[Expected]
    options: dict[str, Any] = field(default_factory=dict)
    is_streamed: bool = False
    """Sent as lines from a generator."""


def rules(chance: random.Random) -> Order:
    """Right, wrong and unanswerable sums."""
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
    return Order("rules", "score", items, {"scorers": [{"name": "numeric_match"}]}, expected)


def reward(chance: random.Random) -> Order:
    """Groups of answers with a judge and a length penalty."""
    items, expected = [], []
    for group in range(chance.randint(2, 6)):
        a = chance.randrange(1000)
        for at in range(4):
            is_right = chance.random() < 0.7
            name = f"g{group}.{at}"
            response = f"The answer is {a if is_right else a + 1}. " + "word " * chance.randrange(20)
            items.append(
                {
                    "id": name, "group_id": f"g{group}", "prompt": "How many?", "response": response,
                    "reference": str(a), "response_tokens": len(response.split()),
                }
            )  # fmt: skip
            expected.append(Expected(name, part=("base", float(is_right)), errors=STORM))
    spec = {
        "scorers": [{"name": "numeric_match"}],
        "judge": {"profile": "development", "reward_coefficient": 0.1, "timeout_s": 5},
        "penalties": [{"name": "group_length", "scale": 0.1}],
        "group_statistics": True,
    }
    return Order("reward", "score", items, spec, expected)


def judge(chance: random.Random) -> Order:
    """Answers before a judge that sees the reference, and grades by whether they have it."""
    items, expected = [], []
    for at in range(chance.randint(3, 25)):
        a, is_right = chance.randrange(300), chance.random() < 0.5
        items.append({"id": f"j{at}", "prompt": "?", "response": f"x{a if is_right else -a}y", "reference": f"x{a}y"})
        is_right = items[-1]["reference"] in items[-1]["response"]
        expected.append(Expected(f"j{at}", score=10.0 if is_right else 1.0, errors=STORM))
    spec = {"profile": "development", "mode": "reference", "timeout_s": 5}
    return Order("judge", "judge", items, spec, expected)


def inference(chance: random.Random) -> Order:
    """Sums for a tiny model."""
    items: list[dict[str, Any]] = [
        {"id": f"q{at}", "query": f"{chance.randrange(20)}+{chance.randrange(20)}="}
        for at in range(chance.randint(4, 40))
    ]
    spec = {"backend": "local", "model": MODEL, "chat": "never", "sampling": {"max_new_tokens": 6}}
    expected = [Expected(item["id"], errors=("empty_answer",)) for item in items]
    return Order("inference", "inference", items, spec, expected)


def policy(chance: random.Random) -> Order:
    """Instructions for a robot, of which one colour is right; two trials each."""
    items, expected = [], []
    for at in range(chance.randint(1, 3)):
        colour = chance.choice(COLOURS)
        items.append({"id": f"p{at}", "response": f"reach the {colour} target"})
        expected.append(Expected(f"p{at}", score=float(colour == "red"), errors=NO_POLICY))
    options = {"trials": 2, "task_id": 0, "seed": chance.randrange(50)}
    return Order("policy", "score", items, {"scorers": [{"name": "policy", "options": options}]}, expected)


def shared(chance: random.Random) -> Order:
    """Cached answers that other jobs are computing at the same time."""
    return _simulated(
        "shared", [{"x": chance.randrange(400)} for _ in range(chance.randint(20, 200))],
        {"cost_s": 0.004, "batch_items": chance.choice([1, 8, 50]), "cacheable": True},
    )  # fmt: skip


def staged(chance: random.Random) -> Order:
    """Device, then API worker, then CPU worker, group by group."""
    items = [{"x": chance.randrange(10**6), "group_id": f"g{at // 3}"} for at in range(chance.randint(6, 60))]
    stages = [
        {"name": "first", "pool": "device"}, {"name": "second", "pool": "api"},
        {"name": "third", "pool": "cpu", "grouped": True},
    ]  # fmt: skip
    return _simulated("staged", items, {"cost_s": 0.005, "batch_items": 10, "stages": stages})


def flaky(chance: random.Random) -> Order:
    """Some items fail, some only the first times."""
    items: list[dict[str, Any]] = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(20, 80))]
    for item in chance.sample(items, 6):
        item |= chance.choice([{"fail": True}, {"fail_times": 1}, {"fail_times": 2}])
    return _simulated("flaky", items, {"cost_s": 0.01, "batch_items": 8})


def poison(chance: random.Random) -> Order:
    """An item that kills its worker every time, among others that must not suffer."""
    items: list[dict[str, Any]] = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(5, 40))]
    chance.choice(items)["crash"] = True
    return _simulated("poison", items, {"cost_s": 0.02, "batch_items": 8})


def hang(chance: random.Random) -> Order:
    """An item that never returns, asleep or holding the interpreter."""
    items: list[dict[str, Any]] = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(3, 12))]
    chance.choice(items)["hang"] = chance.choice(["sleep", "interpreter"])
    return _simulated("hang", items, {"cost_s": 0.02, "batch_items": 4, "timeout_s": 3})


def stored(chance: random.Random) -> Order:
    """More items than Redis is to hold: a file in the storage, sometimes of several parts."""
    number = chance.choice([STORED_ITEMS + 1, 2000, 3000, 6000])
    items = [{"x": chance.randrange(10**6)} for _ in range(number)]
    order = _simulated("stored", items, {"cost_s": 0.0002})
    return Order(order.name, order.kind, items, order.spec, order.expected, {"cache": "off"}, is_streamed=True)


def late(chance: random.Random) -> Order:
    """More work than its deadline leaves time for."""
    items = [{"x": chance.randrange(10**6)} for _ in range(60)]
    order = _simulated("late", items, {"cost_s": 0.3, "batch_items": 2})
    return Order(order.name, order.kind, items, order.spec, order.expected, {"deadline_s": chance.uniform(1.0, 4.0)})


def bulky(chance: random.Random) -> Order:
    """Values too large for Redis, which go to files."""
    items = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(2, 8))]
    return _simulated("bulky", items, {"cost_s": 0.01, "batch_items": 2, "result_bytes": 100_000})


def trials(chance: random.Random) -> Order:
    """Items that are run three times over."""
    items = [{"x": chance.randrange(10**6)} for _ in range(chance.randint(4, 20))]
    stages = [{"name": "run", "pool": "device"}, {"name": "sum", "pool": "cpu", "grouped": True}]
    return _simulated("trials", items, {"cost_s": 0.005, "batch_items": 6, "stages": stages, "trials": 3})


def _simulated(name: str, items: list[dict[str, Any]], spec: dict[str, Any]) -> Order:
    for at, item in enumerate(items):
        item["id"] = f"s{at}"
    return Order(name, "simulated", items, spec, [_of_simulated(item) for item in items])


def _of_simulated(item: dict[str, Any]) -> Expected:
    if item.get("crash"):
        return Expected(item["id"], is_good=False, errors=("worker_lost",))
    if item.get("hang"):
        return Expected(item["id"], is_good=False, errors=("worker_lost", "timed_out", "batch_timeout"))
    if item.get("fail"):
        return Expected(item["id"], is_good=False, errors=("simulated_failure",))
    return Expected(item["id"], score=score(SimulatedItem(x=item["x"])))


#: How often each is asked for.
MENU: dict[Callable[[random.Random], Order], float] = {
    rules: 3, reward: 2, judge: 3, inference: 3, policy: 1.5, shared: 3, staged: 2, flaky: 2, poison: 0.7, hang: 0.5,
    stored: 1, late: 1, bulky: 1, trials: 1,
}  # fmt: skip


def draw(chance: random.Random, with_poison: bool) -> Order:
    """The next order. Poison kills its worker, and is left out while memory is measured."""
    menu = {make: weight for make, weight in MENU.items() if with_poison or make.__name__ not in POISONOUS}
    order = chance.choices(list(menu), list(menu.values()))[0](chance)
    priority = chance.choices(["interactive", "normal", "bulk"], [1, 3, 1])[0]
    return Order(
        order.name, order.kind, order.items, order.spec, order.expected, order.options | {"priority": priority},
        order.is_streamed,
    )  # fmt: skip
