"""`ClickHouseSink`, on the embedded engine in both formats, and on the server of 2018 in JSON.

White box: one rule of conversion alone.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.clickhouse.clickhouse_help import Words, bad, told, written
from tests.http.access_help import access_from

from sluicegate import ArrowBatch, ConfigError, RefusedError, RowBatch, UnknownOutcomeError, send
from sluicegate.clickhouse import ClickHouseSink

if TYPE_CHECKING:
    from tests.clickhouse.servers import EngineServer

pytestmark = pytest.mark.usefixtures("real_clock")
ROWS = [(number, f"w{number}") for number in range(3000)]


async def test_rows_of_every_shape(words: Words) -> None:
    class Thing:
        id, word = 3, "c"

    async with words.sink() as sink:
        items = [(1, "a"), {"id": 2, "word": "b"}, Thing(), [4, "d"]]
        assert await written(sink, items) == {}
    assert await words.looked() == told([(1, "a"), (2, "b"), (3, "c"), (4, "d")])


async def test_the_same_batch_is_stored_once(words: Words) -> None:
    """batcher/B38: by its token; the same rows of another batch are stored again."""
    async with words.sink() as sink:
        batch = RowBatch(ROWS[:10])
        for _ in range(3):
            assert await sink.write(batch) is None
        assert len(await words.looked()) == 10
        assert await written(sink, ROWS[:10]) == {}
        assert len(await words.looked()) == 20
        part = batch.pick([2, 3])
        for _ in range(2):
            assert await sink.write(part) is None
    assert len(await words.looked()) == 22


async def test_a_table_that_keeps_no_tokens_is_told(
    engine: EngineServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")  # httpx logs each request
    words = Words(engine)
    async with words.sink():
        assert caplog.messages == []
    words.make(after=" SETTINGS index_granularity = 1000")
    async with words.sink(deduplicate=False):
        assert caplog.messages == []
    async with words.sink():
        assert [message.partition(", so")[0] for message in caplog.messages] == [
            f"ClickHouseSink({engine.url}/, table=`words`): the table keeps no deduplication tokens"
        ]


async def test_without_tokens_equal_batches_are_all_stored(words: Words) -> None:
    """Although the table would deduplicate equal blocks, as replicated tables do."""
    async with words.sink(deduplicate=False) as sink:
        for _ in range(3):
            assert await written(sink, ROWS[:10]) == {}
    assert len(await words.looked()) == 30


async def test_the_parts_of_a_large_batch_have_tokens_of_their_own(words: Words) -> None:
    """batcher/B37: all of them are sent again, and none is stored twice."""
    async with words.sink(max_bytes=5000) as sink:
        batch = RowBatch(ROWS)
        for _ in range(2):
            assert await sink.write(batch) is None
    assert await words.looked() == told(ROWS)


async def test_asynchronous_inserts_are_stored_when_they_are_told(words: Words) -> None:
    async with words.sink(async_insert=True) as sink:
        batch = RowBatch(ROWS[:50])
        assert await sink.write(batch) is None
        assert await words.looked() == told(ROWS[:50])
        assert await sink.write(batch) is None
    assert await words.looked() == told(ROWS[:50])


async def test_columns_go_as_they_are(engine: EngineServer) -> None:
    """batcher/4b.12: they are not converted to rows."""

    class NoRows(ArrowBatch):
        def _made(self) -> Any:
            raise AssertionError

    words = Words(engine)
    async with words.sink() as sink:
        batch = NoRows(pa.record_batch({"word": ["a", "b"], "id": pa.array([1, 2], pa.int64())}))
        for _ in range(2):
            assert await sink.write(batch) is None
    assert await words.looked() == told([(1, "a"), (2, "b")])


async def test_columns_become_rows_of_json(engine: EngineServer) -> None:
    words = Words(engine, format="json")
    async with words.sink() as sink:
        batch = ArrowBatch(pa.record_batch({"word": ["a", "b"], "id": [1, 2]}))
        assert await send(sink, batch) == {}
    assert await words.looked() == told([(1, "a"), (2, "b")])


TYPES: dict[str, tuple[Any, str, Any, str]] = {
    "UInt8": (255, "255", 256, "range of UInt8"),
    "Int64": (-(2**63), str(-(2**63)), 2**63, "range of Int64"),
    "Int128": (-(2**127), str(-(2**127)), 2**127, "range of Int128"),
    "Nullable(UInt8)": (None, "\\N", -1, "range of"),
    "Float32": (1.5, "1.5", 1e39, "range of Float32"),
    "Bool": (True, "true", 2, "int for a column of Bool"),
    "String": ("a", "a", None, "None for a column of String"),
    "LowCardinality(String)": ("a", "a", 5, "int for a column of text"),
    "Decimal(10, 2)": (Decimal("1.25"), "1.25", Decimal("1.255"), "more digits"),
    "Decimal(50, 2)": (1.5, "1.5", "x", "str for a column"),
    "Date": (date(2026, 1, 2), "2026-01-02", date(2300, 1, 1), "range of Date"),
    "DateTime('UTC')": (
        datetime(2026, 1, 2, 3, 4, 5),
        "2026-01-02 03:04:05",
        datetime(2300, 1, 1),
        "range of DateTime",
    ),
    "DateTime('Asia/Tokyo')": (
        datetime(2026, 1, 2, 3, 4, 5),
        "2026-01-02 12:04:05",
        datetime(1900, 1, 1),
        "range of DateTime",
    ),
    "DateTime64(3, 'UTC')": (
        datetime(2026, 1, 2, 3, 4, 5, 6789, timezone(timedelta(hours=2))),
        "2026-01-02 01:04:05.006",
        datetime(1800, 1, 1),
        "range of DateTime64",
    ),
    "DateTime64(6)": ("2026-01-02T03:04:05.000006Z", "2026-01-02 03:04:05.000006", 5, "int for"),
    "UUID": (
        uuid.UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
        "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
        "x",
        "CANNOT_PARSE_UUID",
    ),
    "Enum8('a' = 1)": ("a", "a", "b", "UNKNOWN_ELEMENT_OF_ENUM"),
    "IPv4": ("1.2.3.4", "1.2.3.4", "300.1.1.1", "CANNOT_PARSE_IPV4"),
    "FixedString(2)": ("ab", "ab", "abc", "TOO_LARGE_STRING_SIZE"),
    "Array(UInt8)": ([1, 2], "[1,2]", [300], "range of UInt8"),
    "Array(Nullable(UInt8))": ([1, None], "[1,NULL]", [[1]], "list for a column"),
    "Map(String, UInt8)": ({"a": 1}, "{'a':1}", {"a": None}, "None for a column of UInt8"),
    "Tuple(x UInt8, y String)": ({"x": 1, "y": "b"}, "(1,'b')", {"x": 1}, "the fields ['x']"),
    "Tuple(UInt8, String)": ((1, "b"), "(1,'b')", (1, 2), "int for a column of text"),
    "JSON": ({"a": [1, 2]}, '{"a":[1,2]}', [1], "list for a column of JSON"),
}


async def test_values_that_do_not_fit_fail_alone(words: Words) -> None:
    """Of any type; none is changed or lost, as ClickHouse itself does with many of them."""
    words.make(", ".join(["id UInt32", *(f"v{at} {kind}" for at, kind in enumerate(TYPES))]))
    good = [each[0] for each in TYPES.values()]
    rows = [[0, *good], *([at, *good] for at in range(1, len(TYPES) + 1)), [99, *good]]
    for at, (_, _, unfit, _) in enumerate(TYPES.values(), 1):
        rows[at][at] = unfit
    async with words.sink() as sink:
        errors = await written(sink, rows)
        assert bad(errors) == [*range(1, len(TYPES) + 1)]
        for at, (_, _, _, why) in enumerate(TYPES.values(), 1):
            assert why in str(errors[at]), rows[at]
    texts = [each[1] for each in TYPES.values()]
    assert await words.looked("*") == [("0", *texts), ("99", *texts)]


UNFIT: list[tuple[str, Any]] = [
    ("UInt8", pa.array([1, 300, 3])),
    ("UInt8", pa.array([1, None, 3])),
    ("UInt8", pa.array([1.0, 1.5, 3.0])),
    ("Float32", pa.array([1.0, 1e39, 3.0])),
    ("Date", pa.array([date(2026, 1, 1), date(2300, 1, 1), date(2026, 1, 1)])),
    (
        "DateTime",
        pa.array([datetime(2026, 1, 1), datetime(2300, 1, 1), datetime(2026, 1, 1)]),
    ),
    ("DateTime64(3)", pa.array([0, -(10**11), 5], pa.timestamp("s", "UTC"))),
    ("Decimal(5, 2)", pa.array([Decimal("1.25"), Decimal("1.255"), Decimal("2")])),
    ("Array(UInt8)", pa.array([[1], [300], []])),
    ("Array(UInt8)", pa.array([[1], [None], []], pa.list_(pa.uint8()))),
    ("Array(Date)", pa.array([[date(2026, 1, 1)], [date(2300, 1, 1)], []])),
    ("Map(String, UInt8)", pa.array([[("a", 1)], [("a", None)], []], pa.map_("string", "uint8"))),
    ("Tuple(x UInt8)", pa.array([{"x": 1}, {"x": None}, {"x": 3}])),
    ("UUID", pa.array([str(uuid.UUID(int=1)), "x", str(uuid.UUID(int=2))])),
]


async def test_values_of_columns_that_do_not_fit_fail_alone(engine: EngineServer) -> None:
    words = Words(engine)
    words.make(", ".join(["id UInt32", *(f"v{at} {kind}" for at, (kind, _) in enumerate(UNFIT))]))
    fine = {f"v{at}": column.take([0]) for at, (_, column) in enumerate(UNFIT)}
    async with words.sink() as sink:
        for at, (kind, column) in enumerate(UNFIT):
            columns = {name: each.take([0] * 3) for name, each in fine.items()}
            batch = pa.record_batch(
                {"id": [3 * at, 3 * at + 1, 3 * at + 2], **columns, f"v{at}": column}
            )
            errors = await send(sink, ArrowBatch(batch))
            assert bad(errors) == [1], kind
            assert kind == "UUID" or f"does not fit the column 'v{at}'" in str(errors[1])
            if kind.startswith(("Array", "Map")):  # a slice shares its values
                assert bad(await send(sink, ArrowBatch(batch.slice(1, 1)))) == [0], kind
    assert await words.looked("id") == told([(at,) for at in range(3 * len(UNFIT)) if at % 3 != 1])


NEVER: list[tuple[str, Any]] = [
    ("String", pa.array([1, 2])),
    ("Bool", pa.array([1, 2])),
    ("Date", pa.array([datetime(2026, 1, 1), None])),
    ("DateTime64(3)", pa.array([1, 2])),
    ("UInt8", pa.array([[1], [2]])),
]


async def test_columns_of_types_that_never_fit(engine: EngineServer) -> None:
    """One clear error for all rows, before the first is sent; the sink also reports it in
    advance.
    """
    words = Words(engine)
    words.make(", ".join(["id UInt32", *(f"v{at} {kind}" for at, (kind, _) in enumerate(NEVER))]))
    async with words.sink() as sink:
        for at, (_, column) in enumerate(NEVER):
            batch = ArrowBatch(pa.record_batch({"id": [1, 2], f"v{at}": column}))
            assert set(sink.refused_columns(batch.record_batch.schema)) == {f"v{at}"}
            errors = await send(sink, batch)
            assert bad(errors) == [0, 1]
            assert errors[0] is errors[1]
            assert f"column 'v{at}':" in str(errors[0])
    assert await words.looked("id") == []


async def test_rows_that_only_the_server_refuses_fail_alone(words: Words) -> None:
    """At any position, whether the server names them or not."""
    words.make("id UInt32, word String, CONSTRAINT short CHECK length(word) < 9")
    rows = list(ROWS[:300])
    wrong = [0, 7, 8, 150, 299]
    for at in wrong:
        rows[at] = (at, "much too long")
    async with words.sink() as sink:
        batch = RowBatch(rows)
        assert bad(await send(sink, batch)) == wrong
        assert await words.looked() == told([row for at, row in enumerate(rows) if at not in wrong])
        assert bad(await written(sink, [(1, "much too long")])) == [0]


async def test_a_materialized_view_that_fails_leaves_rows_unknown(words: Words) -> None:
    """The server fills table and view concurrently, so the table may or may not have them. No row
    is blamed; sent again without the view, each is stored once.
    """
    words.server.run("DROP TABLE IF EXISTS shares")
    words.server.run(
        "CREATE MATERIALIZED VIEW shares ENGINE = MergeTree ORDER BY id AS "
        "SELECT id, intDiv(10, id - 5) AS share FROM words"
    )
    async with words.sink() as sink:
        batch = RowBatch(ROWS[:10])
        try:
            for _ in range(2):
                result = await sink.write(batch)
                assert result is not None
                assert {type(error) for error in result.errors.values()} == {UnknownOutcomeError}
                assert len(result.errors) == 10
            assert await words.looked() in ([], told(ROWS[:10]))
        finally:
            words.server.run("DROP TABLE shares")
        assert await sink.write(batch) is None
    assert await words.looked() == told(ROWS[:10])


async def test_fields_that_the_table_does_not_have(words: Words) -> None:
    """Their items fail alone; they are not omitted silently unless the columns are specified."""
    items = [{"id": 1, "word": "a"}, {"id": 2, "word": "b", "more": 1}, {"id": 3}]
    async with words.sink() as sink:
        errors = await written(sink, items)
        assert bad(errors) == [1, 2]
        assert "the item has 'more', which table `words` does not have" in str(errors[1])
        assert "has no 'word'" in str(errors[2])
    async with words.sink(columns=["word", "id"]) as sink:
        assert bad(await written(sink, items[1:])) == [1]
    assert await words.looked() == told([(1, "a"), (2, "b")])


async def test_columns_that_are_left_out_get_their_default(words: Words) -> None:
    words.make("id UInt32, word String DEFAULT 'none', twice UInt32 MATERIALIZED id * 2")
    async with words.sink(columns=["id"]) as sink:
        assert await written(sink, [(1,), {"id": 2}]) == {}
    async with words.sink() as sink:
        assert await written(sink, [(3, "x")]) == {}
    assert await words.looked("id, word, twice") == told(
        [(1, "none", 2), (2, "none", 4), (3, "x", 6)]
    )


async def test_columns_of_a_batch_may_be_fewer(engine: EngineServer) -> None:
    """For a sink without `columns=`: the others get their defaults. An unknown one is refused."""
    words = Words(engine)
    words.make("id UInt32, word String DEFAULT 'none'")
    async with words.sink() as sink:
        assert await send(sink, ArrowBatch(pa.record_batch({"id": [1]}))) == {}
        strange = ArrowBatch(pa.record_batch({"id": [2], "more": [1]}))
        errors = await send(sink, strange)
        assert "has no column 'more'" in str(errors[0])
        assert dict(sink.refused_columns(strange.record_batch.schema)) == {
            "more": "is not a column of table `words`; drop it"
        }
    assert await words.looked() == told([(1, "none")])


async def test_a_table_that_changes_under_an_open_sink(words: Words) -> None:
    """Rows are checked against the current table; if a column is missing, no row is given up."""
    words.make("id UInt8, word String")
    async with words.sink() as sink:
        assert await written(sink, [(1, "a")]) == {}
        words.server.run("DROP TABLE words")
        errors = await written(sink, [(2, "b"), (3, "c")])
        assert {type(error) for error in errors.values()} == {RefusedError}
        assert "create table `words`" in str(errors[0])
        words.make("id UInt32, word String")
        assert await written(sink, [(70_000, "b"), (3, "c")]) == {}
        words.server.run("ALTER TABLE words DROP COLUMN word")
        errors = await written(sink, [{"id": 4, "word": "d"}])
        assert {type(error) for error in errors.values()} == {RefusedError}
        words.server.run("ALTER TABLE words ADD COLUMN word String")
        assert await written(sink, [{"id": 4, "word": "d"}]) == {}
    assert await words.looked("id") == told([(3,), (4,), (70_000,)])


async def test_a_column_that_is_made_wider_takes_values_at_once(words: Words) -> None:
    """A narrower column in a new table accepts no value that it would truncate."""
    words.make("id UInt32, n UInt8")
    async with words.sink() as sink:
        assert bad(await written(sink, [(1, 300)])) == [0]
        words.server.run("ALTER TABLE words MODIFY COLUMN n UInt16")
        assert await written(sink, [(1, 300)]) == {}
        words.server.run("DROP TABLE words")
        assert type((await written(sink, [(2, 300)]))[0]) is RefusedError
        words.make("id UInt32, n UInt8")
        assert bad(await written(sink, [(2, 300)])) == [0]
        assert await written(sink, [(2, 200)]) == {}
    assert await words.looked("*") == told([(2, 200)])


async def test_an_insert_of_too_many_partitions_is_sent_in_parts(words: Words) -> None:
    words.make(partition="id")
    async with words.sink(settings={"max_partitions_per_insert_block": 10}) as sink:
        batch = RowBatch(ROWS[:25])
        for _ in range(2):
            assert await sink.write(batch) is None
    assert await words.looked() == told(ROWS[:25])


async def test_names_are_taken_literally(words: Words) -> None:
    name, column = "wo`rds '\\x", "od d\\`'"
    quoted = [f"`{each}`" for each in ("wo\\`rds '\\\\x", "od d\\\\\\`'")]
    words.server.run(f"DROP TABLE IF EXISTS {quoted[0]}")
    words.server.run(
        f"CREATE TABLE {quoted[0]} ({quoted[1]} UInt8) ENGINE = MergeTree ORDER BY tuple()"
    )
    async with words.sink(table=name) as sink:
        assert await written(sink, [{column: 1}, (2,)]) == {}
    assert words.server.rows(f"SELECT count() FROM {quoted[0]}") == [("2",)]
    words.server.run(f"DROP TABLE {quoted[0]}")


@pytest.mark.parametrize("compression", ["gzip", None])
async def test_bodies_may_be_compressed(words: Words, compression: Any) -> None:
    async with words.sink(compression=compression, settings={"max_threads": 2}) as sink:
        assert await written(sink, ROWS) == {}
    assert await words.looked() == told(ROWS)


async def test_a_setting_that_the_server_does_not_know(words: Words) -> None:
    async with words.sink(settings={"no_such_setting": True}) as sink:
        errors = await written(sink, [(1, "a")])
        assert type(errors[0]) is RefusedError
        assert "correct settings=" in str(errors[0])


# -- the server of 2018 ----------------------------------------------------------------------------


async def test_rows_to_an_old_server(old: Words) -> None:
    rows = list(ROWS)
    rows[5], rows[2000] = (-1, "negative"), (None, "null")  # type: ignore[assignment]  # what is tested
    async with old.sink() as sink:
        errors = await written(sink, rows)
        assert bad(errors) == [5, 2000]
    assert await old.looked() == told([row for at, row in enumerate(rows) if at not in errors])


async def test_rows_that_an_old_server_refuses_fail_alone(old: Words) -> None:
    old.make("id UInt32, word FixedString(5)")
    rows = [(number, "x") for number in range(500)]
    for at in (3, 77, 499):
        rows[at] = (at, "too long")
    async with old.sink() as sink:
        assert bad(await written(sink, rows)) == [3, 77, 499]
    assert len(await old.looked()) == 497


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"deduplicate": True}, "deduplicate=True: ClickHouse 18.16.1 has no deduplication tokens"),
        ({"format": "arrow"}, "format='arrow': ClickHouse 18.16.1 does not read ArrowStream"),
        ({"columns": ["id", "wrod"]}, "columns='wrod': is not a column of table `words`"),
        ({"table": "nowhere"}, "table `nowhere` does not exist"),
        ({"database": "nowhere"}, "table `nowhere`.`words` does not exist"),
        ({"auth": ("default", "guess-of-it")}, "give credentials that the server accepts"),
        ({"auth": ("nobody", "guess-of-it")}, "give credentials that the server knows"),
    ],
)
async def test_what_does_not_fit_is_told_when_the_sink_opens(
    old: Words, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        async with old.sink(**options):
            pass
    assert why in str(caught.value)
    assert "guess-of-it" not in str(caught.value)


async def test_a_type_that_arrow_does_not_have(engine: EngineServer) -> None:
    words = Words(engine)
    words.make("id UInt32, v Variant(UInt8, String)")
    with pytest.raises(ConfigError, match=r"Arrow has no type for Variant.*; give format"):
        async with words.sink():
            pass
    async with words.sink(format="json") as sink:
        assert await written(sink, [(1, "a"), (2, 5), (3, None)]) == {}
    assert await words.looked("id, v") == told([(1, "a"), (2, 5), (3, "\\N")])


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"table": ""}, "table=''"),
        ({"database": ""}, "database=''"),
        ({"columns": "id"}, "must be a sequence of at least one column name"),
        ({"format": "csv"}, "must be one of 'arrow', 'json'"),
        ({"row": 5}, "must be a function of an item"),
        ({"url": "http://h/?user=x"}, "must have no query"),
        ({"url": "h:8123"}, "must be an absolute URL"),
        ({"url": 5}, "must be an absolute URL"),
        ({"settings": {"async_insert": 1}}, "is given by async_insert="),
        ({"settings": {"input_format_allow_errors_num": 5}}, "no row is lost or changed silently"),
        ({"settings": {"a b": 5}}, "must be a mapping of names of settings"),
        ({"settings": {"a": None}}, "must be a mapping of names of settings"),
        ({"settings": 5}, "must be a mapping of names of settings"),
        ({"compression": "lz4"}, "must be one of"),
        ({"tabel": "x"}, "tabel"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"url": "http://u:secret@h", "table": "t", **arguments}
    with pytest.raises(ConfigError) as caught:
        ClickHouseSink(access_from(given.pop("url"), given), **given)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_nothing_of_a_sink_shows_its_password() -> None:
    sink = ClickHouseSink("http://u:secret@h:8123/x", table="t", database="d")
    assert repr(sink) == "ClickHouseSink(http://h:8123/x, table=`d`.`t`)"
    assert sink.capabilities.columnar
    assert not sink.capabilities.idempotent


def test_a_moment_without_a_zone_is_in_utc() -> None:
    """In both formats; the server would use its own zone for text."""
    from sluicegate.clickhouse.values import parse_type, rule_of

    convert = rule_of(parse_type("DateTime64(3, 'Asia/Tokyo')")).convert
    assert convert(datetime(2026, 1, 1)) == datetime(2026, 1, 1, tzinfo=UTC)
