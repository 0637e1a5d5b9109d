"""Values that a database would convert: times to dates, numbers to enum members, texts to arrays.
Each fails alone. Compared by the database's own SELECT.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.sql.mariadb import IS_MYSQL
from tests.sql.sql_help import SqlTable, names, written

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.sql.mariadb import MariaDbServer

pytestmark = pytest.mark.usefixtures("real_clock")
DAY = date(2026, 1, 2)
AT = datetime(2026, 1, 2, 3, 4, 5)


@pytest.fixture
def mysql(mariadb: MariaDbServer) -> SqlTable:
    """A MariaDB table."""
    return SqlTable(mariadb.url())


@pytest.fixture
def sqlite(tmp_path: Path) -> SqlTable:
    """A SQLite table."""
    return SqlTable(f"sqlite:///{tmp_path}/rows.db")


def quickly(kinds: Iterable[str], *quick: str) -> list[Any]:
    """All types; those besides `quick` run with the long tests, as `test_sql_accepted_values` has
    every class of values in each of them.
    """
    return [
        pytest.param(kind, marks=() if kind in quick else (pytest.mark.long,)) for kind in kinds
    ]


async def _stored(
    table: SqlTable, kind: str, bad: list[Any], good: list[Any], shown: str = "v"
) -> list[Any]:
    """The stored form of good values beside bad ones, which fail."""
    table.make(f"id INT NOT NULL UNIQUE, v {kind}")
    async with table.sink(("id", "v")) as sink:
        errors = await written(sink, [*enumerate([*bad, *good])])
    assert names(errors) == dict.fromkeys(range(len(bad)), "PermanentError"), kind
    return [value for (value,) in await table.looked(shown)]


MYSQL: dict[str, tuple[list[Any], list[Any], list[Any]]] = {
    # type: refused values, others, and what is stored of these
    "DATE": (
        [AT.time(), timedelta(hours=30), "03:04:05", "2026-01-02 03:04:05", "2026-01-02T03:04"],
        [DAY, "2026-01-02", "2026-01-02 00:00:00"],
        [DAY] * 3,
    ),
    "DATETIME": (
        [AT.time(), timedelta(hours=30), "03:04:05", "2026-01-02 03:04:05+09:00"],
        [AT, "2026-01-02 03:04:05", DAY],
        [AT, AT, datetime(2026, 1, 2)],
    ),
    "TIME": (
        ["2026-01-02 03:04:05", "03:04:05+09:00", AT],
        ["03:04:05", timedelta(hours=30)],
        [timedelta(hours=3, minutes=4, seconds=5), timedelta(hours=30)],
    ),
    "SET('a','b','3')": (["1", 1, 3, 1.0, "5"], ["3", "a,b", {"b"}], ["3", "a,b", "b"]),
    "ENUM('a','b','3')": ([1, "1", 2.0], ["3", "a"], ["3", "a"]),
    "BIT(8)": ([1.5], [3, True], [b"\x03", b"\x01"]),
    "YEAR": ([2026.6, Decimal("2026.5"), "2026.5"], [2026, "2026"], [2026, 2026]),
    "VARCHAR(4)": ([0.1 + 0.2], [1.25, "ab", 7], ["1.25", "ab", "7"]),
    "TEXT": ([], [0.1 + 0.2], ["0.30000000000000004"]),
}
if IS_MYSQL:  # the type of MariaDB is a text
    MYSQL["JSON"] = (
        [2**70, {"a": [2**64]}, [-(2**63) - 1], [10**5_000]],
        [2**64 - 1, [-(2**63)], 1e300],
        [str(2**64 - 1), f"[{-(2**63)}]", "1e300"],
    )


@pytest.mark.parametrize("kind", quickly(MYSQL, "DATE", "TIME", "SET('a','b','3')"))
async def test_values_that_mysql_takes_for_others(mysql: SqlTable, kind: str) -> None:
    bad, good, stored = MYSQL[kind]
    assert await _stored(mysql, kind, bad, good) == stored


async def test_zero_is_no_request_for_a_generated_number(mysql: SqlTable) -> None:
    """In an `AUTO_INCREMENT` column; NULL is such a request."""
    mysql.make("word VARCHAR(9)")
    async with mysql.sink(("nr", "word"), on_conflict="update") as sink:
        assert await written(sink, [(0, "a"), (5, "b"), (None, "c")]) == {}
        assert await written(sink, [(0, "d")]) == {}
    assert await mysql.looked("nr, word") == [(0, "d"), (5, "b"), (6, "c")]


SQLITE: dict[str, tuple[list[Any], list[Any], list[Any]]] = {
    "INTEGER": (
        ["9223372036854775808", "12345678901234567.89", float("nan"), "a", "1_0"],
        ["9223372036854775807", "-9223372036854775808", "007", "1.5", 1.5, Decimal("2.5")],
        [2**63 - 1, -(2**63), 7, 1.5, 1.5, 2.5],
    ),
    "TEXT": ([float("nan"), b"a"], [0.1 + 0.2, 5], ["0.30000000000000004", "5"]),
    "JSON": ([2**70], [2**53 + 1, [2**70]], [2**53 + 1, f"[{2**70}]"]),
}


@pytest.mark.parametrize("kind", SQLITE)
async def test_values_that_sqlite_takes_for_others(sqlite: SqlTable, kind: str) -> None:
    bad, good, stored = SQLITE[kind]
    assert await _stored(sqlite, kind, bad, good) == stored


async def test_constraints_of_sqlite_drop_no_row(sqlite: SqlTable) -> None:
    """A table may specify that conflicts are ignored, or resolved by deleting other rows."""
    sqlite.make(
        "id INT NOT NULL UNIQUE ON CONFLICT IGNORE, word TEXT NOT NULL ON CONFLICT IGNORE, "
        "code INT UNIQUE ON CONFLICT REPLACE"
    )
    async with sqlite.sink(("id", "word", "code")) as sink:
        assert await written(sink, [(1, "a", 1)]) == {}
        rows = [(1, "b", 2), (2, None, 3), (3, "c", 1), (4, "d", 4)]
        assert names(await written(sink, rows)) == dict.fromkeys(range(3), "PermanentError")
    assert await sqlite.looked("id, word, code") == [(1, "a", 1), (4, "d", 4)]
