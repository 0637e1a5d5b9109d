"""Values that a driver or a database would change silently: each fails alone, or is stored as
documented. Compared by the database's own SELECT.

White box: errors are judged by the class that a retry would see.

Proven here: batcher/B38.

White box: the class that the stack sees, by the sink's and the common rules.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sqlalchemy as sa
from tests.sql.sql_help import SqlTable, names, written

from sluicegate import ConfigError, ErrorClass
from sluicegate._core.classify import classified
from sluicegate.errors import TooLargeError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sql.mariadb import MariaDbServer

pytestmark = pytest.mark.usefixtures("real_clock")
TOKYO = timezone(timedelta(hours=9))
AT = datetime(2026, 1, 2, 3, 4, 5)


async def test_a_key_of_another_class_is_the_same_key(table: SqlTable) -> None:
    """An equal number of NumPy, or a decimal, is the number of Python."""
    async with table.sink(on_conflict="update") as sink:
        for key, word in ((1, "a"), (np.int64(1), "b"), (Decimal(1), "c"), (True, "d")):
            assert await written(sink, [(key, word), (2, word)]) == {}
    assert await table.looked(order="id") == [(1, "d"), (2, "d")]


async def test_a_timestamp_of_mysql_is_in_the_zone_of_the_session(mariadb: MariaDbServer) -> None:
    """A time with a zone needs a session in UTC, and is not treated as one in another zone."""
    table = SqlTable(mariadb.url())
    table.make("id INT NOT NULL UNIQUE, at TIMESTAMP NULL")
    rows = [(1, AT.replace(tzinfo=TOKYO)), (2, None)]
    for zone, bad in (("+02:00", {0: "PermanentError"}), ("+00:00", {})):
        connect = {"connect_args": {"init_command": f"SET time_zone = '{zone}'"}}
        async with table.sink(("id", "at"), on_conflict="update", engine_options=connect) as sink:
            assert names(await written(sink, rows)) == bad
    assert await table.looked("id, UNIX_TIMESTAMP(at)", "id") == [(1, 1767290645), (2, None)]


async def test_an_automatic_number_beside_the_primary_key_may_be_left_out(
    mariadb: MariaDbServer,
) -> None:
    """The database generates it, as for a primary key."""
    table = SqlTable(mariadb.url())
    table.run("DROP TABLE IF EXISTS words")
    table.run("CREATE TABLE words (id INT PRIMARY KEY, word TEXT, nr INT AUTO_INCREMENT UNIQUE)")
    async with table.sink() as sink:
        assert await written(sink, [(7, "a"), (8, "b")]) == {}
    assert await table.looked("id, word, nr") == [(7, "a", 1), (8, "b", 2)]


async def test_a_generated_column_takes_no_values(table: SqlTable) -> None:
    """The columns are at fault, not every row."""
    table.make("id INT NOT NULL UNIQUE, more INT GENERATED ALWAYS AS (id + 1) STORED")
    with pytest.raises(ConfigError, match="columns='more': is a generated column of 'words'"):
        async with table.sink(("id", "more")):
            pass


async def test_a_row_without_a_version_is_replaced(table: SqlTable) -> None:
    """batcher/B38: a stored NULL is lower than any version."""
    table.make("id INT NOT NULL UNIQUE, version INT, word VARCHAR(20)")
    table.run("INSERT INTO words (id, word) VALUES (1, 'old')")
    columns = ("id", "version", "word")
    async with table.sink(columns, on_conflict="update", version_column="version") as sink:
        assert await written(sink, [(1, 1, "one")]) == {}
        assert await written(sink, [(1, 0, "zero")]) == {}
    assert await table.looked("id, version, word") == [(1, 1, "one")]


async def test_an_engine_that_truncates_is_told(
    mariadb: MariaDbServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, at opening; the sink's own sessions are strict, whatever the server's mode."""
    caplog.set_level("WARNING", "sluicegate.sql")
    table = SqlTable(mariadb.url())
    table.make()
    async with table.sink():
        assert caplog.messages == []
    async with table.sink(url=table.engine) as sink:
        assert await written(sink, [(1, "a")]) == {}
    (message,) = caplog.messages
    assert "its sessions are not strict" in message


async def test_backslashes_are_stored_as_they_are(mariadb: MariaDbServer) -> None:
    """Whatever the server's mode is at connection time: drivers escape bytes in one way."""
    table = SqlTable(mariadb.url())
    table.make("id INT NOT NULL UNIQUE, word TEXT")
    rows = [(1, "\\"), (2, "it's \\' \" \n"), (3, "a\\b")]
    table.run("SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
    try:
        async with table.sink() as sink:
            assert await written(sink, rows) == {}
        engine = sa.create_engine(table.url)
        with pytest.raises(ConfigError, match="sql_mode NO_BACKSLASH_ESCAPES"):
            async with table.sink(url=engine):
                pass
        engine.dispose()
    finally:
        table.run("SET GLOBAL sql_mode = ''")
    assert await table.looked() == rows


async def test_a_limit_that_is_lowered_under_an_open_sink(mariadb: MariaDbServer) -> None:
    """batcher/B37: the batch is sent in smaller statements; a row above the limit fails alone."""
    table = SqlTable(mariadb.url())
    table.make("id INT NOT NULL UNIQUE, word LONGTEXT NOT NULL")
    rows = [(number, "x" * 300_000) for number in range(10)]
    async with table.sink(on_conflict="ignore") as sink:
        table.run("SET GLOBAL max_allowed_packet = 1048576")
        try:
            with table.engine.connect() as con:
                query = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()"
                for (number,) in con.exec_driver_sql(query).fetchall():
                    con.exec_driver_sql(f"KILL {number}")
            errors: dict[int, BaseException] = {}
            for _ in range(3):  # the connections that are lost, then the limit
                errors = await written(sink, [*rows, (10, "x" * 2_000_000)])
        finally:
            table.run("SET GLOBAL max_allowed_packet = 16777216")
        assert {index: type(error) for index, error in errors.items()} == {10: TooLargeError}
    assert await table.looked("id, LENGTH(word)") == [(number, 300_000) for number in range(10)]


# -- tables that are altered under an open sink ----------------------------------------------------


def _idle(sink: Any) -> None:
    """Make the sink idle, as after a second without a write."""
    sink._table._read_at = float("-inf")


async def test_a_column_that_takes_more_than_before_takes_it_at_once(table: SqlTable) -> None:
    """A value is checked against the current table."""
    table.make(f"id INT NOT NULL UNIQUE, v {'NUMERIC' if table.name == 'sqlite' else 'INT'}")
    value = "007" if table.name == "sqlite" else 1.5
    async with table.sink(("id", "v")) as sink:
        assert names(await written(sink, [(1, value)])) == {0: "PermanentError"}
        table.run("ALTER TABLE words DROP COLUMN v")
        table.run(f"ALTER TABLE words ADD COLUMN v {'TEXT' if table.name == 'sqlite' else 'REAL'}")
        assert await written(sink, [(1, value)]) == {}
    assert await table.looked("v") == [(value,)]


async def test_a_column_of_another_type_is_noticed_before_a_write(table: SqlTable) -> None:
    """A text of JSON is a text, and a number with a fraction is no integer; the database raises no
    error.
    """
    json, real = "JSON", "TEXT" if table.name == "sqlite" else "DOUBLE"
    whole = "NUMERIC" if table.name == "sqlite" else "INT"
    value = "007" if table.name == "sqlite" else 1.5
    table.make(f"id INT NOT NULL UNIQUE, data {json}, v {real}")
    async with table.sink(("id", "data", "v")) as sink:
        assert await written(sink, [(1, {"a": 1}, value)]) == {}
        table.run("DROP TABLE words")
        table.make(f"id INT NOT NULL UNIQUE, data VARCHAR(20), v {whole}")
        _idle(sink)
        errors = await written(sink, [(2, "text", None), (3, "text", value)])
        assert names(errors) == {1: "PermanentError"}
    assert await table.looked("id, data") == [(2, "text")]


@pytest.mark.parametrize("size", [1, pytest.param(40_000, marks=pytest.mark.long)])
async def test_a_file_of_sqlite_that_is_replaced(tmp_path: Path, size: int) -> None:
    """SQLite refuses to write to the old file; a new connection writes to the new one."""
    table = SqlTable(f"sqlite:///{tmp_path}/rows.db")
    table.make()
    rows = [(number, "w") for number in range(size)]
    async with table.sink() as sink:
        assert await written(sink, [(-1, "w")]) == {}
        (tmp_path / "rows.db").rename(tmp_path / "old.db")
        table.make()
        errors = await written(sink, rows)
        kinds = {classified(error, sink.classify) for error in errors.values()}
        assert (kinds, len(errors)) == ({ErrorClass.TRANSIENT}, size)
        assert await written(sink, rows) == {}
        (tmp_path / "rows.db").unlink()
        for _ in range(2):
            errors = await written(sink, [(-2, "w")])
        assert classified(errors[0], sink.classify) is ErrorClass.REFUSED
        table.make()
        assert await written(sink, [(-3, "w")]) == {}
    assert await table.looked() == [(-3, "w")]


DESTINATIONS_FAULT = {
    1047: ErrorClass.UNAVAILABLE,
    1203: ErrorClass.THROTTLE,
    1356: ErrorClass.REFUSED,
    1449: ErrorClass.REFUSED,
    1305: ErrorClass.REFUSED,
    1020: ErrorClass.TRANSIENT,
    1030: ErrorClass.TRANSIENT,
    1105: ErrorClass.TRANSIENT,
    1036: ErrorClass.REFUSED,
    1026: ErrorClass.REFUSED,
}


@pytest.mark.parametrize(
    "number",
    [
        1047,
        1203,
        1449,
        *[
            pytest.param(each, marks=pytest.mark.long)
            for each in sorted(DESTINATIONS_FAULT.keys() - {1047, 1203, 1449})
        ],
    ],
)
async def test_an_error_of_the_destination_gives_no_row_up(
    mariadb: MariaDbServer, number: int
) -> None:
    """For example of a node that has left its cluster, or of a trigger whose definer no longer
    exists.
    """
    table = SqlTable(mariadb.url())
    table.make()
    async with table.sink() as sink:
        table.run(
            "CREATE TRIGGER fails BEFORE INSERT ON words FOR EACH ROW "
            f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'no'"
        )
        errors = await written(sink, [(1, "a"), (2, "b")])
        assert {classified(error, sink.classify) for error in errors.values()} == {
            DESTINATIONS_FAULT[number]
        }
        assert len(errors) == 2
        table.run("DROP TRIGGER fails")
        assert await written(sink, [(1, "a"), (2, "b")]) == {}
    assert await table.looked() == [(1, "a"), (2, "b")]
