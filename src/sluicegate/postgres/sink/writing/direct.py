"""The first attempt of a small batch: one statement, without the objects that repair a write.

They cost more than sending a few rows. Only batches that the general path would send unchanged,
with the same statement, are written here. After an error that path takes over, as if it had sent
the statement.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..rows.changed import are_kept, are_rounded
from ..rows.numbers import shortest
from ..rows.order import arranged
from ..rows.versions import unversioned
from .values import statement_for_values

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from ...._core.values.rows import GivenRows
    from ..plan.plan import TablePlan
    from ..plan.strategy import Chooser
    from .scope import Scope

_EXACT = frozenset({NoneType, UUID, bool, bytes, date, datetime, int, str, time, timedelta})
"""Types whose values are stored unchanged, except in columns of dates, of times of a day, and of geometric types."""


async def write_directly(
    con: PoolConnectionProxy[Any],
    plan: TablePlan,
    given: GivenRows,
    chooser: Chooser,
    scope: Scope,
) -> bool:
    """Write the rows; return whether that was possible. Raises the errors of the statement."""
    _, rows, errors = given
    if (
        errors
        or not rows
        or plan.is_converted
        or not isinstance(rows, (tuple, list))
        or scope.begins_first
        or unversioned(rows, plan)
        or chooser.choose(plan, len(rows)) != "values"
    ):
        return False
    values = list(chain.from_iterable(rows))
    if plan.checks_exact or not _EXACT.issuperset(map(type, values)):
        if not are_kept(rows, plan.checked_places) or are_rounded(rows, plan.rounded_places):
            return False
        rows = shortest(rows, plan.numeric_places)
        values = list(chain.from_iterable(rows))
    found = statement_for_values(plan, rows)
    if found is None:
        return False
    statement, places = found
    if not isinstance(places, range):
        values = list(chain.from_iterable(arranged(rows, places)))
    await con.execute(statement, *values)
    return True
