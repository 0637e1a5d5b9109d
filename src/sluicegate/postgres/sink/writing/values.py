"""One `INSERT` of all rows, with a parameter per value.

1. `ON CONFLICT DO UPDATE` refuses to replace a row twice in one statement. If keys may be equal,
   the rows are ranked first, as with the other statements. Keys that differ in Python but not in
   the column's type are detected by the server (`Blame`), and the write is repeated.
2. If every row is stored, the rows are returned in the order in which they were sent. Otherwise they are matched by their keys,
   which must not be NULL.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from ..rows.order import arranged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan.plan import TablePlan
    from ..rows.lazy import Row
    from .sender import Sender


async def insert_values(sender: Sender) -> None:
    """Write the remaining rows."""
    rows = sender.remaining.rows
    found = statement_for_values(sender.plan, rows, may_repeat=sender.may_repeat_keys)
    if found is None:
        return await sender.insert_rows()
    statement, places = found
    values = chain.from_iterable(arranged(rows, places))
    return await sender.insert_at_once(statement, *values, places=places)


def statement_for_values(
    plan: TablePlan, rows: Sequence[Row], *, may_repeat: bool = False
) -> tuple[str, Sequence[int]] | None:
    """The statement, and the places of the rows in the order in which it takes them; `None` if none
    can assign the returned rows to their places.
    """
    count, places, keys = len(rows), None, None
    if count == 1 and not plan.returning:
        return plan.values(1), range(1)
    if plan.mode == "update":
        keys = [*map(plan.key_of, rows)]
    ranks = keys is not None and (may_repeat or _repeats(keys))
    if not ranks and (plan.returns_all or not plan.returning):
        places = plan.sent_places(rows, keys)
    if places is not None:
        return plan.values(count), places
    if plan.returning and _has_unmatched(plan, rows):
        return None
    return plan.merge_values(count), range(count)


def _repeats(keys: list[object]) -> bool:
    """Whether two of the keys may be the same."""
    if len(keys) == 1:
        return False
    try:
        return len(set(keys)) < len(keys)
    except TypeError:  # a value that cannot be hashed
        return True


def _has_unmatched(plan: TablePlan, rows: Sequence[Row]) -> bool:
    places = plan.key_places
    return plan.mode == "error" or any(row[place] is None for row in rows for place in places)
