"""Arrow columns and Python rows in PostgreSQL: the same value on both paths, or a refusal of one
row.

White box: the arithmetic of local times, without a server.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("asyncpg")
import numpy as np  # noqa: E402
from tests.postgres.sink.postgres_help import database, written  # noqa: E402
from tests.properties import examples  # noqa: E402

from sluicegate import ArrowBatch, send  # noqa: E402
from sluicegate._core.arrow import TIME_ZONE  # noqa: E402
from sluicegate.postgres.sink.rows.casts import instants, local  # noqa: E402

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

BROKEN = pa.array([b"a", b"\xffA", b"c"], pa.binary()).view(pa.string())
NEW_YORK = "America/New_York"


def columns(zone: str | None = None, **values: Any) -> ArrowBatch:
    batch = pa.record_batch(
        {"id": pa.array(range(len(next(iter(values.values())))), pa.int32()), **values}
    )
    return ArrowBatch(
        batch if zone is None else batch.replace_schema_metadata({TIME_ZONE: zone.encode()})
    )


async def stored(
    dsn: str, kind: str, values: Any, *, way: str, zone: str | None = None
) -> tuple[dict[int, str], dict[int, str | None]]:
    """The errors, and the table as text, by row index. A column without an encoder forces the row
    path.
    """
    async with database(dsn, f"id int, v {kind}, i interval") as db:
        names = ("id", "v", "i") if way == "rows" else ("id", "v")
        batch = columns(zone, v=values, i=pa.array([dt.timedelta(1)] * len(values)))
        async with db.sink(names) as sink:
            errors = await send(sink, batch)
        found = await db.con.fetch(f"SELECT id, v::text FROM {db.table}")
        return {index: str(error) for index, error in errors.items()}, {
            row[0]: row[1] for row in found
        }


ENDS = pa.array([-719_162, 2_932_896, None], pa.int32()).cast(pa.date32())
"""The first and the last day of Python's calendar, which asyncpg treats as infinity."""
LAST_MOMENTS = pa.array(
    [-62_135_596_800_000_000, 253_402_300_799_999_999, 253_402_300_799_000_000, 0], pa.int64()
)
DAYS = pa.array([0, 3_000_000, 2**31 - 1, -(2**31), -800_000, None], pa.int32())
MICROS = pa.array([0, 10**18, 2**63 - 1, -(2**63), -70_000_000_000_000_000, None], pa.int64())
TOO = "is out of range for"
POISON: dict[str, tuple[str, Any, dict[int, str], dict[int, str], list[int]]] = {
    # the column, its values, the refused ones, the stored text of the others, and those refused on
    # the row path only
    "text": ("text", BROKEN, {1: "holds bytes that are not UTF-8"}, {0: "a", 2: "c"}, []),
    "varchar": ("varchar(3)", BROKEN, {1: "holds bytes that are not UTF-8"}, {0: "a"}, []),
    "jsonb": (
        "jsonb",
        pa.array([b"1", b"\xff"], pa.binary()).view(pa.string()),
        {1: "not UTF-8"},
        {0: "1"},
        [],
    ),
    "array": (
        "text[]",
        pa.ListArray.from_arrays([0, 1, 3], BROKEN),
        {1: "an element holds bytes that are not UTF-8"},
        {0: "{a}"},
        [],
    ),
    "array of NUL": (
        "text[]",
        pa.array([["a"], ["b", "\0"]]),
        {1: "an element holds a NUL character"},
        {0: "{a}"},
        [],
    ),
    "date": (
        "date",
        DAYS.cast(pa.date32()),
        {2: TOO, 3: TOO},
        {1: "10183-09-21", 4: "0222-09-04 BC"},
        [1, 4],
    ),
    "timestamp": (
        "timestamp",
        MICROS.cast(pa.timestamp("us")),
        {3: TOO},
        {1: "33658-09-27 01:46:40"},
        [1, 2, 4],
    ),
    "instant": (
        "timestamptz",
        MICROS.cast(pa.timestamp("us", NEW_YORK)),
        {3: TOO},
        {0: "1970-01-01 00:00:00+00"},
        [1, 2, 4],
    ),
    "date to timestamp": (
        "timestamp",
        DAYS.cast(pa.date32()),
        {2: TOO, 3: TOO},
        {1: "10183-09-21 00:00:00"},
        [1, 4],
    ),
    "real": (
        "real",
        pa.array([1e300, float("inf"), float("nan"), 0.1]),
        {0: TOO},
        {1: "Infinity", 2: "NaN", 3: "0.1"},
        [],
    ),
    "decimal to int": (
        "int",
        pa.array([Decimal(2**31), Decimal(-5), None], pa.decimal128(38, 0)),
        {0: TOO},
        {1: "-5"},
        [],
    ),
    "float to int": (
        "int",
        pa.array([float("nan"), 1.0, 0.75]),
        {0: TOO, 2: "is not a whole number"},
        {1: "1"},
        [],
    ),
    "decimal with a fraction": (
        "int",
        pa.array([Decimal("0.75"), Decimal("4.00")]),
        {0: "is not a whole number"},
        {1: "4"},
        [],
    ),
    "38 digits": (
        "numeric",
        pa.array([Decimal(10**38 - 1), Decimal(-1)], pa.decimal128(38, 0)),
        {},
        {0: "9" * 38, 1: "-1"},
        [],
    ),
    "38 places": (
        "numeric",
        pa.array([Decimal("0." + "0" * 37 + "1"), None], pa.decimal128(38, 38)),
        {},
        {0: "0." + "0" * 37 + "1"},
        [],
    ),
    "first and last day": ("date", ENDS, {}, {0: "0001-01-01", 1: "9999-12-31"}, [0, 1]),
    "first and last day in arrays": (
        "date[]",
        pa.ListArray.from_arrays([0, 2, 3], ENDS),
        {0: "that asyncpg would send as infinity"},
        {},
        [],
    ),
    "first and last moment": (
        "timestamp",
        LAST_MOMENTS.cast(pa.timestamp("us")),
        {},
        {0: "0001-01-01 00:00:00", 1: "9999-12-31 23:59:59.999999", 2: "9999-12-31 23:59:59"},
        [0, 1],
    ),
    "decimal to real": (
        "real",
        pa.array([Decimal("0.690"), Decimal("0.999")], pa.decimal128(3, 3)),
        {},
        {0: "0.69", 1: "0.999"},
        [],
    ),
    "decimal to double": (
        "double precision",
        pa.array([Decimal("767.18"), None], pa.decimal128(5, 2)),
        {},
        {0: "767.18"},
        [],
    ),
    "arrays without an element": (
        "numeric[]",
        pa.array([[], None], pa.list_(pa.decimal128(9, 2))),
        {},
        {0: "{}"},
        [],
    ),
    "duration": ("interval", pa.array([2**63 - 1, 0], pa.duration("us")), {}, {1: "00:00:00"}, []),
}


@pytest.mark.parametrize(
    ("what", "way"),
    [
        *((what, "columns") for what in POISON),
        *(
            pytest.param(what, "rows", marks=() if only_rows else (pytest.mark.long,))
            for what, (*_, only_rows) in POISON.items()
        ),
    ],
)
async def test_what_cannot_be_carried_is_refused_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, what: str, way: str
) -> None:
    """P-T10, P-T19: the error names the column and the reason; neighbours are stored, on both
    paths.
    """
    kind, values, refused, texts, only_rows = POISON[what]
    errors, found = await stored(embedded_postgres.dsn, kind, values, way=way)
    beyond = [] if way == "columns" else only_rows
    assert sorted(errors) == sorted({*refused, *beyond})
    beyond_python = (
        "that asyncpg would send as infinity"
        if what.startswith("first and last")
        else "that Python has no object for"
    )
    for index, why in {**dict.fromkeys(beyond, beyond_python), **refused}.items():
        assert why in errors[index]
        assert errors[index].startswith("column 'v': ")
    assert sorted(found) == [index for index in range(len(values)) if index not in errors]
    assert {index: text for index, text in found.items() if index in texts} == {
        i: text for i, text in texts.items() if i not in beyond
    }


@pytest.mark.parametrize("mode", ["error", "update"])
async def test_a_batch_taken_apart_keeps_what_only_columns_hold(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: Literal["error", "update"]
) -> None:
    """Rows refused by the server affect neither the last day of Python's calendar nor later
    days.
    """
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, v date, n int CHECK (n < 100)") as db,
        db.sink(("id", "v", "n"), on_conflict=mode) as sink,
    ):
        days = pa.array([2_932_896, 3_000_000] * 100, pa.int32()).cast(pa.date32())
        errors = await send(
            sink, columns(v=days, n=pa.array([100 * (index % 10 == 0) for index in range(200)]))
        )
        assert sorted(errors) == [*range(0, 200, 10)]
        assert all("check" in str(error) for error in errors.values())
        found = await db.con.fetch(
            f"SELECT v::text, count(*) FROM {db.table} GROUP BY v ORDER BY 1"
        )
        assert [tuple(row) for row in found] == [("10183-09-21", 100), ("9999-12-31", 80)]


async def test_a_batch_of_json_taken_apart_refuses_only_what_is_none(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    texts = ["{}" if index % 2 else "none" for index in range(20)]
    errors, found = await stored(embedded_postgres.dsn, "jsonb", pa.array(texts), way="columns")
    assert sorted(errors) == [*range(0, 20, 2)]
    assert found == dict.fromkeys(range(1, 20, 2), "{}")


FLOATS = [
    0.1,
    1 / 3,
    1e300,
    -5e-324,
    1e22,
    123456789.125,
    3.0,
    -0.0,
    float("nan"),
    float("inf"),
    -float("inf"),
]


@pytest.mark.parametrize("size", [1, 10])
async def test_a_double_is_stored_as_the_shortest_decimal(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, size: int
) -> None:
    """As columns, as rows beside a column without encoder, and as tuples by INSERT and COPY."""
    dsn = embedded_postgres.dsn
    expected = [Decimal(repr(each)) for each in FLOATS] * size
    found: list[list[Any]] = []
    for way in ("columns", "rows"):
        texts = (await stored(dsn, "numeric", pa.array(FLOATS * size), way=way))[1]
        found.append([Decimal(texts[index] or "") for index in range(len(expected))])
    async with (
        database(dsn, "id int, v numeric, a numeric[]") as db,
        db.sink(("id", "v", "a")) as sink,
    ):
        assert (
            await written(
                sink, [(index, each, [each, None]) for index, each in enumerate(FLOATS * size)]
            )
            == {}
        )
        rows = await db.rows("1")
        found += [[row[1] for row in rows], [row[2][0] for row in rows]]
    for stored_ones in found:
        assert [str(a) if a.is_nan() else a for a in stored_ones] == [
            str(e) if e.is_nan() else e for e in expected
        ]
    narrow = pa.array(np.array([0.1, 16777216.0, 1e-45, 3.4e38], np.float32))
    for way in ("columns", "rows"):
        texts = (await stored(dsn, "numeric", narrow, way=way))[1]
        assert [Decimal(texts[index] or "") for index in range(4)] == [
            Decimal(t) for t in ("0.1", "16777216", "1e-45", "3.4e38")
        ]


async def test_other_rows_keep_their_numbers(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int, v numeric(30, 20), f float8") as db,
        db.sink(("id", "v", "f")) as sink,
    ):
        rows = [(1, Decimal("0.10"), 0.1), (2, 7, 0.5), (3, None, None), (4, 0.1, 2.0)]
        assert await written(sink, rows) == {}
        assert await db.rows("1") == [
            (1, Decimal("0.1"), 0.1),
            (2, Decimal(7), 0.5),
            (3, None, None),
            (4, Decimal("0.1"), 2.0),
        ]


# -- zones -----------------------------------------------------------------------------------------


def in_micros(*texts: str) -> list[int]:
    return [
        int(
            (dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1))
            / dt.timedelta(microseconds=1)
        )
        for text in texts
    ]


WALLS = in_micros(
    "2026-03-08T01:30",
    "2026-03-08T02:30",
    "2026-03-08T03:30",
    "2026-11-01T00:30",
    "2026-11-01T01:30",
    "2026-11-01T02:30",
)
INSTANTS = ["06:30", "07:30", "07:30", "04:30", "05:30", "07:30"]


@pytest.mark.parametrize("way", ["columns", "rows"])
async def test_local_times_and_instants_go_by_the_zone_of_the_rows(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    """A skipped hour is moved forward, of a repeated one the first is used; without a zone it is
    UTC.
    """
    dsn = embedded_postgres.dsn
    naive = pa.array(WALLS, pa.int64()).cast(pa.timestamp("us"))
    found = (await stored(dsn, "timestamptz", naive, way=way, zone=NEW_YORK))[1]
    assert [(found[index] or "")[11:16] for index in range(6)] == INSTANTS
    found = (await stored(dsn, "timestamptz", naive, way=way))[1]
    assert found[1] == "2026-03-08 02:30:00+00"
    instant = pa.array([0, None, *in_micros("2026-07-01T03:00")], pa.int64()).cast(
        pa.timestamp("us", NEW_YORK)
    )
    expected = {0: "1969-12-31 19:00:00", 1: None, 2: "2026-06-30 23:00:00"}
    assert (await stored(dsn, "timestamp", instant, way=way, zone=NEW_YORK))[1] == expected
    midnights = [*in_micros("1969-12-31T05:00"), None, *in_micros("2026-06-30T04:00")]
    dates = pa.array(midnights, pa.int64()).cast(pa.timestamp("us", NEW_YORK))
    assert (await stored(dsn, "date", dates, way=way, zone=NEW_YORK))[1] == {
        0: "1969-12-31",
        1: None,
        2: "2026-06-30",
    }
    days = pa.array([dt.date(2026, 7, 1), None, dt.date(1800, 1, 1)])
    assert (await stored(dsn, "timestamptz", days, way=way, zone=NEW_YORK))[1][
        0
    ] == "2026-07-01 04:00:00+00"
    lists = pa.ListArray.from_arrays([0, 2, 2, 6], naive)
    assert (await stored(dsn, "timestamptz[]", lists, way=way, zone=NEW_YORK))[1][
        0
    ] == '{"2026-03-08 06:30:00+00","2026-03-08 07:30:00+00"}'


@pytest.mark.parametrize("zone", ["Australia/Lord_Howe", "America/New_York", "+18:00", "-18:00"])
def test_the_ends_of_pythons_calendar_have_local_times_too(zone: str) -> None:
    """They are beyond the calendar, where only the offset is known: that of 400 years before or
    after.
    """
    cycle = 146_097 * 86_400_000_000
    for moment in (
        *LAST_MOMENTS[:3].to_pylist(),
        *in_micros("0001-01-01T12:00", "9999-12-31T12:00"),
    ):
        inward = moment + (cycle if moment < 0 else -cycle)
        for convert in (local, instants):
            assert (
                convert(np.array([moment]), zone)[0] - moment
                == convert(np.array([inward]), zone)[0] - inward
            )


@given(
    moment=st.datetimes(dt.datetime(1900, 1, 2), dt.datetime(9998, 1, 1)),
    zone=st.sampled_from([NEW_YORK, "Asia/Kathmandu", "+05:30"]),
)
@examples(60, long=400)
def test_local_times_are_those_of_python(moment: dt.datetime, zone: str) -> None:
    """The same as for that day 400 or 40,000 years later."""
    known: dt.tzinfo = (
        ZoneInfo(zone) if "/" in zone else dt.timezone(dt.timedelta(hours=5, minutes=30))
    )
    micros = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    expected = (
        moment.replace(tzinfo=dt.UTC).astimezone(known).replace(tzinfo=None)
        - dt.datetime(1970, 1, 1)
    ) // dt.timedelta(microseconds=1)
    assert local(np.array([micros]), zone)[0] == expected
    back = moment.replace(tzinfo=known, fold=0).astimezone(dt.UTC).replace(
        tzinfo=None
    ) - dt.datetime(1970, 1, 1)
    assert instants(np.array([micros]), zone)[0] == back // dt.timedelta(microseconds=1)
    later = 100 * 146_097 * 86_400_000_000
    if moment.year > 2100:
        assert local(np.array([micros + later]), zone)[0] == expected + later


# -- tables that are altered under an open sink ----------------------------------------------------

ALTERED: dict[str, tuple[str, str, Any, Any, Any]] = {
    # the column before, the change, a value for each, and the expected content
    "int to numeric": ("int", "TYPE numeric", 1, Decimal("0.75"), Decimal("0.75")),
    "int to double": ("bigint", "TYPE float8", 1, 0.75, 0.75),
    "real to double": ("real", "TYPE float8", 1.0, 0.1, 0.1),
    "date to timestamp": (
        "date",
        "TYPE timestamp",
        dt.date(2026, 1, 1),
        dt.datetime(2026, 1, 2, 3, 4, 5),
        dt.datetime(2026, 1, 2, 3, 4, 5),
    ),
    "varchar to text": ("varchar(5)", "TYPE text", "abc", "abcdefgh", "abcdefgh"),
    "int to bigint": ("int", "TYPE bigint", 1, 2**40, 2**40),
    "not null": ("int NOT NULL", "DROP NOT NULL", 1, None, None),
}


@pytest.mark.parametrize(("size", "way"), [(3, "tuples"), (60, "columns"), (60, "columns as rows")])
@pytest.mark.parametrize("what", ALTERED)
async def test_an_open_sink_writes_by_the_types_that_the_table_has_now(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, what: str, size: int, way: str
) -> None:
    """No row is refused because of the old type, and no value is truncated to it: by INSERT and
    COPY, as tuples and as columns.
    """
    before, change, first, second, expected = ALTERED[what]
    async with database(embedded_postgres.dsn, f"id int, v {before}, i interval") as db:

        def batch(value: Any) -> Any:
            kind = (
                pa.decimal128(10, 2)
                if isinstance(value, Decimal)
                else pa.scalar(first if value is None else value).type
            )
            return columns(v=pa.array([value] * size, kind), i=pa.array([dt.timedelta(1)] * size))

        async with db.sink(("id", "v", "i") if way == "columns as rows" else ("id", "v")) as sink:
            for value in (first, second):
                if way == "tuples":
                    assert await written(sink, [(index, value) for index in range(size)]) == {}
                else:
                    assert await send(sink, batch(value)) == {}
                if value is first:
                    await db.con.execute(f"ALTER TABLE {db.table} ALTER v {change}")
                    await db.con.execute(f"DELETE FROM {db.table}")
        assert [row[0] for row in await db.con.fetch(f"SELECT v FROM {db.table}")] == [
            expected
        ] * size
