"""Logging configuration of every process: to standard error, as text lines or JSON objects (`ASSAY_LOG_FORMAT`).

Records logged while a job is processed carry its id: `job_context` sets the ids for a block of code and the coroutines
that it starts; `with_job_context` passes them to a thread.
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

#: A bearer token in a URL's query.
_TOKEN = re.compile(r"(?<![A-Za-z0-9_])token=[^&\s'\"]+")
HIDDEN = "token=***"
#: Maximum jobs named in a line: a batch may contain items of hundreds of jobs.
MOST_JOBS = 3

_jobs: ContextVar[Collection[str]] = ContextVar("jobs", default=())


@contextmanager
def job_context(jobs: Collection[str]) -> Iterator[None]:
    """Add the ids of the jobs to every record logged inside the block; the collection may grow during the block."""
    before = _jobs.set(jobs)
    try:
        yield
    finally:
        _jobs.reset(before)


def with_job_context(work: Callable[[], T]) -> Callable[[], T]:
    """Wrap work for a different thread, so that its records carry the current jobs."""
    return partial(copy_context().run, work)


class JobContextFilter(logging.Filter):
    """Adds the current jobs to a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        jobs = sorted(_jobs.get())
        more = f" and {len(jobs) - MOST_JOBS} more" if len(jobs) > MOST_JOBS else ""
        named = ",".join(jobs[:MOST_JOBS]) + more
        record.job, record.about = named, f" [job {named}]" if jobs else ""
        return True


class TokenRedactingFormatter(logging.Formatter):
    """Hides bearer tokens: gunicorn logs the full URL of a failed request, which may contain a trainer's token."""

    def format(self, record: logging.LogRecord) -> str:
        return _TOKEN.sub(HIDDEN, super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as a line with a JSON object."""

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


class TracebackFilter(logging.Filter):
    """Removes tracebacks: Celery logs a lost connection, or child process, with the full stack besides its message."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        return True


def logging_config(process: str, level: str, form: Form = "text") -> dict[str, Any]:
    """Return the configuration for `logging.config.dictConfig`, and for gunicorn."""
    text = {"()": TokenRedactingFormatter, "fmt": _FORMAT.format(process=process.replace("%", "%%"))}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": text if form == "text" else {"()": JsonFormatter, "process": process}},
        "filters": {"without_traceback": {"()": TracebackFilter}, "job_context": {"()": JobContextFilter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["job_context"]}},
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {
            # At INFO, both log every task and request, which events and the access log already record.
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            # Logs a line per request of an outside API.
            "httpx2": {"level": "WARNING"},
            "celery.worker.consumer.consumer": {"filters": ["without_traceback"]},
            "celery.worker.request": {"filters": ["without_traceback"]},
            # Flower logs its address at start, which `make up` also prints, and a line per registered task.
            "flower.command": {"level": "WARNING"},
            # Logs every failed attempt to reach the collector; `tasks.otlp` logs it once.
            "opentelemetry": {"level": "CRITICAL"},
            # Logs errors while closing a connection that was already lost.
            "celery.bootsteps": {"filters": ["without_traceback"]},
            # Replace gunicorn's own handlers, so that its lines have the common format.
            "gunicorn.error": {"handlers": [], "propagate": True},
        },
    }


def configure_logging(process: str, level: str, path: Path | None = None, form: Form = "text") -> None:
    """Configure the logging of this process, to standard error or to the file `path`. Called by entry points."""
    config = logging_config(process, level, form)
    if path:
        config["handlers"]["stderr"] |= {"class": "logging.FileHandler", "filename": path}
    logging.config.dictConfig(config)
    logging.captureWarnings(True)
