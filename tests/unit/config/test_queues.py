"""Queue names and priorities."""

import pytest

from config.queues import DELIVERY_TIMEOUT_S, PRIORITIES, BrokerQueues, Slot, UnknownQueue, queue_for, slot_of
from config.settings import Settings
from tasks.inference.model import InferenceSpec
from tasks.jobs.execution.stream_feed import SESSION_S


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
        BrokerQueues("redis").declare(name)


def test_interactive_is_served_first_on_both_brokers() -> None:
    redis, rabbitmq = BrokerQueues("redis"), BrokerQueues("classic")
    assert [redis.message_priority(each) for each in PRIORITIES] == [0, 1, 2]  # Redis: 0 first
    assert [rabbitmq.message_priority(each) for each in PRIORITIES] == [2, 1, 0]  # RabbitMQ: 0 last
    (classic,) = rabbitmq.declare("api")
    assert classic.name == "api"
    assert classic.queue_arguments["x-max-priority"] == 2


def test_a_queue_has_a_quorum_queue_per_priority() -> None:
    queues = BrokerQueues("quorum")
    declared = queues.declare("gpu.node1.0")
    assert [each.name for each in declared] == [f"gpu.node1.0.{priority}" for priority in PRIORITIES]
    assert {each.queue_arguments["x-queue-type"] for each in declared} == {"quorum"}
    assert queues.declare_for("gpu.node1.0", "bulk") == declared[2]


def test_the_setting_of_rabbitmqs_queues_has_no_effect_on_redis() -> None:
    assert BrokerQueues.of(Settings(broker_url="redis://here", rabbitmq_queues="quorum")).form == "redis"
    assert BrokerQueues.of(Settings(broker_url="amqp://here", rabbitmq_queues="quorum")).form == "quorum"
    assert BrokerQueues.of(Settings(broker_url="amqps://here")).form == "classic"


def test_an_engine_ends_its_task_before_rabbitmq_gives_up_on_it() -> None:
    longest_answer_s = InferenceSpec.model_fields["timeout_s"].default
    assert SESSION_S + longest_answer_s + 300 <= DELIVERY_TIMEOUT_S
