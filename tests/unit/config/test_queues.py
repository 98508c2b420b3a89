"""Queue names and priorities."""

import pytest

from config.queues import PRIORITIES, Slot, UnknownQueue, declare, message_priority, queue_for, slot_of


def test_a_device_queue_is_named_after_its_slot() -> None:
    assert queue_for(Slot("node1", 3)) == "gpu.node1.3"
    assert slot_of("gpu.node1.3") == Slot("node1", 3)


def test_shared_queues_have_no_slot() -> None:
    assert slot_of("api") is None
    assert slot_of("cpu") is None


@pytest.mark.parametrize(
    "name", ["gpu", "gpu.node1", "gpu.node1.x", "gpu.a.b.1", "gpu.node1.01", "celery", "API", "", "api "]
)
def test_an_unknown_queue_is_refused_with_a_message(name: str) -> None:
    with pytest.raises(UnknownQueue, match="queues are api, cpu, benchmark and gpu"):
        declare(name, "redis://")


def test_interactive_is_served_first_on_both_brokers() -> None:
    assert [message_priority(each, "redis://") for each in PRIORITIES] == [0, 1, 2]  # Redis: 0 first
    assert [message_priority(each, "amqp://") for each in PRIORITIES] == [2, 1, 0]  # RabbitMQ: 0 last
    assert declare("api", "amqp://").queue_arguments == {"x-max-priority": 2}
