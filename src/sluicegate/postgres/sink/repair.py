"""Writes that did not succeed immediately: the cause of a failed statement, and rows of an attempt
with an unknown outcome.

The cause is the connection, the way of sending, the table, or individual rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..._core.errors import PermanentError, RefusedError, UnknownOutcomeError, UnverifiableError
from ..._core.values.rows import NULL_KEY
from ..client.errors import (
    NO_PRIVILEGE,
    blames_row,
    copy_row,
    for_write,
    has_no_statement,
    is_about_items,
    is_from_server,
    is_gone,
    is_lost,
    is_stale,
    names_column,
    sqlstate,
)
from ..copying.rows import Declined
from .diagnosis import query_again
from .encoding import refused_rows
from .plan import EXACT, LOOSE
from .rows.values import LazyRows
from .scope import StatementLost
from .sender import STAGED_FROM

if TYPE_CHECKING:
    from asyncpg import Record

    from .sender import Sender

_BAD_BINARY = "22P03"
_OTHER_TYPES = frozenset({"42883", "42704", "42846"})
"""No operator compares the types, a type no longer exists, or a type cannot be cast."""
_REPLACED_TWICE = "21000"
_NO_COPY = frozenset({"0A000", "42809"})
"""Row-level security applies to the role, or the table is a view."""


class Blame:
    """Finds the cause of an error of one write."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._is_read_again = False

    async def recover(self, error: Exception) -> None:
        """Make the connection ready for another statement.

        Raises errors that leave no usable connection, and errors that are not caused by a row.
        """
        sender = self._sender
        if isinstance(error, UnknownOutcomeError):
            raise error
        if is_lost(error) or is_gone(sender.con):
            raise for_write(error, sealed=sender.sealed)  # the cause is set
        await sender.undo()
        if not (is_stale(error) or is_about_items(error)):
            raise for_write(error, sealed=False)

    async def sends_again(self, error: Exception) -> bool:
        """Whether to send the same rows again, because the way of sending caused the error."""
        sender = self._sender
        if is_stale(error):
            await self.prepare_again(error)
            return True
        if isinstance(sender.remaining.rows, LazyRows) and sqlstate(error) == _BAD_BINARY:
            sender.as_tuples()  # the encoding of columns is at fault, not a row
            return True
        if sqlstate(error) == _REPLACED_TWICE and not sender.may_repeat_keys:
            sender.expect_repeated_keys()
            return True
        if sender.is_packed and (isinstance(error, Declined) or sqlstate(error) == _BAD_BINARY):
            sender.pack_no_more()
            return True
        table = sender.plan.table
        if (
            sender.compares_types
            and sender.copying == table.name
            and sqlstate(error) in _OTHER_TYPES
            and is_from_server(error)
        ):
            sender.compare_apart()
            return True
        if (
            table.takes_copy
            and sender.copying == table.name
            and sqlstate(error) in _NO_COPY
            and is_from_server(error)
        ):
            sender.use_no_copy()
            return True
        return await self._read_again(error)

    async def _read_again(self, error: Exception) -> bool:
        """Read the table again, once, before a row is blamed; return whether the plan changed.

        Raises `RefusedError` if the sink can no longer write to the table.
        """
        if self._is_read_again:
            return False
        self._is_read_again = True
        sender, diagnosis = self._sender, self._sender.diagnosis
        try:
            plan = await diagnosis.read_again(sender.con, sender.plan, error)
            lacks = sqlstate(error) == NO_PRIVILEGE and await diagnosis.is_unprivileged(
                sender.con, plan, again=bool(sender.remaining.maybe)
            )
        except Exception as second:
            if isinstance(second, RefusedError) or is_lost(second):
                raise for_write(second, sealed=False)  # noqa: B904  # the cause is set
            raise await refusal_of(sender, error) from second
        if lacks:
            raise await refusal_of(sender, error)
        if plan == sender.plan:
            return False
        sender.use(plan)
        await sender.con.reload_schema_state()
        return True

    async def prepare_again(self, error: Exception) -> None:
        """Forget the connection's prepared statements and types; raise if that has not helped
        before.

        A pooler may use another session for each transaction. So rows whose statement is lost twice
        are written in a transaction without prepared statements.
        """
        if self._sender.scope.may_switch and has_no_statement(error):
            raise StatementLost from error
        if self._sender.lost_statements >= STAGED_FROM:
            raise await refusal_of(self._sender, error)
        await self._sender.forget_statements()

    async def drop_named(self, error: Exception) -> bool:
        """Fail the rows that asyncpg or the server names; return whether there were any."""
        sender = self._sender
        remaining = sender.remaining
        if not is_from_server(error):
            refused = await query_again(
                sender.con, partial(refused_rows, sender.con, sender.plan, remaining.rows)
            )
            if not refused:
                raise error
            remaining.drop(refused)
            return True
        if sender.copying is None:
            return False
        if not (self.is_row(error) or (sender.copying == LOOSE and names_column(error, LOOSE))):
            return False
        line = copy_row(error, sender.copying, len(remaining.rows))
        if line is None:
            return False
        remaining.drop({sender.place_of(line): error})
        return True

    def is_row(self, error: Exception) -> bool:
        """Whether the error alone proves that a row is at fault."""
        return isinstance(error, PermanentError) or blames_row(
            sqlstate(error) or "", getattr(error, "column_name", None), self._sender.plan.columns
        )


async def refusal_of(sender: Sender, error: Exception) -> RefusedError:
    """Roll the write back; convert `error` to a refusal of every write, with its repair."""
    if not is_gone(sender.con):
        await sender.undo()
    again = bool(sender.remaining.maybe)
    return await sender.diagnosis.refusal(sender.con, sender.plan, error, again=again)


async def resend(sender: Sender) -> bool:
    """Write the rows that an earlier attempt did not store, by staging and `ON CONFLICT DO NOTHING`;
    the others are duplicates. If conflicts are errors, each skipped row is compared with the stored
    one in the same statement.

    Returns `False`, with nothing written, if a conflict needs a verdict: of a row without an
    earlier attempt, of rows with the same key, or with a stored row of other values.
    """
    await sender.compare_types()
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
    sender.remaining.note_duplicates([row["o"] for row in skipped])
    await sender.commit()
    return True


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
