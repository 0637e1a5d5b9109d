"""Rows that may conflict are written in the order of their key, and leave what the same rows leave
one by one.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.sql.mariadb import IS_MYSQL
from tests.sql.sql_help import SqlTable, written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluicegate.batcher import LoopClock

WORDS = ["a", "B", "A", "b", "b ", "z", "rev-9", "Rev-10"]
TIMES = [datetime(2024, 5, 1) + timedelta(microseconds=each * 300_000) for each in range(6)]
NUMBERS = [Decimal(each) for each in ("1.04", "1.01", "2.0", "0", "-3")]
TYPES: dict[str, Sequence[Any]] = {
    "INT": [3, 1, 2, -1],
    "VARCHAR(20)": WORDS,
    "CHAR(20)": WORDS,
    "NUMERIC(5,1)": NUMBERS,
    "TIMESTAMP": TIMES,
}
OWN: dict[str, dict[str, Sequence[Any]]] = {
    "sqlite": {"TEXT COLLATE NOCASE": WORDS, "TEXT COLLATE RTRIM": WORDS},
    "mysql": {
        "DATETIME(3)": TIMES,
        "VARCHAR(20) COLLATE utf8mb4_bin": WORDS,
        "VARCHAR(20) COLLATE utf8mb4_general_ci": [*WORDS, "ä", "Ä"],
        "VARBINARY(9)": [b"a", b"B", b""],
    },
}
"""Types of one database only."""


def create(table: SqlTable, columns: str) -> None:
    """Recreate the table with these columns alone, none of which the database numbers."""
    table.run("DROP TABLE IF EXISTS words")
    table.run(f"CREATE TABLE words ({columns})")


@pytest.mark.parametrize("most", [1, pytest.param(99, marks=pytest.mark.long)])
async def test_a_batch_leaves_what_its_rows_leave_one_by_one(
    table: SqlTable, real_clock: LoopClock, most: int
) -> None:
    """batcher/B38, with each type as version and as key, and with a column that is not replaced."""
    for kind, values in [*{**OWN[table.name], **TYPES}.items()][:most]:
        shapes: dict[str, tuple[str, str | None, Callable[[int, Any], tuple[Any, ...]]]] = {
            "version": (f"k INT PRIMARY KEY, v {kind}, w INT", "v", lambda n, x: (n % 3, x, n)),
            "key": (f"k {kind} PRIMARY KEY, v INT, w INT", None, lambda n, x: (x, n, n)),
            "both": (f"k {kind} PRIMARY KEY, v INT, w INT", "v", lambda n, x: (x, n % 4, n)),
        }
        dice = random.Random(kind)
        for shape, (columns, version, row) in shapes.items():
            rows = [row(n, dice.choice(values)) for n in range(12)]
            left: list[list[tuple[Any, ...]]] = []
            for batches in ([[each] for each in rows], [rows]):
                create(table, columns)
                options: dict[str, Any] = {
                    "on_conflict": "update",
                    "version_column": version,
                    "update_columns": ("v",) if shape == "key" else None,
                }
                async with table.sink(("k", "v", "w"), **options) as sink:
                    for batch in batches:
                        assert await written(sink, batch) == {}, (kind, shape, rows)
                left.append([tuple(map(repr, each)) for each in table.rows("k, v, w", "k, w")])
            assert left[0] == left[1], (kind, shape, rows)


def deadlocks(table: SqlTable) -> str:
    """The number of deadlocks of MariaDB or MySQL."""
    with table.engine.connect() as con:
        status = con.exec_driver_sql(
            "SELECT name, count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
            if IS_MYSQL
            else "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"
        ).one()
    return str(status[1])


WAITING = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"


@pytest.mark.parametrize("mode", ["update", "ignore"])
@pytest.mark.parametrize(
    ("kind", "keys"), [("INT", [9, 10, 200]), ("VARCHAR(20)", ["A", "b", "C"])], ids=["int", "text"]
)
async def test_writers_of_common_keys_in_opposite_orders_do_not_deadlock(
    table: SqlTable, real_clock: LoopClock, kind: str, keys: Sequence[Any], mode: str
) -> None:
    """Another session holds the middle key until both writers wait: each for it, or for the other
    one. If they had locked keys in the order of their batches, they would then wait for each other.
    """
    if table.name == "sqlite":
        pytest.skip("it has one writer at a time")
    before = deadlocks(table)
    create(table, f"k {kind} PRIMARY KEY, v INT")
    found = ", ".join(f"({key!r}, 0)" for key in keys)
    table.run(f"INSERT INTO words VALUES {found}")
    async with AsyncExitStack() as stack:
        sinks = [
            await stack.enter_async_context(table.sink(("k", "v"), on_conflict=mode, pool_size=1))
            for _ in range(2)
        ]
        with table.engine.connect() as holder, table.engine.connect() as look:
            held = holder.begin()
            holder.exec_driver_sql(f"UPDATE words SET v = 7 WHERE k = {keys[1]!r}")
            async with asyncio.TaskGroup() as group:
                tasks = []
                for number, sink in enumerate(sinks, 1):
                    rows = [(key, number) for key in (keys if number == 1 else keys[::-1])]
                    tasks.append(group.create_task(written(sink, rows)))
                    while int(look.exec_driver_sql(WAITING).one()[-1]) != number:
                        look.rollback()
                        await asyncio.sleep(0)
                    look.rollback()
                held.rollback()
        assert [each.result() for each in tasks] == [{}, {}]
    assert deadlocks(table) == before
    assert {each[0] for each in table.rows("v", "k")} == {2 if mode == "update" else 0}


async def test_numbers_of_the_database_are_in_the_order_of_the_batch(
    table: SqlTable, real_clock: LoopClock
) -> None:
    keys = [*range(20)]
    random.Random(1).shuffle(keys)
    table.make()
    async with table.sink(on_conflict="update", conflict_columns=["id"]) as sink:
        assert await written(sink, [(key, "a") for key in keys]) == {}
    assert [each[0] for each in await table.looked("id")] == keys
