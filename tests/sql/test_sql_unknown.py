"""Rows of attempts with an unknown outcome, sent again: a conflict is a duplicate only if the table
holds the item's own row.

The state after a lost answer is made by a first write of the same items, or by another writer.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.sink.postgres_help import batch_of, outcomes
from tests.sinks.conflict_cases import (
    DIFFERING,
    KEPT,
    STOPPED,
    TOLD,
    UNKNOWN,
    batch_of_cases,
    expected_outcomes,
    stored_after,
    taken,
)
from tests.sql.sql_help import names, written

from sluicegate import send

if TYPE_CHECKING:
    from tests.sql.sql_help import SqlTable

pytestmark = pytest.mark.usefixtures("real_clock")


@pytest.mark.parametrize("has_keys", [pytest.param(False, marks=pytest.mark.long), True])
async def test_a_conflict_is_judged_by_the_stored_row_and_by_the_items_before(
    table: SqlTable, *, has_keys: bool
) -> None:
    """batcher/4b.11. With keys, the items behind a failed one of their key wait."""
    for number, word in taken().items():
        table.run(f"INSERT INTO words (id, word) VALUES ({number}, '{word}')")
    batch = batch_of_cases(has_keys=has_keys)
    async with table.sink() as sink:
        errors = names(await send(sink, batch))
    assert outcomes(batch) == expected_outcomes(has_keys=has_keys)
    assert {at for at, name in errors.items() if name == "StoredRowDiffers"} == DIFFERING
    stopped = {at for at, name in errors.items() if name == "KeyStopped"}
    assert stopped == (STOPPED if has_keys else set())
    assert dict(await table.looked()) == stored_after()


CASTS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "mysql": (
        "id CHAR(5) COLLATE utf8mb4_general_ci UNIQUE, a DECIMAL(5, 2), b FLOAT, c DATETIME, d JSON, "
        "e TIMESTAMP NOT NULL, f VARBINARY(9) NOT NULL",
        ("A", Decimal("1.005"), 0.1, datetime(2024, 1, 1, 12, 0, 0, 600_000), {"k": [1.5]},
         datetime(2024, 1, 1), b"\0\xff"),
        "b = 0.100001",
    ),
    "sqlite": (
        "id TEXT COLLATE NOCASE UNIQUE, a INTEGER, b REAL, c DATETIME, d JSON, e NUMERIC, f BLOB",
        ("A", "7", 1, datetime(2024, 1, 1), {"k": [1.5]}, "1.50", b"\0"),
        "b = 1.000001",
    ),
}  # fmt: skip


async def test_values_are_compared_as_the_columns_hold_them(table: SqlTable) -> None:
    """Rounded, padded and converted values are the item's own; the least change of one is not, nor
    is another spelling of the key.
    """
    columns, values, change = CASTS[table.name]
    table.make(columns)
    async with table.sink(("id", "a", "b", "c", "d", "e", "f")) as sink:
        assert await written(sink, [values]) == {}
        again = batch_of([values], maybe=[0])
        assert await send(sink, again) == {}
        assert outcomes(again) == [TOLD]
        for each in (change, "id = 'a'"):
            table.run(f"UPDATE words SET {each}")
            changed = batch_of([values], maybe=[0])
            assert names(await send(sink, changed)) == {0: "StoredRowDiffers"}
            assert outcomes(changed) == [UNKNOWN]
            table.run("DELETE FROM words")
            assert await written(sink, [values]) == {}


@pytest.mark.parametrize("mode", ["error", "update"])
async def test_another_unique_key_that_is_taken_is_no_duplicate(table: SqlTable, mode: str) -> None:
    """Another writer's row has the item's word, and none has its id."""
    if table.name == "mysql" and mode == "update":
        pytest.skip("MySQL updates the row of any unique key")
    table.make("id INT NOT NULL UNIQUE, word VARCHAR(20) NOT NULL UNIQUE")
    table.run("INSERT INTO words (id, word) VALUES (9, 'taken')")
    async with table.sink(
        on_conflict=mode, conflict_columns=None if mode == "error" else ["id"]
    ) as sink:
        batch = batch_of([(1, "taken"), (2, "free")], maybe=[0, 1])
        assert names(await send(sink, batch)) == {0: "StoredRowDiffers"}
    assert outcomes(batch) == [UNKNOWN, KEPT]
    assert await table.looked() == [(9, "taken"), (2, "free")]


@pytest.mark.parametrize(
    "mode", ["error", pytest.param("ignore", marks=pytest.mark.long), "update"]
)
async def test_a_key_with_null_is_not_sent_again(table: SqlTable, mode: str) -> None:
    """No conflict would keep it from being stored twice."""
    table.make("id INT UNIQUE, word VARCHAR(20)")
    async with table.sink(on_conflict=mode, conflict_columns=_target(mode)) as sink:
        batch = batch_of([(None, "a"), (1, "b"), (None, "c")], maybe=[0, 1])
        assert names(await send(sink, batch)) == {0: "UnverifiableError"}
    assert sorted(row[1] for row in await table.looked()) == ["b", "c"]


def _target(mode: str) -> list[str] | None:
    return None if mode == "error" else ["id"]


async def test_rows_of_a_table_without_a_key_stay_unknown(table: SqlTable) -> None:
    table.make("id INT, word VARCHAR(20)")
    async with table.sink() as sink:
        batch = batch_of([(1, "a")], maybe=[0])
        assert names(await send(sink, batch)) == {0: "UnverifiableError"}
    assert await table.looked() == []
