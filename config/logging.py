"""One log format for every process, to standard error: lines for people, or JSON for machines (`ASSAY_LOG_FORMAT`).

What is logged while a job is worked on carries its id: `bound` says so for a stretch of code, and for the coroutines
that it starts. A thread that it starts is told by `carried`.
"""

import json
import logging
import logging.config
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Form = Literal["text", "json"]

_FORMAT = "%(asctime)s %(levelname)-7s {process} %(name)s: %(message)s%(about)s"

#: A token in a URL's query, as far as it goes.
_TOKEN = re.compile(r"(?<![A-Za-z0-9_])token=[^&\s'\"]+")
HIDDEN = "token=***"
#: Jobs named in one line at most: a batch may hold hundreds.
MOST_JOBS = 3

_jobs: ContextVar[Collection[str]] = ContextVar("jobs", default=())


@contextmanager
def bound(jobs: Collection[str]) -> Iterator[None]:
    """What is logged inside is about these jobs; the collection may grow meanwhile."""
    before = _jobs.set(jobs)
    try:
        yield
    finally:
        _jobs.reset(before)


def carried(work: Callable[[], T]) -> Callable[[], T]:
    """The same work for another thread, about the same jobs."""
    return partial(copy_context().run, work)


class AboutJobs(logging.Filter):
    """Gives a record the jobs that it is about."""

    def filter(self, record: logging.LogRecord) -> bool:
        jobs = sorted(_jobs.get())
        more = f" and {len(jobs) - MOST_JOBS} more" if len(jobs) > MOST_JOBS else ""
        named = ",".join(jobs[:MOST_JOBS]) + more
        record.job, record.about = named, f" [job {named}]" if jobs else ""
        return True


class WithoutTokens(logging.Formatter):
    """gunicorn writes the whole URL of a request that fails, and a trainer's may hold its token."""

    def format(self, record: logging.LogRecord) -> str:
        return _TOKEN.sub(HIDDEN, super().format(record))


class AsJson(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": _TOKEN.sub(HIDDEN, record.getMessage()),
        }
        if job := getattr(record, "job", ""):
            line["job"] = job
        if record.exc_info:
            line["exception"] = _TOKEN.sub(HIDDEN, self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class WithoutTraceback(logging.Filter):
    """Celery reports a lost connection, or child, with the whole stack; the line itself says it."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        return True


def logging_config(process: str, level: str, form: Form = "text") -> dict[str, Any]:
    """The dictConfig form, which gunicorn takes too."""
    text = {"()": WithoutTokens, "fmt": _FORMAT.format(process=process.replace("%", "%%"))}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": text if form == "text" else {"()": AsJson, "process": process}},
        "filters": {"without_traceback": {"()": WithoutTraceback}, "about_jobs": {"()": AboutJobs}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["about_jobs"]}},
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {
            # Both say at INFO, for every task and request, what the events and the access log say already.
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            # A line for every request of an outside API.
            "httpx2": {"level": "WARNING"},
            "celery.worker.consumer.consumer": {"filters": ["without_traceback"]},
            "celery.worker.request": {"filters": ["without_traceback"]},
            # Flower's greeting: its address, which `make up` says too, and all tasks, a line each.
            "flower.command": {"level": "WARNING"},
            # Every try that fails to reach the collector; `tasks.otlp` says it once.
            "opentelemetry": {"level": "CRITICAL"},
            # What a lost connection left half open may fail to close.
            "celery.bootsteps": {"filters": ["without_traceback"]},
            # gunicorn brings handlers of its own; its lines should look like ours.
            "gunicorn.error": {"handlers": [], "propagate": True},
        },
    }


def configure_logging(process: str, level: str, path: Path | None = None, form: Form = "text") -> None:
    """Set up this process's logging, to a file instead if there is one. Called by entry points."""
    config = logging_config(process, level, form)
    if path:
        config["handlers"]["stderr"] |= {"class": "logging.FileHandler", "filename": path}
    logging.config.dictConfig(config)
    logging.captureWarnings(True)
