"""Rows packed by Sluicegate are stored as by asyncpg, byte by byte; all other values are left to
asyncpg.

White box: the extension, without the sink.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import gc
import io
import sys
import tracemalloc
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

asyncpg = pytest.importorskip("asyncpg")
from tests.properties import examples  # noqa: E402

from sluicegate.postgres.copying.rows import Declined, codes_of, pieces  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate.testing import EmbeddedPostgres

pytestmark = [
    pytest.mark.usefixtures("encoder"),
    pytest.mark.parametrize("encoder", ["extension"], indirect=True),
]
DECLARED = {
    "smallint": "smallint",
    "integer": "integer",
    "bigint": "bigint",
    "real": "real",
    "double precision": "double precision",
    "boolean": "boolean",
    "text": "text",
    "character varying": "varchar(40)",
    "character": "char(40)",
    "bpchar": "bpchar",
    "name": "name",
    "bytea": "bytea",
    "json": "json",
    "jsonb": "jsonb",
    "uuid": "uuid",
    "date": "date",
    "time without time zone": "time",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "interval": "interval",
}
HOURS = [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Berlin")]
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
DOCUMENTS = st.sampled_from(['{"a": 1}', "[1, 2]", '"x\\u00e9"', "null", "1.50", ' {"a" : 1} '])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "smallint": st.integers(-(2**15), 2**15 - 1) | st.booleans(),
    "integer": st.integers(-(2**31), 2**31 - 1) | st.booleans(),
    "bigint": st.integers(-(2**63), 2**63 - 1) | st.booleans(),
    "real": st.floats(width=32) | st.integers(-1000, 1000),
    "double precision": st.floats() | st.integers(-1000, 1000) | st.booleans(),
    "boolean": st.booleans(),
    **dict.fromkeys(("text", "character varying", "character", "bpchar", "name"), WORDS),
    "bytea": st.binary(max_size=20),
    "json": DOCUMENTS,
    "jsonb": DOCUMENTS,
    "uuid": st.uuids() | st.uuids().map(str) | st.uuids().map(lambda found: found.hex.upper()),
    "date": st.dates(dt.date(1, 1, 2), dt.date(9999, 12, 30)),
    "time without time zone": st.times(),
    "timestamp without time zone": st.datetimes(),
    "timestamp with time zone": st.datetimes(
        dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29), timezones=st.sampled_from(HOURS)
    ),
    "interval": st.timedeltas(dt.timedelta(days=-(10**8)), dt.timedelta(days=10**8)),
}


class Whole(int):
    def __int__(self) -> int:
        return 7


class Colour(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    A = "a"


class Text(str):
    __slots__ = ()

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        return b"other"


class Moment(dt.datetime):
    pass


class Length(dt.timedelta):
    pass


def _odd() -> list[Any]:
    from asyncpg.pgproto.pgproto import UUID as AsyncpgUUID

    now = dt.datetime(2026, 1, 2, 3, 4, 5, 6)
    found: list[Any] = [
        None, True, 0, 1, -1, 2**15, -(2**15) - 1, 2**31, -(2**31) - 1, 2**63, 2**64, 10**30,
        0.0, -0.0, 1.0, 1.5, 1e300, -1e39, 3.4028235e38, 3.4028236e38, 1e-46, float("inf"), float("-inf"), float("nan"),
        Decimal(1), Decimal("1.5"), Decimal("NaN"), Whole(3), Colour.RED, Word.A, Text("x"),
        "", "x", "é", "\U0001f600", "a\0b", "\ud800", "x" * 41, "1", "{}", "null", "true", "12345678-1234-5678-1234-567812345678",
        "12345678123456781234567812345678", "1-2345678123456781234567812345678---", "{12345678-1234-5678-1234-567812345678}",
        "1234567812345678123456781234567é", " 2345678123456781234567812345678", "123456781234567812345678123456789012",
        b"", b"x", b"\0", bytearray(b"x"), memoryview(b"x"),
        uuid.UUID(int=5), AsyncpgUUID("12345678-1234-5678-1234-567812345678"),
        dt.date(2026, 1, 2), dt.date.min, dt.date.max, dt.date(1, 1, 2), dt.date(9999, 12, 30),
        now, dt.datetime.min, dt.datetime.max, dt.datetime(9999, 12, 31), now.replace(fold=1),
        now.replace(tzinfo=dt.UTC), dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC),
        dt.datetime.max.replace(microsecond=999_998, tzinfo=dt.UTC), dt.datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
        dt.datetime.max.replace(tzinfo=HOURS[1]), dt.datetime.min.replace(tzinfo=HOURS[1]),
        dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))),
        dt.datetime(2025, 10, 26, 2, 30, tzinfo=HOURS[2]), dt.datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=HOURS[2]),
        dt.datetime(2025, 3, 30, 2, 30, tzinfo=HOURS[2]), Moment(2026, 1, 2), Moment(2026, 1, 2, tzinfo=dt.UTC),
        dt.time(1, 2, 3, 4), dt.time(1, 2, tzinfo=dt.UTC), dt.time.max,
        dt.timedelta(0), dt.timedelta(-1, 5, 7), dt.timedelta.max, dt.timedelta.min, Length(1),
        [], [1], (1,), {}, {"a": 1}, object(), int, 1j,
    ]  # fmt: skip
    try:
        import numpy as np
    except ImportError:
        return found
    return [
        *found,
        np.int16(3), np.int64(3), np.float32(1.5), np.float64(1.5), np.bool_(True), np.str_("x"), np.datetime64("2026-01-02"),
    ]  # fmt: skip


def packed(types: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> bytes:
    codes = codes_of(types)
    assert codes is not None
    return b"".join(pieces(codes, rows))


class Pair:
    """Two tables of one type, and a connection to both."""

    def __init__(self, con: Any, run: Any) -> None:
        self._con = con
        self.run = run

    async def compare(self, kind: str, values: list[Any]) -> None:
        """Store the values by asyncpg and by the encoder, and compare the stored rows."""
        await self._con.execute(
            f"DROP TABLE IF EXISTS theirs, ours; CREATE TABLE theirs (n bigint, v {DECLARED[kind]}); "
            "CREATE TABLE ours (LIKE theirs)"
        )
        rows = list(enumerate(values))
        await self._con.copy_records_to_table("theirs", records=rows)
        data = packed(("bigint", kind), rows)
        await self._con.copy_to_table("ours", source=io.BytesIO(data), format="binary")
        assert await self._stored("ours") == await self._stored("theirs")
        assert await self._objects("ours") == await self._objects("theirs")

    async def _stored(self, table: str) -> bytes:
        found = io.BytesIO()
        await self._con.copy_from_query(
            f"SELECT * FROM {table} ORDER BY n", output=found, format="binary"
        )
        return found.getvalue()

    async def _objects(self, table: str) -> list[str]:
        return [
            repr(row["v"]) for row in await self._con.fetch(f"SELECT v FROM {table} ORDER BY n")
        ]


@pytest.fixture(scope="module")
def pair(embedded_postgres: EmbeddedPostgres) -> Iterator[Pair]:
    with asyncio.Runner() as runner:
        con = runner.run(asyncpg.connect(embedded_postgres.dsn, statement_cache_size=0))
        yield Pair(con, runner.run)
        runner.run(con.close())


def test_every_type_is_compared(compiled: Any) -> None:
    assert DECLARED.keys() == VALUES.keys() == compiled.codes.keys()


@pytest.mark.parametrize("kind", DECLARED)
@settings(
    examples(6, long=30),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_values_are_stored_as_asyncpg_stores_them(pair: Pair, kind: str, data: Any) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=40))
    pair.run(pair.compare(kind, values))


@pytest.mark.parametrize("kind", DECLARED)
def test_a_value_is_packed_only_if_asyncpg_stores_the_same(pair: Pair, kind: str) -> None:
    """The server refuses some of the others, and no two values are packed alike."""
    taken: list[Any] = []
    for value in _odd():
        try:
            packed((kind,), [(value,)])
        except Declined:
            continue
        taken.append(value)
    assert None in taken
    pair.run(pair.compare(kind, [each for each in taken if not _refused(kind, each)]))


def _refused(kind: str, value: Any) -> bool:
    """Whether the server refuses the value."""
    if not isinstance(value, str):
        return False
    if kind in {"json", "jsonb"}:
        return value not in {
            "1",
            "null",
            "true",
            "{}",
            "123456781234567812345678123456789012",
            "12345678123456781234567812345678",
        }
    return "\0" in value or (kind in {"character", "character varying"} and len(value) > 40)


def test_all_rows_are_in_the_pieces(compiled: Any) -> None:
    """The pieces are those of one long piece, whatever their size, also with values that are
    longer.
    """
    types = bytes(compiled.codes[kind] for kind in ("bigint", "text"))
    rows = [(number, "\u00e9" * (number % 300) * (number % 7)) for number in range(600)]
    whole, stop = compiled.encode(types, rows, 0, len(rows), 2**22)
    assert stop == len(rows)
    for size in (1, 100, 5000):
        found, start = [], 0
        while start < len(rows):
            piece, start = compiled.encode(types, rows, start, len(rows), size)
            found.append(piece)
        assert len(found) > 1
        assert b"".join(found) == whole


@pytest.mark.parametrize("row", [(1,), (1, "a", 2), [1], "ab", {1: 2}, 5, None, ("a", 1)], ids=repr)
def test_rows_of_another_shape_are_declined(row: Any) -> None:
    with pytest.raises(Declined):
        packed(("bigint", "text"), [(1, "a"), row])


def test_no_length_is_cut_off(compiled: Any) -> None:
    with pytest.raises(Declined):
        packed(("bytea",), [(bytes(2**31),)])
    width = 2**15
    with pytest.raises(ValueError, match="out of range"):
        compiled.encode(bytes(width), [(1,) * width], 0, 1, 100)


REPEATED = 2000
OWN = {dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID, Decimal, bytearray, list, dict}


class Zone(dt.tzinfo):
    """A time zone whose method runs code."""

    def __init__(self, effect: Any) -> None:
        self.effect = effect

    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        self.effect()
        return dt.timedelta(hours=1)

    def dst(self, moment: dt.datetime | None) -> None:
        raise NotImplementedError

    def tzname(self, moment: dt.datetime | None) -> None:
        raise NotImplementedError


def test_code_that_runs_meanwhile_may_change_the_rows() -> None:
    """A row is encoded as it was when its turn came; rows that have gone are no loss unnoticed."""
    types = ("timestamp with time zone", "text")
    row: list[Any] = [None, str(12345)]
    row[0] = dt.datetime(2026, 1, 2, tzinfo=Zone(row.clear))
    assert packed(types, [row]) == packed(types, [(dt.datetime(2026, 1, 1, 23, tzinfo=dt.UTC), "12345")])  # fmt: skip
    assert row == []
    rows: list[Any] = []
    rows += [(dt.datetime(2026, 1, 2, tzinfo=Zone(rows.clear)), str(12345)), (None, "b")]
    with pytest.raises(Declined):
        packed(types, rows)


def test_an_interrupt_is_not_taken_for_a_declined_value() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    rows = [(dt.datetime(2026, 1, 2, tzinfo=Zone(interrupt)),)]
    with pytest.raises(KeyboardInterrupt):
        packed(("timestamp with time zone",), rows)


def test_no_reference_is_kept_or_lost() -> None:
    values: list[Any] = [*_odd(), dt.datetime(2026, 1, 2, tzinfo=Zone(lambda: 1 / 0))]
    values += [dt.datetime(2026, 1, 2, tzinfo=Zone(object)), uuid.UUID(int=2**127)]
    rows: list[list[tuple[Any]]] = [[(value,)] * REPEATED for value in values]

    def references() -> list[int]:
        """Those of rows, and of values that nothing else uses meanwhile."""
        own = [value for value in values if type(value) in OWN]
        return [sys.getrefcount(each) for each in (*own, *(row for row, *_ in rows))]

    def encode_all() -> int:
        for kind in DECLARED:
            for each in rows:
                try:
                    packed((kind,), each)
                except Declined:
                    pass
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        encode_all()
        before, size = references(), encode_all()
        assert encode_all() - size < 16 * REPEATED, "less than one object for each row"
        assert references() == before
    finally:
        tracemalloc.stop()
