"""`SqlSink` on each database and driver: rows, conflicts, refusals.

White box: errors are judged by the class that a retry would see.

Proven here: batcher/B37, batcher/B38.

White box: the class that the stack sees, by the sink's and the common rules.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.sql.sql_help import SqlTable, names, written

from sluicegate import ConfigError, ErrorClass, RowBatch, send, stack
from sluicegate._core.classify import classified
from sluicegate.errors import TooLargeError
from sluicegate.sinks import Isolate
from sluicegate.sql import SqlSink

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sql.mariadb import MariaDbServer

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_many_rows_are_split_below_the_limits(table: SqlTable) -> None:
    """batcher/B37: below the limit of parameters, in one transaction, in order."""
    rows = [(number, f"w{number}") for number in range(33_000)]
    async with table.sink() as sink:
        assert await written(sink, rows) == {}
    assert await table.looked() == rows


async def test_a_statement_has_at_most_as_many_parameters_as_the_library_takes(
    tmp_path: Path,
) -> None:
    """batcher/B37: SQLite's limit may have been compiled in, or set for a connection."""
    table = SqlTable(f"sqlite:///{tmp_path / 'words.db'}")
    table.make()
    engine = sa.create_engine(table.url)
    inserts: list[int] = []

    @event.listens_for(engine, "connect")
    def limit(dbapi: Any, _: object) -> None:
        dbapi.setlimit(9, 7)  # SQLITE_LIMIT_VARIABLE_NUMBER

    @event.listens_for(engine, "before_cursor_execute")
    def note(*given: Any) -> None:
        if given[2].startswith("INSERT"):
            inserts.append(len(given[3]))

    rows = [(number, "w") for number in range(10)]
    async with table.sink(url=engine) as sink:
        assert await written(sink, rows) == {}
    assert inserts == [6, 6, 6, 2]
    assert await table.looked() == rows


async def test_bad_rows_fail_alone(table: SqlTable) -> None:
    """At any position; the others are stored, in order."""
    chance = random.Random(3)
    rows: list[tuple[int, str | None]] = [(number, "w") for number in range(1000)]
    bad = sorted(chance.sample(range(1, 999), 7))
    for at in bad:
        rows[at] = (at, None)
    rows[999] = (0, "again")
    async with table.sink() as sink:
        errors = await written(sink, rows)
        assert names(errors) == dict.fromkeys(sorted({*bad, 999}), "PermanentError")
        assert await table.looked() == [row for at, row in enumerate(rows) if at not in errors]
        assert await written(sink, [(5000, "after")]) == {}


async def test_a_value_that_does_not_fit_is_refused_and_not_cut(table: SqlTable) -> None:
    """Also by a server that would truncate it silently."""
    if table.name == "sqlite":
        pytest.skip("its columns have no lengths")
    async with table.sink() as sink:
        errors = await written(sink, [(1, "x" * 21), (2, "ok")])
        assert names(errors) == {0: "PermanentError"}
    assert await table.looked() == [(2, "ok")]


async def test_a_value_that_cannot_be_bound_fails_alone(table: SqlTable) -> None:
    async with table.sink() as sink:
        errors = await written(sink, [(1, "a"), (2, object()), (3, "c"), 7, (4,)])
        assert names(errors) == dict.fromkeys([1, 3, 4], "PermanentError")
    assert await table.looked() == [(1, "a"), (3, "c")]


async def test_an_object_is_not_stored_as_its_text(table: SqlTable) -> None:
    """The same for a container as an element, whatever the driver would do with it."""
    table.make("id INT NOT NULL UNIQUE, word TEXT")
    odd = [object(), {"a": 1}, {7}, ["x"], ("y",)]
    rows = [(0, "a"), *enumerate(odd, 1), (9, "b")]
    async with table.sink() as sink:
        errors = await written(sink, rows)
    assert names(errors) == dict.fromkeys(range(1, 1 + len(odd)), "PermanentError")
    assert await table.looked() == [(0, "a"), (9, "b")]


async def test_rows_behind_a_bad_one_of_their_key_are_left_out(table: SqlTable) -> None:
    async with table.sink() as sink:
        rows = [(1, "a"), (2, None), (3, "a2"), (4, "b"), (5, "b2")]
        errors = await written(sink, rows, keys=["a", "b", "a", "b", "c"])
        assert names(errors) == {1: "PermanentError", 3: "KeyStopped"}
    assert await table.looked() == [(1, "a"), (3, "a2"), (5, "b2")]


async def test_conflicts_that_are_ignored(table: SqlTable) -> None:
    """The existing row stays; a row refused for another reason is still reported."""
    async with table.sink(on_conflict="ignore") as sink:
        assert await written(sink, [(1, "a"), (1, "b"), (2, "c")]) == {}
        assert names(await written(sink, [(2, "d"), (3, "e"), (4, None)])) == {2: "PermanentError"}
    assert await table.looked() == [(1, "a"), (2, "c"), (3, "e")]


async def test_rows_that_are_replaced(table: SqlTable) -> None:
    """batcher/B38: the last row of a key in a batch is stored."""
    async with table.sink(on_conflict="update") as sink:
        assert await written(sink, [(1, "a"), (2, "b"), (1, "c")]) == {}
        assert await written(sink, [(2, "d"), (3, "e"), (2, "f")]) == {}
    assert await table.looked(order="id") == [(1, "c"), (2, "f"), (3, "e")]


async def test_a_row_before_a_refused_one_of_its_key_counts(table: SqlTable) -> None:
    """batcher/B38: it is delivered, so it must be stored, although a later row would have replaced
    it.
    """
    async with table.sink(on_conflict="update") as sink:
        rows = [(1, "a"), (2, "b"), (1, None), (2, "c"), (1, None)]
        assert names(await written(sink, rows)) == dict.fromkeys([2, 4], "PermanentError")
    assert await table.looked(order="id") == [(1, "a"), (2, "c")]


async def test_a_batch_of_refused_rows_only_is_answered(table: SqlTable) -> None:
    async with table.sink(on_conflict="update") as sink:
        rows = [(object(), "a"), 7]
        assert names(await written(sink, rows)) == dict.fromkeys([0, 1], "PermanentError")
    assert await table.looked() == []


async def test_an_old_row_does_not_replace_a_newer_one(table: SqlTable) -> None:
    """batcher/B38: decided by the version column, within a batch and between batches."""
    table.make("id INT NOT NULL UNIQUE, version INT NOT NULL, word VARCHAR(20)")
    columns = ("id", "version", "word")
    async with table.sink(columns, on_conflict="update", version_column="version") as sink:
        assert await written(sink, [(1, 5, "five"), (1, 3, "three"), (2, 1, "one")]) == {}
        assert await written(sink, [(1, 4, "four"), (2, 2, "two")]) == {}
    assert await table.looked("id, version, word", "id") == [(1, 5, "five"), (2, 2, "two")]


async def test_a_version_that_cannot_be_compared_fails_alone(table: SqlTable) -> None:
    """Without a version a row would silently replace nothing."""
    table.make("id INT NOT NULL UNIQUE, version INT, word VARCHAR(20)")
    columns = ("id", "version", "word")
    rows = [(1, 5, "a"), (2, None, "b"), (1, "x", "c"), (3, 1, "d")]
    async with table.sink(columns, on_conflict="update", version_column="version") as sink:
        assert names(await written(sink, rows)) == dict.fromkeys([1, 2], "PermanentError")
    assert await table.looked("id, version, word", "id") == [(1, 5, "a"), (3, 1, "d")]


async def test_a_row_that_only_the_commit_refuses_is_found_by_isolate(table: SqlTable) -> None:
    """By a deferred constraint; nothing of the write is stored."""
    if table.name == "mysql":
        pytest.skip("it defers no constraints")
    table.run("DROP TABLE IF EXISTS words")
    table.run("DROP TABLE IF EXISTS known")
    table.run("CREATE TABLE known (id INT PRIMARY KEY)")
    table.run("INSERT INTO known VALUES (1), (3)")
    table.make("id INT NOT NULL REFERENCES known (id) DEFERRABLE INITIALLY DEFERRED")
    options: dict[str, Any] = {}
    if table.name == "sqlite":
        engine = sa.create_engine(table.url)
        event.listen(engine, "connect", lambda dbapi, _: dbapi.execute("PRAGMA foreign_keys = ON"))
        options["url"] = engine
    async with table.sink(("id",), **options) as sink:
        rows = [(1,), (2,), (3,)]
        assert names(await written(sink, rows)) == dict.fromkeys(range(3), "PermanentError")
        assert await table.looked("id") == []
        found = await send(stack(sink, Isolate()), RowBatch(rows))
        assert names(found) == {1: "PermanentError"}
    assert await table.looked("id") == [(1,), (3,)]
    table.run("DROP TABLE words")
    table.run("DROP TABLE known")


async def test_only_some_columns_are_replaced(table: SqlTable) -> None:
    table.make("id INT NOT NULL UNIQUE, word VARCHAR(20), made VARCHAR(20)")
    columns = ("id", "word", "made")
    async with table.sink(columns, on_conflict="update", update_columns=["word"]) as sink:
        assert await written(sink, [(1, "a", "first")]) == {}
        assert await written(sink, [(1, "b", "second")]) == {}
    assert await table.looked("id, word, made") == [(1, "b", "first")]


async def test_values_of_other_types(table: SqlTable) -> None:
    """They pass through SQLAlchemy's own processors for the column type."""
    number = "NUMERIC(10, 2)"
    table.make(f"id INT NOT NULL UNIQUE, at TIMESTAMP NULL, price {number}, data JSON")
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).replace(tzinfo=None)
    async with table.sink(("id", "at", "price", "data")) as sink:
        assert (
            await written(sink, [(1, at, Decimal("1.25"), {"a": [1, None]}), (2, None, None, None)])
            == {}
        )
    (row, _) = await table.looked("at, price, data")
    assert str(row[0]).startswith("2026-01-02 03:04:05")
    assert float(row[1]) == 1.25
    assert str(row[2]).replace("'", '"').replace("None", "null") == '{"a": [1, null]}'


JSON_VALUES = [
    {"a": [1, None, "\u00e9"]},
    ["b", {}],
    "text",
    'a "quoted" one',
    5,
    1.5,
    True,
    [],
    {},
]


async def test_json_columns_take_any_value_with_a_json_form(table: SqlTable) -> None:
    """A text column with a check is not one; `None` is NULL."""
    table.make("id INT NOT NULL UNIQUE, data JSON, word VARCHAR(20) CHECK (word <> 'x')")
    rows = [(number, value, "{}") for number, value in enumerate(JSON_VALUES)]
    async with table.sink(("id", "data", "word")) as sink:
        assert await written(sink, [*rows, (99, None, None)]) == {}
    *found, (number, data, word) = await table.looked("id, data, word")
    assert (number, data, word) == (99, None, None)
    for number, data, word in found:
        read = json.loads(data) if isinstance(data, str) else data
        assert read == JSON_VALUES[number]
        assert word == "{}"


async def test_json_columns_of_mariadb_by_their_table(mariadb: MariaDbServer) -> None:
    """MariaDB has text columns with a check instead; only those of this table, in this schema,
    count.
    """
    table = SqlTable(mariadb.url())
    table.run("CREATE DATABASE IF NOT EXISTS other")
    table.run("DROP TABLE IF EXISTS other.words")
    table.make("id INT NOT NULL UNIQUE, word JSON")
    table.run("CREATE TABLE other.words (id INT NOT NULL UNIQUE, word TEXT, `a b` JSON)")
    columns = ("id", "word", "a b")
    async with table.sink(columns, schema="other") as sink:
        errors = await written(sink, [(1, "{}", {"a": 1}), (2, ["a"], {})])
        assert names(errors) == {1: "PermanentError"}
    with table.engine.connect() as con:
        found = con.exec_driver_sql("SELECT * FROM other.words").fetchall()
        assert [tuple(row) for row in found] == [(1, "{}", '{"a": 1}')]
    table.run("DROP DATABASE other")


async def test_names_are_taken_literally(table: SqlTable) -> None:
    """Whatever characters they contain."""
    odd = (
        'Or"der % x' if table.name == "mysql" else 'Or"der % `x'
    )  # SQLAlchemy reads ` as two there
    quoted = table.engine.dialect.identifier_preparer.quote_identifier(odd)
    table.make(f"{quoted} INT NOT NULL UNIQUE")
    async with table.sink((odd,), on_conflict="update") as sink:
        assert await written(sink, [(1,), (2,), (1,)]) == {}
    assert sorted(await table.looked(quoted)) == [(1,), (2,)]


# -- tables that do not fit ------------------------------------------------------------------------


async def test_columns_that_do_not_fit(table: SqlTable) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"columns": ("id", "wrod")},
            "columns='wrod': is not a column of 'words'; it has nr, id, word",
        ),
        ({"columns": ("id",)}, "must include 'word'"),
        (
            {"on_conflict": "update", "conflict_columns": ("word",)},
            "are not a unique key of 'words'",
        ),
    ]
    for options, told in cases:
        with pytest.raises(ConfigError) as caught:
            async with table.sink(**options):
                pass
        assert told in str(caught.value)


async def test_a_table_that_does_not_exist(table: SqlTable) -> None:
    table.run("DROP TABLE words")
    with pytest.raises(ConfigError, match="table='words': does not exist"):
        async with table.sink():
            pass


async def test_a_table_that_is_altered_under_an_open_sink(table: SqlTable) -> None:
    """No row is given up because of it: all are refused until the table fits, then stored."""
    async with table.sink() as sink:
        assert await written(sink, [(1, "a")]) == {}
        table.run("ALTER TABLE words RENAME COLUMN word TO term")
        errors = await written(sink, [(2, "b"), (3, None)])
        kinds = {classified(error, sink.classify) for error in errors.values()}
        assert {*errors} == {0, 1}
        assert kinds == {ErrorClass.REFUSED}
        table.run("ALTER TABLE words RENAME COLUMN term TO word")
        assert names(await written(sink, [(2, "b"), (3, None)])) == {1: "PermanentError"}
    assert await table.looked() == [(1, "a"), (2, "b")]


async def test_a_column_that_needs_a_value_and_has_none(table: SqlTable) -> None:
    """A column is added under an open sink: the table is at fault, not a row."""
    if table.name == "sqlite":
        pytest.skip("such a column cannot be added")
    table.make()
    async with table.sink() as sink:
        table.run("ALTER TABLE words ADD COLUMN more INT NOT NULL")
        errors = await written(sink, [(2, "b"), (3, "c")])
        kinds = {classified(error, sink.classify) for error in errors.values()}
        assert kinds == {ErrorClass.REFUSED}
    assert await table.looked() == []


async def test_an_engine_without_transactions(mariadb: MariaDbServer) -> None:
    table = SqlTable(mariadb.url())
    table.make(after=" ENGINE=MyISAM")
    with pytest.raises(ConfigError, match="has the engine MyISAM, which has no transactions"):
        async with table.sink():
            pass


async def test_rows_beyond_the_packet_of_a_server(mariadb: MariaDbServer) -> None:
    """batcher/B37: statements are kept below `max_allowed_packet`; a row above it fails alone."""
    table = SqlTable(mariadb.url())
    table.make("id INT NOT NULL UNIQUE, word LONGTEXT NOT NULL")
    rows = [(number, "x" * 300_000) for number in range(120)]
    rows[60] = (60, "x" * 17_000_000)
    async with table.sink() as sink:
        errors = await written(sink, rows)
    assert {index: type(error) for index, error in errors.items()} == {60: TooLargeError}
    lengths = await table.looked("id, LENGTH(word)")
    assert lengths == [(number, 300_000) for number in range(120) if number != 60]


# -- arguments and secrets -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"url": "oracle+oracledb://u:secret@h/d"},
            "must be MySQL, MariaDB or SQLite",
        ),
        ({"url": "mssql+pyodbc://u:secret@h/d"}, "must be MySQL, MariaDB or SQLite"),
        ({"url": "postgresql+asyncpg://u:secret@h/d"}, "use PostgresSink"),
        ({"url": "sqlite+aiosqlite:///a.db"}, "names an async driver"),
        ({"url": "not a url"}, "must be an SQLAlchemy URL"),
        ({"url": "sqlite://"}, "must name a file"),
        ({"url": 7}, "an engine, or a function that returns one"),
        ({"columns": "id"}, "must be a sequence of at least one column name"),
        ({"columns": ["id", "id"]}, "without repetitions"),
        ({"on_conflict": "replace"}, "must be one of"),
        ({"version_column": "id"}, 'needs on_conflict="update"'),
        ({"conflict_columns": ["id"]}, 'needs on_conflict="ignore" or "update"'),
        ({"on_conflict": "update", "update_columns": ["x"]}, "must be among columns="),
        ({"pool_size": 0}, "at least 1"),
        ({"engine_options": {"pool_size": 3}}, "is set by Sluicegate"),
        ({"row": 5}, "must be a function of an item"),
        ({"colums": ["id"]}, "columns"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {
        "url": "mysql+pymysql://u:secret@h/d",
        "table": "t",
        "columns": ["id"],
        **arguments,
    }
    with pytest.raises(ConfigError) as caught:
        SqlSink(given.pop("url"), **given)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_a_password_is_never_shown(table: SqlTable) -> None:
    """Nor in the error of a refused login."""
    if table.name == "sqlite":
        pytest.skip("it has none")
    url = sa_url(table.url, "wrong-secret")
    sink = table.sink(url=url)
    assert "wrong-secret" not in repr(sink)
    with pytest.raises(ConfigError, match="the database refuses") as caught:
        async with sink:
            pass
    assert "wrong-secret" not in str(caught.value)


def sa_url(url: str, password: str) -> str:
    return sa.make_url(url).set(password=password).render_as_string(hide_password=False)


async def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    from sluicegate import UnavailableError

    for url in (
        "mysql+pymysql://u@127.0.0.1:1/d",
        f"sqlite:///{tmp_path}/missing/rows.db",
    ):
        with pytest.raises(UnavailableError, match="no database answers at"):
            async with SqlSink(url, table="t", columns=["id"]):
                pass


async def test_an_engine_of_the_users(table: SqlTable) -> None:
    """It stays open; a function creates one for each opening."""
    async with table.sink(url=table.engine) as sink:
        assert await written(sink, [(1, "a")]) == {}
    async with table.sink(url=lambda: table.engine) as sink:
        assert await written(sink, [(2, "b")]) == {}
    assert await table.looked() == [(1, "a"), (2, "b")]
