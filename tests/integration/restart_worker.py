"""A worker with the real configuration and consumer, and a long task, for the test of a Redis restart.

argv: Celery's pool, and the path of a file. The tasks end as soon as the file exists.
"""

import sys
import time
from pathlib import Path

from redis.exceptions import RedisError

from config.settings import load_settings
from tasks.app import create_celery
from tasks.connections import connect
from workers.worker.consumer import Consumer

MAY_END = Path(sys.argv[2])
settings = load_settings()
app = create_celery(settings, ["cpu"])


@app.task(name="test.long")
def long(key: str) -> None:
    """Count its start and its end in Redis. The counts survive the restart, or are written after it."""
    state = connect(settings.redis_url)
    state.incr(f"{key}:started")
    while not MAY_END.exists():
        time.sleep(0.05)
    while True:  # Redis may be away for a moment when the task ends
        try:
            state.incr(f"{key}:ended")
            return
        except RedisError:
            time.sleep(0.1)


if __name__ == "__main__":
    app.Worker(
        pool_cls=sys.argv[1], concurrency=2, hostname="restart@test", loglevel="INFO", consumer_cls=Consumer
    ).start()
