"""The ticks of schedules. Pure.

1. A tick is a whole second since the epoch. Those of an interval are its multiples since the epoch, so
   they do not depend on when a schedule was made, or fired last.
2. Cron expressions are evaluated by cronsim, as Debian's cron does. An expression whose minutes and
   hours do not begin with a star names times of the day. If daylight saving time skips such a time, the
   tick is at the end of the gap: one tick, also for several skipped times. If a time occurs twice, the
   tick is at the first one.
3. Any other expression names moments of the running time: its ticks in a skipped hour do not exist, and
   those in a repeated hour occur twice. (Where clocks change by half an hour, on Lord Howe Island,
   cronsim may leave out up to 30 minutes after a change.)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
"""The most ticks of a schedule that fire in one transaction."""
_FIELDS = 5
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
        object.__setattr__(self, "cron", " ".join(fields))
        try:
            ZoneInfo(checks.text("timezone", self.timezone))
        except (KeyError, OSError, ValueError):
            rule = "must be the IANA name of a time zone, such as 'Europe/Berlin'"
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
        need("cronsim", "postgres", "a schedule with a cron expression")
        from cronsim import CronSim  # an optional dependency

        zone = UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)
        times: Any = CronSim(str(self.cron), datetime.fromtimestamp(second, zone))
        for time in times:
            tick = int(time.timestamp())
            if tick > second:  # from within a repeated hour, the first time is before it
                second = tick
                yield tick


def due_ticks(
    timing: Timing, catch_up: CatchUp, due: int, now: int
) -> tuple[list[int], int | None]:
    """Return the ticks to fire, of those from `due` to `now`, and the next tick after them.

    Ticks that are at most `GRACE` seconds late are on time, and fire. Earlier ones are missed: all of
    them fire, or the last one unless a later tick is on time, or none. At most `MOST_TICKS` fire: the
    next tick may be due as well. It is `None` if there is none.
    """
    if catch_up == "all":
        fired = [*islice(_between(timing, due, due, now), MOST_TICKS)]
        return fired, next(timing.after(fired[-1]), None)
    fired = [*_between(timing, due, now - GRACE, now)]
    if not fired and catch_up == "last":
        span = 3600  # longer and longer times before now, rather than all ticks since `due`
        while not (missed := [*_between(timing, due, now - span, now)]):
            span *= 24
        fired = missed[-1:]
    return fired, next(timing.after(now), None)


def _between(timing: Timing, due: int, first: int, last: int) -> Iterator[int]:
    """Yield the ticks from `due` that are in this time, both ends included."""
    later = timing.after(max(due, first - 1))
    return takewhile(lambda tick: tick <= last, chain([due], later) if first <= due else later)
