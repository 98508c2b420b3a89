"""A worker with the real configuration and consumer, and one long task, for the test of a Redis restart."""

import sys
import time

from redis.exceptions import RedisError

from config.settings import load_settings
from tasks.app import create_celery
from tasks.connections import connect
from workers.consumer import Consumer

settings = load_settings()
app = create_celery(settings, ["cpu"])


@app.task(name="test.long")
def long(key: str) -> None:
    """Leaves a mark at its start and another at its end; both survive the restart, or are written after it."""
    state = connect(settings.redis_url)
    state.incr(f"{key}:started")
    time.sleep(4)
    while True:  # Redis may be away for a moment when we end
        try:
            state.incr(f"{key}:ended")
            return
        except RedisError:
            time.sleep(0.1)


if __name__ == "__main__":
    app.Worker(
        pool_cls=sys.argv[1], concurrency=2, hostname="restart@test", loglevel="INFO", consumer_cls=Consumer
    ).start()
