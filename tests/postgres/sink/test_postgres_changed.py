"""Values that asyncpg would change: each fails its row alone, and its neighbours are stored.
Compared by the server's own SELECT.

White box: the zone of a record batch has the name that Spark's part gives it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("asyncpg")
import numpy as np  # noqa: E402
from asyncpg import BitString, Range  # noqa: E402
from tests.postgres.sink.postgres_help import database, written  # noqa: E402

from sluicegate import ArrowBatch, PermanentError, send  # noqa: E402
from sluicegate._core.arrow import TIME_ZONE  # noqa: E402

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


@dataclass
class RelativeDelta:
    """For example of dateutil: asyncpg reads the last three fields."""

    months: int = 0
    hours: int = 0
    days: int = 0
    seconds: int = 0
    microseconds: int = 0


TOKYO = dt.timezone(dt.timedelta(hours=9))
ID = "12345678-1234-5678-1234-567812345678"
DAY = dt.date(2026, 1, 2)
AT = dt.datetime(2026, 1, 2, 3, 4)
HOUR = dt.time(3, 4)
ZONED = HOUR.replace(tzinfo=TOKYO)

COLUMNS = {
    "day": "date",
    "hour": "time",
    "zoned": "timetz",
    "size": "int",
    "code": "oid",
    "price": "numeric",
    "span": "interval",
}
BAD: list[tuple[str, Any, str]] = [
    ("day", AT, "time of day"),
    ("hour", AT, "a date"),
    ("hour", ZONED, "with a zone"),
    ("zoned", AT.replace(tzinfo=dt.UTC), "a date"),
    ("size", 1.5, "not a whole number"),
    ("size", Decimal("2.5"), "not a whole number"),
    ("size", np.float64(1.5), "not a whole number"),
    ("size", np.float32(1.5), "not a whole number"),
    ("size", Fraction(3, 2), "not a whole number"),
    ("code", 1.5, "not a whole number"),
    ("price", Decimal("1e200000"), "131,072 digits"),
    ("price", "-1e131072", "131,072 digits"),
    ("span", RelativeDelta(months=1), "months of a RelativeDelta"),
    ("span", RelativeDelta(hours=30), "hours of a RelativeDelta"),
]
"""Columns, values that would be changed there, and texts in their errors."""
GOOD: list[tuple[str, Any, str]] = [
    ("day", DAY, "2026-01-02"),
    ("day", dt.datetime(2026, 1, 2), "2026-01-02"),
    ("hour", HOUR, "03:04:00"),
    ("hour", dt.time(), "00:00:00"),
    ("zoned", ZONED, "03:04:00+09"),
    ("size", 2.0, "2"),
    ("size", Decimal(3), "3"),
    ("size", np.int64(4), "4"),
    ("size", Fraction(10, 2), "5"),
    ("code", 6.0, "6"),
    ("size", None, ""),
    ("price", Decimal("0.10"), "0.10"),
    ("price", "1e5", "100000"),
    ("price", Decimal("NaN"), "NaN"),
    ("span", dt.timedelta(1, 2), "1 day 00:00:02"),
    ("span", RelativeDelta(days=3), "3 days"),
]
WAYS: dict[str, dict[str, Any]] = {
    "parameters": {"statement": "values"},
    "arrays": {"statement": "unnest"},
    "replaced from arrays": {"statement": "unnest", "on_conflict": "update"},
    "COPY": {"statement": "copy"},
    "staging": {"statement": "copy", "on_conflict": "update"},
}


def _row(number: int, column: str, value: Any) -> tuple[Any, ...]:
    return (number, *(value if name == column else None for name in COLUMNS))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_sent_again", [False, True], ids=["once", "again"])
async def test_a_value_that_would_be_changed_fails_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str, *, is_sent_again: bool
) -> None:
    shape = "id int PRIMARY KEY, " + ", ".join(f"{n} {kind}" for n, kind in COLUMNS.items())
    given = [*GOOD, *BAD]
    rows = [_row(number, name, value) for number, (name, value, _) in enumerate(given)]
    async with database(embedded_postgres.dsn, shape) as db:
        async with db.sink(("id", *COLUMNS), **WAYS[way]) as sink:
            errors = await written(sink, rows, range(len(rows)) if is_sent_again else ())
        found = await db.con.fetch(
            f"SELECT concat({', '.join(COLUMNS)}) FROM {db.table} ORDER BY id"
        )
    assert [each[0] for each in found] == [text for _, _, text in GOOD]
    assert [*errors] == [*range(len(GOOD), len(given))]
    for number, (name, _, told) in enumerate(BAD, len(GOOD)):
        assert isinstance(errors[number], PermanentError)
        assert f"column '{name}'" in str(errors[number])
        assert told in str(errors[number])


@pytest.mark.parametrize(
    ("kind", "bad", "good", "stored"),
    [
        ("int[]", [[1.5], ([1], [2.5]), np.array([[0.5]])], [[1], [None]], ["{1}", "{NULL}"]),
        ("date[]", [[AT], [None, AT]], [[DAY], []], ["{2026-01-02}", "{}"]),
        ("xid", [1.5], [2], ["2"]),
        ("int4range", [Range(1.5, 3), (1, 3.5)], [Range(1.0, 3), (None, 3)], ["[1,3)", "(,4)"]),
        ("daterange", [Range(AT)], [Range(DAY), None], ["[2026-01-02,)", None]),
        ("daterange[]", [[Range(AT)]], [[Range(DAY)]], ['{"[2026-01-02,)"}']),
        ("time[]", [[AT], [ZONED]], [[HOUR, None]], ["{03:04:00,NULL}"]),
        ("numeric[]", [[1, Decimal("1e200000")]], [[Decimal("1.0"), None]], ["{1.0,NULL}"]),
        (
            "point",
            [(1, 2, 3), b"ab", BitString.frombytes(b"\x80", 2)],
            [(1, 2), [3, 4], None],
            ["(1,2)", "(3,4)", None],
        ),
        (
            "lseg",
            [((1, 2), (3, 4), (5, 6)), ((1, 2, 3), (4, 5))],
            [((1, 2), (3, 4))],
            ["[(1,2),(3,4)]"],
        ),
        ("circle", [((1, 2), 3, 4), ((1, 2, 9), 3)], [((1, 2), 3)], ["<(1,2),3>"]),
        ("line", [(1, 2, 3, 4), b"abc"], [(1, 2, 3)], ["{1,2,3}"]),
        ("polygon", [((1, 2, 3),), [b"ab"]], [((1, 2), (3, 4)), None], ["((1,2),(3,4))", None]),
        ("uuid", [BitString.frombytes(b"\x80", 2)], [ID, UUID(ID), None], [ID, ID, None]),
    ],
)
@pytest.mark.parametrize(
    "way",
    ["parameters", *(pytest.param(each, marks=pytest.mark.long) for each in ("COPY", "staging"))],
)
async def test_arrays_and_ranges_are_checked_by_their_elements(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    kind: str,
    bad: list[Any],
    good: list[Any],
    stored: list[str],
    way: str,
) -> None:
    async with database(embedded_postgres.dsn, f"id int PRIMARY KEY, word {kind}") as db:
        async with db.sink(**WAYS[way]) as sink:
            errors = await written(sink, [*enumerate([*bad, *good])])
        found = await db.con.fetch(f"SELECT word::text FROM {db.table} ORDER BY id")
    assert [*errors] == [*range(len(bad))]
    assert {type(error) for error in errors.values()} == {PermanentError}
    assert [each[0] for each in found] == stored


@pytest.mark.parametrize("extra", ["int", "interval"], ids=["columns", "rows"])
@pytest.mark.parametrize("mode", ["error", "update"])
async def test_a_date_takes_no_time_of_day_from_a_column_of_timestamps(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, extra: str, mode: str
) -> None:
    """The zone of the record batch determines when its days begin."""
    midnight = dt.datetime(2026, 1, 2)
    instant = dt.datetime(2026, 1, 1, 15, tzinfo=dt.UTC)  # midnight in Tokyo
    given = pa.record_batch(
        {
            "id": pa.array(range(5), pa.int32()),
            "day": pa.array([midnight, AT, None, None, None], pa.timestamp("us")),
            "there": pa.array([None, None, instant, AT, None], pa.timestamp("ms", "UTC")),
            "days": pa.array([[midnight], None, [], None, [AT]], pa.list_(pa.timestamp("s"))),
            "extra": pa.nulls(5, pa.int32() if extra == "int" else pa.duration("us")),
        }
    ).replace_schema_metadata({TIME_ZONE: b"Asia/Tokyo"})
    shape = f"id int PRIMARY KEY, day date, there date, days date[], extra {extra}"
    async with database(embedded_postgres.dsn, shape) as db:
        async with db.sink(given.schema.names, on_conflict=mode) as sink:
            errors = await send(sink, ArrowBatch(given))
        found = await db.con.fetch(f"SELECT id, day, there, days FROM {db.table} ORDER BY id")
    assert {index: str(error).split(":")[0] for index, error in errors.items()} == {
        1: "column 'day'",
        3: "column 'there'",
        4: "column 'days'",
    }
    assert [tuple(row) for row in found] == [(0, DAY, None, [DAY]), (2, None, DAY, [])]


async def test_a_column_that_takes_times_by_now_has_them(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """No row fails because of the type that its column had when the sink was opened."""
    async with database(embedded_postgres.dsn, "id int, word date") as db:
        for way in ("parameters", "arrays", "COPY"):
            await db.con.execute(
                f"TRUNCATE {db.table}; ALTER TABLE {db.table} ALTER word TYPE date"
            )
            async with db.sink(**WAYS[way]) as sink:
                assert await written(sink, [(0, DAY)]) == {}
                await db.con.execute(f"ALTER TABLE {db.table} ALTER word TYPE timestamp")
                assert await written(sink, [(1, AT)]) == {}
            assert (await db.rows())[1] == (1, AT), way


@pytest.mark.usefixtures("encoder")
@pytest.mark.parametrize(
    ("place", "changes"),
    [(10, {"day": AT}), (10, {"hour": ZONED}), (1500, {"day": AT}), (1500, {"hour": ZONED})],
    ids=["day", "hour", "day behind the first piece", "hour behind the first piece"],
)
async def test_rows_that_are_packed_are_checked_before_asyncpg_sends_them(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    place: int,
    changes: dict[str, Any],
) -> None:
    """The extension declines the first batch and is not given the second."""
    shape = "id int PRIMARY KEY, at timestamptz, day date, hour time"
    good = {"at": AT.replace(tzinfo=dt.UTC), "day": DAY, "hour": HOUR}
    rows = [{"id": number, **good} for number in range(2000)]
    rows[place] |= changes
    async with database(embedded_postgres.dsn, shape) as db:
        async with db.sink(("id", *good), statement="copy") as sink:
            for _ in range(2):
                errors = await written(sink, rows)
                assert [*errors] == [place]
                assert f"column '{next(iter(changes))}'" in str(errors[place])
                found = await db.con.fetchrow(f"SELECT count(*), sum(id) FROM {db.table}")
                assert tuple(found) == (1999, sum(range(2000)) - place)
                await db.con.execute(f"TRUNCATE {db.table}")
