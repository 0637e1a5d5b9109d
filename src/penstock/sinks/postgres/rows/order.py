"""The order in which the rows of a batch reach the server. Pure.

1. An `INSERT` locks the rows that it replaces, and the keys that it inserts, one after another. If
   two sessions write common keys in different orders, each may wait for the other: a deadlock. So
   rows that may conflict are sent in the order of their key, which depends on nothing but the
   table, and is the same for every statement and every service.
2. The order is that of the key's type, which never separates equal keys, whatever their spelling
   (`1.0` and `1.00`). Text whose equality is that of its bytes has the order of its bytes: it is
   cheaper than that of a collation, and the same in Python.
3. Rows of one key keep the order of the batch.
4. Statements that read from staging or arrays are sorted by the server (`PlanFacts.order`). Rows
   that are sent as parameters are sorted here if the Python type of each key certainly has the
   server's order, and by the server otherwise.
5. If a column that is not written takes the numbers of a sequence, rows keep the order of the batch,
   and so do the numbers.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan.plan import TablePlan
    from .lazy import Row

_TEXT = re.compile(r"text|character varying(?:\((\d+)\))?")
_NAIVE, _AWARE = "timestamp without time zone", "timestamp with time zone"
_TYPES: dict[str, type] = {
    "smallint": int,
    "integer": int,
    "bigint": int,
    "boolean": bool,
    "bytea": bytes,
    "date": date,
    "uuid": UUID,
    _NAIVE: datetime,
    _AWARE: datetime,
}
"""The types of PostgreSQL whose values have the order of this type of Python."""


def in_key_order(plan: TablePlan, rows: Sequence[Row]) -> Sequence[int] | None:
    """The places of the rows in the order in which they are sent; `None` if only the server can
    sort them.
    """
    places = range(len(rows))
    if len(rows) < 2 or plan.keeps_arrival:
        return places
    if not plan.reads_text:  # a codec of the user may store other values
        return None
    for place in plan.key_places:
        if not _has_order(plan, place, [row[place] for row in rows]):
            return None
    keys: list[Any] = [*map(itemgetter(*plan.key_places), rows)]
    return sorted(places, key=keys.__getitem__)


def arranged(rows: Sequence[Row], places: Sequence[int]) -> Sequence[Row]:
    """The rows in the order of their places."""
    return rows if isinstance(places, range) else [rows[place] for place in places]


def _has_order(plan: TablePlan, place: int, values: Sequence[Any]) -> bool:
    """Whether Python and the server sort these values of a column in the same order."""
    column, kinds = plan.table.column(plan.columns[place]), {*map(type, values)}
    if column.is_bytewise:
        found = _TEXT.fullmatch(column.exact)
        if found is None or kinds != {str}:
            return False
        return found[1] is None or max(map(len, values)) <= int(found[1])  # spaces would be cut off
    if kinds != {_TYPES.get(column.exact)}:
        return False
    if column.exact in {_NAIVE, _AWARE}:
        zone = UTC if column.exact == _AWARE else None
        return all(value.tzinfo is zone for value in values)
    return True
