"""The fast path: the statement that suits the number of rows, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plan.temporary import EXACT
from ..rows.changed import has_sequence
from ..rows.lazy import LazyRows
from .values import insert_values

if TYPE_CHECKING:
    from ..plan.strategy import Chooser
    from .sender import Sender

STAGED_FROM = 2
"""Number of lost prepared statements after which a write prepares none."""


async def send(sender: Sender, chooser: Chooser) -> None:
    """Write the remaining rows."""
    remaining, plan = sender.remaining, sender.plan
    remaining.drop_refused()
    rows = remaining.rows
    takes_columns = bool(rows) and not plan.returning
    if takes_columns and isinstance(rows, LazyRows) and await sender.copy_columns(rows):
        return None
    remaining.as_tuples(plan)
    if statement_for(sender, chooser) != "copy" or not sender.packs:
        remaining.drop_changed(plan)
    if not remaining.rows:
        return None
    statement = statement_for(sender, chooser)
    if statement == "values":
        return await insert_values(sender)
    if statement == "insert":
        return await sender.insert_rows()
    if statement == "unnest" and plan.merge_arrays is not None:
        columns = list(zip(*remaining.rows, strict=True))
        if any(map(has_sequence, columns)):
            return await sender.insert_rows()
        return await sender.insert_at_once(plan.merge_arrays, *columns)
    if statement == "copy":
        return await sender.copy_rows()
    await sender.begin_staging()
    await sender.stage(EXACT)
    await sender.merge(plan.merge)
    return await sender.commit()


def statement_for(sender: Sender, chooser: Chooser) -> str:
    """The statement for the remaining rows; staging if prepared statements keep getting lost."""
    if sender.lost_statements >= STAGED_FROM:
        return "staging"
    return chooser.choose(sender.plan, len(sender.remaining.rows))
