"""A word to a device that may be idle: there is a new version. One that generates has seen it already."""

from celery import shared_task

from tasks.app import AssayCelery, AssayTask
from tasks.errors import AssayError, BrokerUnavailable
from tasks.inference.engine import ENGINE
from tasks.rollouts.versions import Versions
from tasks.rollouts.weight_sync import WeightFollower, log

TASK = "assay.follow"


@shared_task(bind=True, base=AssayTask, name=TASK)
def follow(self: AssayTask, /, rollout: str) -> None:
    runtime = self.runtime
    versions = Versions(runtime.state)
    model, engine = versions.status(rollout).model, runtime.find(ENGINE)
    if model is None or engine is None:  # the rollout is over
        return
    try:
        WeightFollower(versions, rollout, runtime.worker, engine, model).renew()
    except AssayError as error:  # told where it is waited for: in the versions' status
        log.warning("%s", error)


def send_word(app: AssayCelery, rollout: str, queues: list[str]) -> None:
    """To the queues of these devices. A message that is lost costs time only: a device looks before it generates."""
    for queue in queues:
        try:
            app.publish(TASK, queue, "interactive", rollout=rollout)
        except BrokerUnavailable as error:
            log.warning("%s does not hear of a new version before it has work: %s", queue, error)
