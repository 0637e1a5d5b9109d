"""One `INSERT` of all rows, with a parameter per value.

1. `ON CONFLICT DO UPDATE` refuses to replace a row twice in one statement. If keys may be equal,
   the rows are ranked first, as with the other statements. Keys that differ in Python but not in
   the column's type are detected by the server (`Blame`), and the write is repeated.
2. If every row is stored, the rows are returned in order. Otherwise they are matched by their keys,
   which must not be NULL.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan.plan import TablePlan
    from ..rows.lazy import Row
    from .sender import Sender


async def insert_values(sender: Sender) -> None:
    """Write the remaining rows."""
    rows = sender.remaining.rows
    statement = statement_for_values(sender.plan, rows, may_repeat=sender.may_repeat_keys)
    if statement is None:
        return await sender.insert_rows()
    return await sender.insert_at_once(statement, *chain.from_iterable(rows))


def statement_for_values(
    plan: TablePlan, rows: Sequence[Row], *, may_repeat: bool = False
) -> str | None:
    """The statement; `None` if none can assign the returned rows to their places."""
    replaces, count = plan.mode == "update", len(rows)
    if plan.returning:
        if plan.returns_all and not (replaces and (may_repeat or _repeats(plan, rows))):
            return plan.values(count)
        return None if _has_unmatched(plan, rows) else plan.merge_values(count)
    if replaces and (may_repeat or _repeats(plan, rows)):
        return plan.merge_values(count)
    return plan.values(count)


def _repeats(plan: TablePlan, rows: Sequence[Row]) -> bool:
    """Whether two rows may have the same key."""
    if len(rows) == 1:
        return False
    try:
        return len(set(map(plan.key_of, rows))) < len(rows)
    except TypeError:  # a value that cannot be hashed
        return True


def _has_unmatched(plan: TablePlan, rows: Sequence[Row]) -> bool:
    places = plan.key_places
    return plan.mode == "error" or any(row[place] is None for row in rows for place in places)
