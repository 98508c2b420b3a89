"""When beat runs which benchmark: `quick=0 3 * * *; full=0 4 * * sun`, each by a crontab in UTC."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.beat import BeatLazyFunc
from celery.schedules import ParseException, crontab

#: Seconds after which what is due is not begun any more: it would run in the middle of somebody's day.
LATE_S = 3600
#: How the time that something is due at is written.
SLOT = "%Y-%m-%dT%H:%MZ"

_DAY = timedelta(days=1)
#: Days after which a 29 February has been on every weekday, 2100 left out: a crontab that is due on none never is.
_MOST = 41 * 366


@dataclass(frozen=True, slots=True)
class Scheduled:
    name: str
    fields: str
    """As written: minute, hour, day of month, month, day of week."""

    @property
    def crontab(self) -> crontab:
        return crontab.from_string(self.fields)

    def slot(self) -> str:
        """The time it was due at last, by this host's clock: the same for every beat that finds it due."""
        return f"{self._due(datetime.now(UTC), -1):{SLOT}}"

    def next_at(self, now: float) -> float:
        """When it is due next, in seconds since 1970."""
        return self._due(datetime.fromtimestamp(now, UTC) + timedelta(minutes=1), 1).timestamp()

    def _due(self, start: datetime, way: int) -> datetime:
        """The time nearest to this one, itself among them: later (1) or earlier (-1)."""
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
        """As Celery's beat takes it. The time it is due is found when it is sent."""
        return {
            "task": "assay.benchmark",
            "schedule": self.crontab,
            "kwargs": {"name": self.name, "slot": BeatLazyFunc(Scheduled.slot, self)},
            "options": {"queue": queue, "priority": priority, "expires": LATE_S},
        }


def due_at(slot: str) -> float:
    """The time of a slot, in seconds since 1970."""
    return datetime.strptime(slot, SLOT).replace(tzinfo=UTC).timestamp()


def parse_schedule(text: str) -> list[Scheduled]:
    """Raises ValueError with a sentence."""
    return list(_parsed(text))


def _parsed(text: str) -> Iterator[Scheduled]:
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, fields = (each.strip() for each in part.partition("="))
        if not name or not separator or len(fields.split()) != 5:
            raise ValueError(f"must be name=minute hour day month weekday, as in quick=0 3 * * *; {part!r} is not")
        scheduled = Scheduled(name, " ".join(fields.split()))
        try:
            scheduled.slot()
        except (ParseException, ValueError) as error:
            raise ValueError(f"{fields!r} is not a crontab: {error}") from error
        yield scheduled
