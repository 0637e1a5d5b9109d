"""Rows returned by the database are assigned to the right items.

Proven here: batcher/B37, batcher/B38.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.postgres.sink.postgres_help import batch_of
from tests.sql.mariadb import IS_MYSQL, mariadb_server
from tests.sql.sql_help import SqlTable

from sluicegate import Batcher, ConfigError, RowBatch, WriteResult
from sluicegate.sql import SqlSink
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Sequence


pytestmark = [
    pytest.mark.usefixtures("real_clock"),
    pytest.mark.skipif(IS_MYSQL, reason="MySQL returns nothing"),
]


async def told(sink: SqlSink, rows: Sequence[Any], **options: Any) -> dict[int, Any]:
    """The details of a write; its errors belong to other items."""
    answer = await sink.write(RowBatch(rows, **options))
    assert isinstance(answer, WriteResult)
    assert not set(answer.errors) & set(answer.details)
    return dict(answer.details)


async def numbers(table: SqlTable) -> dict[Any, int]:
    return dict(await table.looked("id, nr"))


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
async def test_each_item_has_the_number_that_the_table_gave_it(table: SqlTable, mode: str) -> None:
    if table.name == "mysql" and mode == "ignore":
        pytest.skip("it also returns rows that stay")
    async with table.sink(on_conflict=mode, returning=("nr", "id")) as sink:
        for size in (1, 300):
            rows = [(1000 * size + number * 7 % 1000, "x") for number in range(size)]
            details = await told(sink, rows)
            given = await numbers(table)
            expected = [{"nr": given[key], "id": key} for key, _ in rows]
            assert details == dict(enumerate(expected)), size


async def test_a_table_whose_only_key_is_generated(table: SqlTable) -> None:
    """Equal rows have different numbers."""
    table.make("word VARCHAR(20) NOT NULL")
    async with table.sink(("word",), returning=["nr"]) as sink:
        details = await told(sink, [("a",), ("b",), ("a",), (None,), ("c",)])
        assert [details[at]["nr"] for at in (0, 1, 2, 4)] == [
            nr for (nr,) in await table.looked("nr")
        ]
        assert [word for (word,) in await table.looked("word")] == ["a", "b", "a", "c"]
        assert 3 not in details


async def test_a_receipt_has_the_row(table: SqlTable) -> None:
    async with Batcher(table.sink(returning=["nr", "word"])) as batcher:
        receipts = [await batcher.submit((number, f"w{number}")) for number in range(3)]
        for receipt in receipts:
            await receipt
    given = await numbers(table)
    assert [receipt.detail for receipt in receipts] == [
        {"nr": given[number], "word": f"w{number}"} for number in range(3)
    ]


async def test_skipped_rows_return_nothing(table: SqlTable) -> None:
    """batcher/B38: existing rows, and repetitions within the batch."""
    if table.name == "mysql":
        with pytest.raises(ConfigError, match="MariaDB would also return unchanged rows"):
            async with table.sink(on_conflict="ignore", returning=["nr"]):
                pass
        return
    async with table.sink(on_conflict="ignore", returning=["nr", "word"]) as sink:
        await told(sink, [(number, "there") for number in range(0, 60, 3)])
        rows = [(number, word) for number in range(60) for word in ("first", "second")]
        details = await told(sink, [*rows, (60, None)])
        given = await numbers(table)
    assert details == {
        2 * number: {"nr": given[number], "word": "first"} for number in range(60) if number % 3
    }


async def test_of_replaced_rows_the_last_one_returns(table: SqlTable) -> None:
    """batcher/B38: also if a later one is refused."""
    async with table.sink(on_conflict="update", returning=["nr", "word"]) as sink:
        rows = [(1, "a"), (2, "b"), (1, "c"), (2, "d"), (1, None)]
        first = await told(sink, rows[:4])
        again = await told(sink, rows)
        given = await numbers(table)
    assert first == again
    assert again == {2: {"nr": given[1], "word": "c"}, 3: {"nr": given[2], "word": "d"}}


async def test_a_row_that_a_newer_one_keeps_out_returns_nothing(table: SqlTable) -> None:
    table.make("id INT NOT NULL UNIQUE, word INT NOT NULL")
    options: dict[str, Any] = {"on_conflict": "update", "version_column": "word"}
    if table.name == "mysql":
        with pytest.raises(ConfigError, match="MariaDB would also return unchanged rows"):
            async with table.sink(returning=["nr"], **options):
                pass
        return
    async with table.sink(returning=["word"], **options) as sink:
        await told(sink, [(1, 5)])
        assert await told(sink, [(1, 4), (2, 1)]) == {1: {"word": 1}}


async def test_bad_rows_return_nothing_and_shift_no_others(table: SqlTable) -> None:
    async with table.sink(returning=["nr"]) as sink:
        rows = [(number, None if number % 50 == 7 else "w") for number in range(300)]
        details = await told(sink, [*rows, (0, "again")])
        given = await numbers(table)
    assert details == {at: {"nr": given[at]} for at in range(300) if at % 50 != 7}


async def test_a_row_that_only_the_commit_refuses_returns_nothing(table: SqlTable) -> None:
    if table.name != "sqlite" or "aiosqlite" in table.url:
        pytest.skip("PostgreSQL is told to check constraints before, MariaDB defers none")
    table.run("DROP TABLE IF EXISTS known")
    table.run("CREATE TABLE known (id INT PRIMARY KEY)")
    table.run("INSERT INTO known VALUES (1), (3)")
    table.make("id INT NOT NULL REFERENCES known (id) DEFERRABLE INITIALLY DEFERRED")
    engine = sa.create_engine(table.url)
    event.listen(engine, "connect", lambda dbapi, _: dbapi.execute("PRAGMA foreign_keys = ON"))
    async with table.sink(("id",), url=engine, returning=["id"]) as sink:
        assert await told(sink, [(1,), (2,), (3,)]) == {0: {"id": 1}, 2: {"id": 3}}
    engine.dispose()


async def test_a_key_that_comes_back_otherwise(table: SqlTable) -> None:
    """If the returned value differs from the given one, each row is written separately."""
    kind = {"sqlite": "VARCHAR(20) COLLATE NOCASE", "postgresql": "CHAR(5)"}
    table.make(f"id {kind.get(table.name, 'VARCHAR(20)')} NOT NULL UNIQUE, word VARCHAR(20)")
    async with table.sink(on_conflict="update", returning=["nr"]) as sink:
        await told(sink, [("AB", "a"), ("CD", "b")])
        details = await told(sink, [("cd", "c"), ("ab", "d"), ("ef", "e")])
        rows = dict(await table.looked("word, nr"))
    assert details == {at: {"nr": rows[word]} for at, word in enumerate("cde")}


async def test_a_key_without_a_value(table: SqlTable) -> None:
    """Such rows do not conflict, and are stored separately."""
    table.make("id INT UNIQUE, word VARCHAR(20) NOT NULL")
    async with table.sink(returning=["nr", "word"]) as sink:
        details = await told(sink, [(None, "a"), (None, "b"), (1, "c"), (None, "d")])
    rows = dict(await table.looked("word, nr"))
    assert details == {at: {"nr": rows[word], "word": word} for at, word in enumerate("abcd")}


async def test_rows_of_an_earlier_try_return_what_is_stored(table: SqlTable) -> None:
    """batcher/B38: as duplicates."""
    async with table.sink(returning=["nr"]) as sink:
        before = await told(sink, [(1, "a"), (2, "b")])
        answer = await sink.write(batch_of([(1, "a"), (3, "c"), (2, "b")], maybe=[0, 2]))
        assert isinstance(answer, WriteResult)
        assert {*answer.outcomes} == {0, 2}
        assert (answer.details[0], answer.details[2]) == (before[0], before[1])
        assert 1 in answer.details


async def test_values_are_read_as_sqlalchemy_reads_them(table: SqlTable) -> None:
    table.make("id INT NOT NULL UNIQUE, at TIMESTAMP NULL, data JSON")
    at = datetime(2026, 1, 2, 3, 4, 5)
    rows = [(1, at, {"a": [1]}), (2, None, None)]
    async with table.sink(("id", "at", "data"), returning=["at", "data"]) as sink:
        details = await told(sink, rows)
    assert details[0] == {"at": at, "data": {"a": [1]}}
    assert details[1]["at"] is None


async def test_a_column_that_does_not_exist(table: SqlTable) -> None:
    with pytest.raises(ConfigError, match="returning='number': is not a column of 'words'"):
        async with table.sink(returning=["number"]):
            pass


@pytest.mark.long
@pytest.mark.parametrize("version", ["5.7.19", "5.5.5-10.4.34-MariaDB"])
async def test_a_server_that_returns_nothing(version: str) -> None:
    """MySQL, and MariaDB before 10.5; the server reports its version."""
    with there_or_skip("mariadb", mariadb_server(f"--version={version}")) as server:
        table = SqlTable(server.url("asyncmy"), server.url(database="mysql"))
        table.run("CREATE DATABASE IF NOT EXISTS test")
        table.run("CREATE TABLE test.words (id INT PRIMARY KEY, word TEXT)")
        with pytest.raises(ConfigError, match=r"which this MySQL or MariaDB .* does not have"):
            async with table.sink(returning=["id"]):
                pass
