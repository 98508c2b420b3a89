"""One log format for every process: time, level, process, logger, message, to standard error."""

import logging
import logging.config
import re
from pathlib import Path
from typing import Any

_FORMAT = "%(asctime)s %(levelname)-7s {process} %(name)s: %(message)s"


#: A token in a URL's query, as far as it goes.
_TOKEN = re.compile(r"(?<![A-Za-z0-9_])token=[^&\s'\"]+")


class WithoutTokens(logging.Formatter):
    """gunicorn writes the whole URL of a request that fails, and a trainer's may hold its token."""

    def format(self, record: logging.LogRecord) -> str:
        return _TOKEN.sub("token=***", super().format(record))


class WithoutTraceback(logging.Filter):
    """Celery reports a lost connection, or child, with the whole stack; the line itself says it."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        return True


def logging_config(process: str, level: str) -> dict[str, Any]:
    """The dictConfig form, which gunicorn takes too."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": WithoutTokens, "fmt": _FORMAT.format(process=process.replace("%", "%%"))}},
        "filters": {"without_traceback": {"()": WithoutTraceback}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {
            # Both say at INFO, for every task and request, what the events and the access log say already.
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            # A line for every request of an outside API.
            "httpx2": {"level": "WARNING"},
            "celery.worker.consumer.consumer": {"filters": ["without_traceback"]},
            "celery.worker.request": {"filters": ["without_traceback"]},
            # What a lost connection left half open may fail to close.
            "celery.bootsteps": {"filters": ["without_traceback"]},
            # gunicorn brings handlers of its own; its lines should look like ours.
            "gunicorn.error": {"handlers": [], "propagate": True},
        },
    }


def configure_logging(process: str, level: str, path: Path | None = None) -> None:
    """Set up this process's logging, to a file instead if there is one. Called by entry points."""
    config = logging_config(process, level)
    if path:
        config["handlers"]["stderr"] = {"class": "logging.FileHandler", "filename": path, "formatter": "line"}
    logging.config.dictConfig(config)
    logging.captureWarnings(True)
