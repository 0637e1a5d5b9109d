"""A table that is altered under an open `ClickHouseSink`: no changed value is reported as stored.

Proven here: batcher/B38.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from tests.clickhouse.clickhouse_help import PLAIN, Words, bad, told, written
from tests.http.http_help import Reply, Request, reply, serving

from sluicegate import ArrowBatch, RefusedError, RowBatch, UnknownOutcomeError, send
from sluicegate.clickhouse import ClickHouseSink
from sluicegate.http import HttpAccess

pytestmark = pytest.mark.usefixtures("real_clock")

NARROWED: dict[str, tuple[str, str, Any, Any, tuple[str, ...]]] = {
    "bits": ("UInt32", "UInt8", 1, 300, ("44",)),
    "sign": ("Int64", "UInt16", 1, -5, ("65531",)),
    "range of times": (
        "DateTime64(3, 'UTC')",
        "DateTime('UTC')",
        datetime(2026, 1, 1),
        datetime(2200, 1, 1),
        ("2106-02-07 06:28:15", "2063-11-24 17:31:44"),
    ),
    "scale": ("Decimal(10, 4)", "Decimal(10, 2)", Decimal("1.25"), Decimal("1.2345"), ("1.23",)),
    "precision": ("Float64", "Float32", 1.5, 1e300, ("inf",)),
    "elements": ("Array(UInt32)", "Array(UInt8)", [1], [300], ("[44]",)),
}


def _idle(sink: ClickHouseSink) -> None:
    """Make the sink idle, as after a second without a write."""
    watched: Any = sink._table
    watched._looked_at = float("-inf")


@pytest.mark.parametrize(
    "what",
    ["bits", *(pytest.param(each, marks=pytest.mark.long) for each in NARROWED if each != "bits")],
)
async def test_a_column_that_is_made_narrower(words: Words, what: str) -> None:
    """The row that the server changed is reported although the INSERT succeeded; a sink that has
    been idle does not send it.
    """
    before, after, good, wide, changed = NARROWED[what]
    words.make(f"id UInt32, v {before}")
    async with words.sink() as sink:
        assert await written(sink, [(0, good), (1, good)]) == {}
        words.server.run(f"ALTER TABLE words MODIFY COLUMN v {after}")
        errors = await written(sink, [(2, good), (3, wide), (4, good)])
        assert bad(errors) == [1]
        is_told = "was altered while the row was written" in str(errors[1])
        assert bad(await written(sink, [(5, good), (6, wide)])) == [1]
        words.server.run(f"ALTER TABLE words MODIFY COLUMN v {before}")
        assert await written(sink, [(7, wide)]) == {}
        words.server.run("DELETE FROM words WHERE id = 7")  # does not fit below
        words.server.run(f"ALTER TABLE words MODIFY COLUMN v {after}")
        _idle(sink)
        assert bad(await written(sink, [(8, good), (9, wide)])) == [1]
    found = {row[0]: row[1] for row in await words.looked("id, v")}
    if what != "sign" or words.options["format"] == "arrow":  # such numbers as text are refused
        assert is_told
        assert found.pop("3") in changed
    assert [*found] == ["0", "1", "2", "4", "5", "8"]
    assert len({*found.values()}) == 1


async def test_a_table_in_the_place_of_another(words: Words) -> None:
    """With a column that does not accept NULL; also as columns, and in the second body of a
    batch.
    """
    words.make("id UInt32, v Nullable(String)")
    words.server.run("DROP TABLE IF EXISTS other")
    words.server.run(
        "CREATE TABLE other (id UInt32, v LowCardinality(String)) ENGINE = MergeTree ORDER BY id"
    )
    rows = [(number, None if number == 3 else "x" * 100) for number in range(5)]
    async with words.sink(max_bytes=700) as sink:
        assert await written(sink, [(9, None)]) == {}
        words.server.run("EXCHANGE TABLES words AND other")
        assert bad(await written(sink, rows)) == [3]
        words.server.run("EXCHANGE TABLES words AND other")
        _idle(sink)
        assert await written(sink, [(8, None)]) == {}
        words.server.run("EXCHANGE TABLES words AND other")
        ids, values = zip(*rows, strict=True)
        columns = pa.record_batch({"id": pa.array(ids, pa.uint32()), "v": pa.array(values)})
        assert bad(await send(sink, ArrowBatch(columns))) == [3]
    assert words.server.rows("SELECT id FROM other ORDER BY id") == [("8",), ("9",)]
    words.server.run("DROP TABLE other")


async def test_columns_that_are_added_give_no_row_up(words: Words) -> None:
    """Rows without them get the default, also beside a bad row; rows with them are stored, too."""
    async with words.sink() as sink:
        assert await written(sink, [(1, "a")]) == {}
        words.server.run("ALTER TABLE words ADD COLUMN more String DEFAULT 'none'")
        for _ in range(2):
            assert bad(await written(sink, [(2, "b"), (3, None)])) == [1]
            assert await written(sink, [{"id": 4, "word": "d"}]) == {}
        assert await written(sink, [{"id": 5, "word": "e", "more": "m"}]) == {}
    assert await words.looked("*") == told(
        [
            (1, "a", "none"),
            *[(2, "b", "none")] * 2,
            *[(4, "d", "none")] * 2,
            (5, "e", "m"),
        ]
    )


async def test_columns_that_are_gone_give_no_row_up(words: Words) -> None:
    """Under their old names: all rows wait until the columns are back, or all lack them."""
    rows = [{"id": 2, "word": "b"}, {"id": 3, "word": "c"}]
    async with words.sink() as sink:
        assert await written(sink, [(1, "a")]) == {}
        words.server.run("ALTER TABLE words RENAME COLUMN word TO term")
        for _ in range(2):
            errors = await written(sink, rows)
            assert {type(error) for error in errors.values()} == {RefusedError}
            assert len(errors) == 2
        assert await written(sink, [{"id": 4, "term": "d"}]) == {}
        words.server.run("ALTER TABLE words RENAME COLUMN term TO word")
        assert await written(sink, rows) == {}
    assert await words.looked() == told([(1, "a"), (2, "b"), (3, "c"), (4, "d")])


async def test_rows_whose_columns_cannot_be_compared_are_unknown() -> None:
    """They are stored, but the types used for storing them are unknown."""

    async def step(request: Request) -> Reply:
        if "INSERT" in unquote(request.query):
            server.always[b"system.columns"] = reply(500, b"Code: 241. DB::Exception: memory")
        return Reply()

    columns = reply(200, {"data": [["id", "UInt32", ""], ["word", "String", ""]]})
    facts = {"data": [["26.9.2.1", ["insert_deduplication_token"]]]}
    async with serving() as server:
        server.steps.extend([reply(200, facts), reply(200, {"data": []})])
        server.always[b"system.columns"] = columns
        server.default = step
        sink = ClickHouseSink(
            HttpAccess(server.url, client_options=PLAIN), table="words", format="json"
        )
        async with sink:
            batch = RowBatch([(1, "a"), (2, "b")])
            errors = await send(sink, batch)
            assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
            server.always[b"system.columns"] = columns
            server.default = reply()
            assert await send(sink, batch) == {}
            assert [json.loads(request.body) for request in server.requests[-1:]] == [
                [{"id": 1, "word": "a"}, {"id": 2, "word": "b"}]
            ]


async def test_a_column_of_an_old_server_that_is_made_narrower(old: Words) -> None:
    """A name that its enum lacks fails only its row."""
    old.make("id UInt32, v UInt32, e Enum8('a' = 1, 'b' = 2)")
    async with old.sink() as sink:
        assert await written(sink, [(0, 1, "a")]) == {}
        old.server.run("ALTER TABLE words MODIFY COLUMN v UInt8")
        assert bad(await written(sink, [(1, 1, "b"), (2, 300, "a")])) == [1]
        assert bad(await written(sink, [(3, 1, "x"), (4, 255, "a")])) == [0]
    assert await old.looked("id, v") == told([(0, 1), (1, 1), (2, 44), (4, 255)])
