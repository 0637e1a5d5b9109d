"""Stored rows that have the keys of the rows of a write, compared by the database's own types.

The rows are inserted into a temporary table with the types of the table's columns, and joined with
the table by its key. So a value is rounded, padded or converted as in the table, and keys are equal
if the database takes them for equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._core.classify import classified
from .._core.errors import ErrorClass, UnverifiableError
from .errors import classify_sql, is_lost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from .batch import SqlBatch
    from .plan import SqlPlan
    from .rows import SqlRow


class StoredRow(NamedTuple):
    """The stored row of a key."""

    key: tuple[Any, ...]
    """As the database returns it."""
    is_same: bool
    """Whether the written columns have the same values."""
    details: dict[str, Any]
    """The columns to return."""


def stored_rows(
    con: Connection, plan: SqlPlan, batch: SqlBatch, rows: Sequence[SqlRow]
) -> dict[int, StoredRow]:
    """The stored row of each row's key, by the row's index; in an open transaction.

    Raises `UnverifiableError` if the database does not allow a temporary table.
    """
    try:
        con.exec_driver_sql(plan.dialect.drop_temporary)
        con.exec_driver_sql(plan.compared_table)
    except Exception as error:
        kind = classified(error, classify_sql)
        if is_lost(error) or kind not in {ErrorClass.PERMANENT, ErrorClass.REFUSED}:
            raise
        raise UnverifiableError(
            f"an earlier attempt may have stored rows in {plan.table}, and they cannot be compared: "
            f"the database allows no temporary table ({type(error).__name__}); grant the right to "
            "create one"
        ) from error
    for part in batch.parts(rows, more=1):
        _insert(con, plan, part)
    width = len(plan.quoted)
    found = plan.returned.by_key(con, con.exec_driver_sql(plan.compare), width=1 + 2 * width)
    con.exec_driver_sql(plan.dialect.drop_temporary)
    return dict(_compared(plan, width, found))


def _compared(
    plan: SqlPlan, width: int, found: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
) -> Iterator[tuple[int, StoredRow]]:
    for values, details in found:
        given, stored = values[1 : 1 + width], values[1 + width :]
        is_same = all(map(_are_equal, given, stored))
        yield values[0], StoredRow(tuple(stored[at] for at in plan.key_places), is_same, details)


def _are_equal(given: object, stored: object) -> bool:
    """Whether two values that the driver has read are the same; NaN is the same as NaN."""
    return bool(given == stored) or repr(given) == repr(stored)


def _insert(con: Connection, plan: SqlPlan, rows: Sequence[SqlRow]) -> None:
    """Insert rows to compare; leave out those whose values the database refuses."""
    con.exec_driver_sql("SAVEPOINT sluicegate_compared")
    values = tuple([value for row in rows for value in (row.index, *row.values)])
    try:
        con.exec_driver_sql(plan.insert_compared(len(rows)), values)
    except Exception as error:
        if is_lost(error) or classified(error, classify_sql) is not ErrorClass.PERMANENT:
            raise
        con.exec_driver_sql("ROLLBACK TO SAVEPOINT sluicegate_compared")
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]) if half else ():
            _insert(con, plan, part)
