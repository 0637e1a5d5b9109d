"""Rows sent again after an unknown outcome: staging and `ON CONFLICT DO NOTHING`, once.

If conflicts are errors, each skipped row is compared with the stored one in the same statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core.errors import UnverifiableError
from ...._core.values.rows import NULL_KEY
from ..plan.temporary import EXACT

if TYPE_CHECKING:
    from collections.abc import Container

    from asyncpg import Record

    from ..writing.sender import Sender


async def resend(sender: Sender) -> bool:
    """Write the rows that an earlier attempt did not store; the others are duplicates.

    Returns `False`, with nothing written, if a conflict needs a verdict: of a row without an
    earlier attempt, of rows with the same key, or with a stored row of other values.
    """
    sender.as_tuples()
    set_aside_unfindable(sender)
    if not sender.remaining.rows:
        return True
    await sender.begin_staging()
    await sender.stage(EXACT)
    skipped = await sender.con.fetch(sender.plan.resend)
    if sender.plan.mode == "error" and not all(_is_ours(sender, row) for row in skipped):
        await sender.undo()
        return False
    places = [row["o"] for row in skipped]
    sender.remaining.note_duplicates(places)
    await note_stored(sender, EXACT, set(places))
    await sender.commit()
    return True


async def note_stored(sender: Sender, staging: str, skipped: Container[int]) -> None:
    """Record the returned columns of rows stored now or by an earlier attempt."""
    plan, remaining = sender.plan, sender.remaining
    if plan.returning:
        found = await sender.con.fetch(plan.found(staging))
        ours = [
            row
            for row in found
            if row["o"] not in skipped or remaining.indices[row["o"]] in remaining.outcomes
        ]
        remaining.note_returned(plan.returning, ours)


def set_aside_unfindable(sender: Sender) -> None:
    """Fail rows of an earlier attempt whose key contains NULL: they cannot be looked up, and would be
    stored twice.

    Raises `UnverifiableError` if the table has no usable key at all.
    """
    plan, remaining = sender.plan, sender.remaining
    places = plan.key_places
    if not places:
        raise UnverifiableError(
            f"an earlier attempt may have stored these rows, and {plan.table.qualified} has no "
            f"unique key among the columns {', '.join(plan.columns)}, so that sending them again "
            "could store them twice; add a unique index over columns that this sink writes"
        )
    lost = [
        place
        for place, index in enumerate(remaining.indices)
        if index in remaining.maybe and any(remaining.rows[place][key] is None for key in places)
    ]
    remaining.drop({place: UnverifiableError(NULL_KEY) for place in lost})


def _is_ours(sender: Sender, skipped: Record) -> bool:
    """Whether an earlier attempt has stored a skipped row."""
    place: int = skipped["o"]
    is_maybe = sender.remaining.indices[place] in sender.remaining.maybe
    return is_maybe and bool(skipped["same"]) and not skipped["again"]
