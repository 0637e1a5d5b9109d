"""Ticks of schedules: cron expressions, nights of daylight saving time, intervals, missed ticks.

White box: the pure part, compared with a search through all minutes.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from itertools import islice, pairwise
from operator import eq
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ConfigError
from sluicegate.errors import MissingExtra
from sluicegate.postgres.queues.ticks import GRACE, MOST_TICKS, CatchUp, Timing, due_ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINUTE, HOUR = 60, 3600
SPRING, AUTUMN = "2026-03-29", "2026-10-25"
"""The nights in Berlin, in which clocks go from 02:00 to 03:00 and from 03:00 to 02:00."""


def second(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def ticks(cron: str, start: str, end: str, zone: str = "Europe/Berlin") -> list[str]:
    """The ticks between two times in UTC, in UTC."""
    found: list[str] = []
    for tick in Timing(cron, None, zone).after(second(start) - 1):
        if tick > second(end):
            break
        found.append(datetime.fromtimestamp(tick, UTC).strftime("%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("cron", "night", "expected"),
    [
        # 02:30 does not exist: at 03:00, which is 01:00 in UTC
        ("30 2 * * *", SPRING, ["01:00"]),
        # three times that do not exist are one tick, also with one at the end of the gap
        ("0,15,30 2 * * *", SPRING, ["01:00"]),
        ("30 2,3 * * *", SPRING, ["01:00", "01:30"]),
        # 02:30 exists twice: the first one
        ("30 2 * * *", AUTUMN, ["00:30"]),
        ("0,30 2,3 * * *", AUTUMN, ["00:00", "00:30", "02:00", "02:30"]),
        # the running time
        ("*/30 2 * * *", SPRING, []),
        ("30 * * * *", SPRING, ["00:30", "01:30", "02:30"]),
        ("*/30 2 * * *", AUTUMN, ["00:00", "00:30", "01:00", "01:30"]),
        ("30 * * * *", AUTUMN, ["00:30", "01:30", "02:30"]),
    ],
)
def test_a_night_of_daylight_saving_time(cron: str, night: str, expected: list[str]) -> None:
    found = ticks(cron, f"{night}T00:00", f"{night}T02:59")
    assert found == [f"{night[5:]} {each}" for each in expected]


def test_a_day_that_begins_after_midnight_has_its_ticks() -> None:
    """Clocks go from midnight to 01:00, which is 05:00 in UTC."""
    night = ("2026-03-08T04:00", "2026-03-08T05:59", "America/Havana")
    assert ticks("0 0 * * SUN", *night) == ["03-08 05:00"]
    assert ticks("*/30 1 * * SUN", *night) == ["03-08 05:00", "03-08 05:30"]
    assert ticks("*/30 0 * * SUN", *night) == []


def test_days_of_months_and_names() -> None:
    year = ("2026-01-01", "2026-12-31T23:59", "UTC")
    assert ticks("0 0 29 2 *", "2026-01-01", "2032-12-31", "UTC") == ["02-29 00:00"] * 2
    assert ticks("0 9 L FEB *", *year) == ["02-28 09:00"]
    assert ticks("0 9 LW FEB *", *year) == ["02-27 09:00"]
    assert ticks("0 9 * MAR MON#1", *year) == ["03-02 09:00"]
    assert ticks("0 9 * mar 5L", *year) == ["03-27 09:00"]
    # two days that do not begin with a star: either of them
    assert ticks("0 9 1 3 MON", *year) == [
        f"03-{day} 09:00" for day in ["01", "02", "09", "16", "23", "30"]
    ]


FIELDS: dict[str, tuple[str, ...]] = {
    "minute": ("*", "*/20", "0", "30", "5,35", "10-12"),
    "hour": ("*", "*/3", "0", "2", "1-3", "23"),
    "day": ("*", "25-31"),
    "weekday": ("*", "SUN", "1-5"),
}
NIGHTS = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),  # by half an hour
    "America/Havana": ("2026-03-08", "2026-11-01"),  # at midnight
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),
    "Africa/Cairo": ("2026-04-24", "2026-10-30"),
    "UTC": ("2026-03-29",),
    "Asia/Kolkata": ("2026-03-29",),
}
"""Transitions of each time zone."""
VALUES: dict[str, Callable[[int], bool]] = {
    **dict.fromkeys(("*",), lambda _: True),
    "*/20": lambda n: n % 20 == 0,
    "*/3": lambda n: n % 3 == 0,
    "5,35": lambda n: n in (5, 35),
    "10-12": lambda n: 10 <= n <= 12,
    "1-3": lambda n: 1 <= n <= 3,
    "25-31": lambda n: n >= 25,
    "SUN": lambda n: n == 0,
    "1-5": lambda n: 1 <= n <= 5,
    **{str(n): partial(eq, n) for n in (0, 2, 23, 30)},
}


HOURS = 36
"""The hours of a search. They begin 12 before the day of a transition."""


def has_star(fields: list[str]) -> bool:
    return fields[0].startswith("*") or fields[1].startswith("*")


def matches(fields: list[str], local: datetime) -> bool:
    parts = (local.minute, local.hour, local.day, local.isoweekday() % 7)
    fits = [VALUES[field](part) for field, part in zip(fields, parts, strict=True)]
    is_either = "*" not in fields[2:]
    return fits[0] and fits[1] and (fits[2] or fits[3] if is_either else fits[2] and fits[3])


def search(fields: list[str], zone: ZoneInfo, begin: datetime) -> Iterator[int]:
    """The ticks of `HOURS`: of the times of each day, or of the minutes of the running time."""
    if has_star(fields):
        for minute in range(HOURS * 60):
            now = begin + timedelta(minutes=minute)
            if matches(fields, now.astimezone(zone)):
                yield int(now.timestamp())
        return
    for minute in range(-24 * 60, (HOURS + 24) * 60):
        local = begin.replace(tzinfo=None) + timedelta(minutes=minute)
        if matches(fields, local):
            while (there := local.replace(tzinfo=zone)).astimezone(UTC).astimezone(zone).replace(
                tzinfo=None
            ) != local:
                local += timedelta(minutes=1)  # within a gap
            yield int(there.timestamp())


@given(
    st.tuples(*(st.sampled_from(each) for each in FIELDS.values())),
    st.sampled_from([(zone, night) for zone, nights in NIGHTS.items() for night in nights]),
    st.integers(0, HOURS * HOUR),
)
def test_ticks_are_those_of_a_search_from_wherever_they_are_computed(
    fields: tuple[str, ...], place: tuple[str, str], start: int
) -> None:
    zone, night = place
    minute, hour, day, weekday = fields
    first = datetime.combine(date.fromisoformat(night), time(), UTC) - timedelta(hours=12)
    begin = int(first.timestamp())
    end = begin + HOURS * HOUR
    wanted = sorted({*search([*fields], ZoneInfo(zone), first)})
    wanted = [each for each in wanted if begin + start < each < end]
    timing = Timing(f"{minute} {hour} {day} * {weekday}", None, zone)
    found = [*islice(timing.after(begin + start), len(wanted) + 1)]
    assert found[: len(wanted)] == wanted
    assert found[-1] >= end
    assert all(one < other for one, other in pairwise(found))


def test_an_interval_has_its_multiples_since_the_epoch() -> None:
    timing = Timing(None, timedelta(hours=1))
    assert [*islice(timing.after(second("2026-01-01T00:10")), 2)] == [
        second("2026-01-01T01:00"),
        second("2026-01-01T02:00"),
    ]
    assert next(timing.after(HOUR)) == 2 * HOUR


MINUTELY, HOURLY = Timing("* * * * *", None), Timing(None, timedelta(hours=1))


@pytest.mark.parametrize(
    ("catch_up", "due", "now", "expected"),
    [
        ("all", 2 * HOUR, 5 * HOUR + 61, [2, 3, 4, 5]),
        ("last", 2 * HOUR, 5 * HOUR + 61, [5]),
        ("none", 2 * HOUR, 5 * HOUR + 61, []),
        # a tick that is at most a minute late is on time, and no missed one fires beside it
        ("last", 2 * HOUR, 5 * HOUR + 60, [5]),
        ("none", 2 * HOUR, 5 * HOUR + 60, [5]),
        ("none", 2 * HOUR, 2 * HOUR, [2]),
        ("last", 2 * HOUR, 2000 * HOUR + 61, [2000]),
    ],
)
def test_missed_ticks(catch_up: CatchUp, due: int, now: int, expected: list[int]) -> None:
    fired, following = due_ticks(HOURLY, catch_up, due, now)
    assert fired == [hour * HOUR for hour in expected]
    assert following == (now // HOUR + 1) * HOUR


def test_each_tick_of_the_last_minute_is_on_time() -> None:
    timing = Timing(None, timedelta(seconds=1))
    fired, following = due_ticks(timing, "none", 1000, 10_000)
    assert fired == [*range(10_000 - GRACE, 10_001)]
    assert following == 10_001


def test_many_missed_ticks_fire_in_parts() -> None:
    fired, following = due_ticks(MINUTELY, "all", MINUTE, 5000 * MINUTE)
    assert len(fired) == MOST_TICKS
    assert following == fired[-1] + MINUTE


def test_ticks_that_are_on_time_fire_in_parts() -> None:
    timing = Timing(None, timedelta(seconds=1))
    for catch_up in ("last", "none"):
        assert due_ticks(timing, catch_up, 1000, 1005, 2) == ([1000, 1001], 1002)
        assert due_ticks(timing, catch_up, 1004, 1005, 2) == ([1004, 1005], 1006)


def test_the_last_of_many_missed_ticks_is_found_without_computing_all() -> None:
    """A century of minutes would take minutes."""
    late = second("2100-02-28T23:59") + GRACE + 59
    yearly = Timing("59 23 28 2 *", None)
    assert due_ticks(yearly, "last", 0, late)[0] == [late - GRACE - 59]
    assert due_ticks(MINUTELY, "last", 0, late)[0] == [late - 59]


@pytest.mark.parametrize(
    ("cron", "every", "zone", "message"),
    [
        (None, None, "UTC", "cron"),
        ("* * * * *", timedelta(1), "UTC", "cron"),
        ("* * * *", None, "UTC", "five fields"),
        ("0 * * * * *", None, "UTC", "five fields"),
        ("60 * * * *", None, "UTC", "five fields.*minute"),
        ("*/L * * * *", None, "UTC", "five fields"),
        ("@daily", None, "UTC", "five fields"),
        ("0 0 30 2 *", None, "UTC", "day-of-month"),
        ("* * */20 2 1L", None, "UTC", "50 years"),
        ("* * * * *", None, "Europe/Atlantis", "timezone.*IANA"),
        ("* * * * *", None, "../etc/passwd", "timezone"),
        # its leap seconds, and the setting of each machine
        ("* * * * *", None, "right/Europe/Berlin", "timezone"),
        ("* * * * *", None, "localtime", "timezone"),
        (None, timedelta(hours=1), "Europe/Berlin", "timezone"),
        (None, timedelta(seconds=1.5), "UTC", "whole number"),
        (None, timedelta(0), "UTC", "every"),
    ],
)
def test_what_is_no_time_is_refused(
    cron: str | None, every: timedelta | None, zone: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Timing(cron, every, zone)


def test_a_missing_cronsim_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match="cronsim"):
        Timing("* * * * *", None)


def test_utc_needs_no_database_of_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr("sluicegate.postgres.queues.ticks.ZoneInfo", find)
    assert next(Timing("* * * * *", None).after(0)) == MINUTE
    with pytest.raises(ConfigError, match="tzdata"):
        Timing("* * * * *", None, "Europe/Berlin")
