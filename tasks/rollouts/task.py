"""Task that notifies an idle device worker of new weights. A device that generates polls for new weights itself."""

from celery import shared_task

from tasks.app import AssayCelery, AssayTask
from tasks.errors import AssayError, BrokerUnavailable
from tasks.inference.engine import ENGINE
from tasks.rollouts.weight_follower import WeightFollower, log
from tasks.rollouts.weight_versions import Versions

TASK = "assay.follow"


@shared_task(bind=True, base=AssayTask, name=TASK)
def follow(self: AssayTask, /, rollout: str) -> None:
    runtime = self.runtime
    versions = Versions(runtime.state)
    model, engine = versions.status(rollout).model, runtime.find(ENGINE)
    if model is None or engine is None:  # the rollout has ended
        return
    try:
        WeightFollower(versions, rollout, runtime.worker, engine, model).renew()
    except AssayError as error:  # the sync's status reports the failure to its readers
        log.warning("%s", error)


def send_word(app: AssayCelery, rollout: str, queues: list[str]) -> None:
    """Notify the devices of new weights. A lost message only costs time: a device checks before it generates."""
    for queue in queues:
        try:
            app.publish(TASK, queue, "interactive", rollout=rollout)
        except BrokerUnavailable as error:
            log.warning("cannot notify %s of a new version; it loads it with its next work: %s", queue, error)
