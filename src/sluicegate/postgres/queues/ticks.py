"""The ticks of schedules. Pure.

1. A tick is a whole second since the epoch. Those of an interval are its multiples since the epoch,
   so they do not depend on when a schedule was made, or fired last.
2. Cron expressions are evaluated by cronsim, as Debian's cron does. An expression whose minutes and
   hours do not begin with a star names times of the day. If daylight saving time skips such a time,
   the tick is at the end of the gap: one tick, even for several skipped times. If a time occurs
   twice, the tick is at the first one.
3. Any other expression names moments of the running time: its ticks in a skipped hour do not exist,
   and those in a repeated hour occur twice. Cronsim computes them for each period between two
   changes of the clocks. (By itself it leaves out ticks after a change at midnight, or by half an
   hour.)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo

from ..._core import checks
from ..._core.checks import bad
from ..._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator

CatchUp: TypeAlias = Literal["all", "last", "none"]
CATCH_UPS: tuple[CatchUp, ...] = get_args(CatchUp)
GRACE = 60
"""Seconds by which a tick may be late and still fire with every `catch_up`."""
MOST_TICKS = 1000
"""Maximum number of ticks of a schedule that fire in one transaction."""
_FIELDS = 5
_DAY = 86_400
_OF_MACHINE = ("localtime", "posixrules", "right/")
"""Time zones, or leap seconds, of which machines have different ideas."""
_RULE = (
    "must be a cron expression with five fields, minute, hour, day of month, month and day of week, "
    "such as '30 2 * * MON-FRI'"
)


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of a schedule. Raises `ConfigError` for an invalid one."""

    cron: str | None
    every: timedelta | None
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every is None):
            raise bad("cron", self.cron, "must be given, or else `every`")
        if self.every is not None:
            seconds = checks.seconds("every", self.every, usual=checks.LONG_PERIOD)
            if seconds != int(seconds):
                raise bad("every", self.every, "must be a whole number of seconds")
            object.__setattr__(self, "every", timedelta(seconds=seconds))
            if self.timezone != "UTC":
                rule = "must be UTC with `every`, which does not depend on it"
                raise bad("timezone", self.timezone, rule)
            return
        self._check_cron()

    def _check_cron(self) -> None:
        fields = checks.text("cron", self.cron).split()
        need("cronsim", "postgres", "a schedule with a cron expression")
        object.__setattr__(self, "cron", " ".join(fields))
        try:
            if self.timezone.startswith(_OF_MACHINE):
                raise ValueError
            _zone(checks.text("timezone", self.timezone))
        except (KeyError, OSError, ValueError):
            rule = (
                "must be the IANA name of a time zone, such as 'Europe/Berlin', in the database of this "
                "machine or of the package tzdata"
            )
            raise bad("timezone", self.timezone, rule) from None
        if len(fields) != _FIELDS:
            raise bad("cron", self.cron, _RULE)
        try:
            has_ticks = next(self.after(int(datetime.now(UTC).timestamp())), None) is not None
        except Exception as error:  # also an AssertionError
            raise bad("cron", self.cron, f"{_RULE} ({error})") from error
        if not has_ticks:
            raise bad("cron", self.cron, "must match a time in the next 50 years")

    def after(self, second: int) -> Iterator[int]:
        """Yield the ticks behind this second, in order."""
        if self.every is not None:
            step = int(self.every.total_seconds())
            tick = second - second % step
            while True:
                tick += step
                yield tick
        from cronsim import CronSim  # an optional dependency

        zone, (minute, hour, *_) = _zone(self.timezone), str(self.cron).split()
        if zone is not UTC and (minute.startswith("*") or hour.startswith("*")):
            yield from self._moments(zone, second)
            return
        times: Any = CronSim(str(self.cron), datetime.fromtimestamp(second, zone))
        for time in times:
            tick = int(time.timestamp())
            if tick > second:  # from within a repeated hour, the first time is before it
                second = tick
                yield tick

    def _moments(self, zone: tzinfo, second: int) -> Iterator[int]:
        """Yield the moments of the running time."""
        from cronsim import CronSim

        start: int | None = second + 1
        while start is not None:
            now, start = start, None
            offset = _offset(zone, now)
            times: Any = CronSim(str(self.cron), _naive(now - 1) + offset)
            for time in times:
                tick = int((time - offset).replace(tzinfo=UTC).timestamp())
                start = _change(zone, now, tick)
                if start is not None:
                    break
                now = tick
                yield tick


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)  # it needs no database


def _naive(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC).replace(tzinfo=None)


def _offset(zone: tzinfo, second: int) -> timedelta:
    return datetime.fromtimestamp(second, zone).utcoffset() or timedelta()


def _change(zone: tzinfo, first: int, last: int) -> int | None:
    """Return the next second with another offset, up to `last`."""
    offset = _offset(zone, first)
    for late in chain(range(first + _DAY, last, _DAY), (last,)):
        if _offset(zone, late) != offset:
            days = range(max(first, late - _DAY), late + 1)
            return days[bisect_left(days, True, key=lambda each: _offset(zone, each) != offset)]
    return None


def due_ticks(
    timing: Timing, catch_up: CatchUp, due: int, now: int, most: int = MOST_TICKS
) -> tuple[list[int], int | None]:
    """Return the ticks to fire, of those from `due` to `now`, and the next tick after them.

    Ticks that are at most `GRACE` seconds late are on time, and fire. Earlier ones are missed: all of
    them fire, or the last one unless a later tick is on time, or none. At most `most` fire: the next
    tick may be due as well. It is `None` if there is none.
    """
    if catch_up == "all":
        fired = [*islice(_between(timing, due, due, now), most)]
        return fired, next(timing.after(fired[-1]), None)
    fired = [*_between(timing, due, now - GRACE, now)]
    if not fired and catch_up == "last":
        span = 3600  # longer and longer times before now, rather than all ticks since `due`
        while not (missed := [*_between(timing, due, now - span, now)]):
            span *= 24
        fired = missed[-1:]
    later = chain(fired[most:], timing.after(now))
    return fired[:most], next(later, None)


def _between(timing: Timing, due: int, first: int, last: int) -> Iterator[int]:
    """Yield the ticks from `due` that are in this time, both ends included."""
    later = timing.after(max(due, first - 1))
    return takewhile(lambda tick: tick <= last, chain([due], later) if first <= due else later)
