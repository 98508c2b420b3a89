"""Parser of the benchmark schedule for beat: `quick=0 3 * * *; full=0 4 * * sun`, a crontab in UTC per benchmark."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.beat import BeatLazyFunc
from celery.schedules import ParseException, crontab

#: Maximum delay of a benchmark in seconds: a later start could disturb the users' working day.
LATE_S = 3600
#: Format of the time at which a benchmark is due.
SLOT = "%Y-%m-%dT%H:%MZ"

_DAY = timedelta(days=1)
#: Days after which a 29 February has occurred on every weekday, even across 2100: a crontab not due by then never is.
_MOST = 41 * 366


@dataclass(frozen=True, slots=True)
class ScheduledBenchmark:
    name: str
    fields: str
    """The crontab's text: minute, hour, day of month, month, day of week."""

    @property
    def crontab(self) -> crontab:
        return crontab.from_string(self.fields)

    def slot(self) -> str:
        """Return the last due time by this host's clock: equal for every beat process that starts this benchmark."""
        return f"{self._due(datetime.now(UTC), -1):{SLOT}}"

    def next_at(self, now: float) -> float:
        """Return the next due time, in seconds since 1970."""
        return self._due(datetime.fromtimestamp(now, UTC) + timedelta(minutes=1), 1).timestamp()

    def _due(self, start: datetime, way: int) -> datetime:
        """Return the due time nearest to `start`, inclusive: later (1) or earlier (-1)."""
        due: Any = self.crontab  # the stubs do not know its fields
        start = start.replace(second=0, microsecond=0)
        times = sorted(((hour, minute) for hour in due.hour for minute in due.minute), reverse=way < 0)
        day = start
        for _ in range(_MOST):
            if (
                day.day in due.day_of_month
                and day.month in due.month_of_year
                and day.isoweekday() % 7 in due.day_of_week
            ):
                for hour, minute in times:
                    at = day.replace(hour=hour, minute=minute)
                    if (at - start) * way >= timedelta(0):
                        return at
            day += way * _DAY
        raise ValueError(f"{self.fields!r} is never due")

    def entry(self, queue: str, priority: int) -> dict[str, object]:
        """Return the entry of Celery's beat schedule. The due time is computed when the task is sent."""
        return {
            "task": "assay.benchmark",
            "schedule": self.crontab,
            "kwargs": {"name": self.name, "slot": BeatLazyFunc(ScheduledBenchmark.slot, self)},
            "options": {"queue": queue, "priority": priority, "expires": LATE_S},
        }


def due_at(slot: str) -> float:
    """Parse a slot to its time, in seconds since 1970."""
    return datetime.strptime(slot, SLOT).replace(tzinfo=UTC).timestamp()


def parse_schedule(text: str) -> list[ScheduledBenchmark]:
    """Parse a schedule. Raises ValueError with a message for users."""
    return list(_parsed(text))


def _parsed(text: str) -> Iterator[ScheduledBenchmark]:
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, fields = (each.strip() for each in part.partition("="))
        if not name or not separator or len(fields.split()) != 5:
            raise ValueError(f"must be name=minute hour day month weekday, as in quick=0 3 * * *, but has {part!r}")
        scheduled = ScheduledBenchmark(name, " ".join(fields.split()))
        try:
            scheduled.slot()
        except (ParseException, ValueError) as error:
            raise ValueError(f"{fields!r} is not a crontab: {error}") from error
        yield scheduled
