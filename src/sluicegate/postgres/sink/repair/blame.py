"""The cause of a failed statement: the connection, the way of sending, the table, or single rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...._core.errors import PermanentError, UnknownOutcomeError
from ...client.errors import (
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
from ...copying.fields import Declined
from ..plan.temporary import LOOSE
from ..rows.lazy import LazyRows
from ..writing.encodable import refused_rows
from ..writing.fast import STAGED_FROM
from ..writing.scope import StatementLost
from .judge import asked_again

if TYPE_CHECKING:
    from ..writing.sender import Sender
    from .changes import TableChanges
    from .judge import Judge

_BAD_BINARY = "22P03"
_OTHER_TYPES = frozenset({"42883", "42704", "42846"})
"""No operator compares the types, a type no longer exists, or a type cannot be cast."""
_REPLACED_TWICE = "21000"
_NO_COPY = frozenset({"0A000", "42809"})
"""Row-level security applies to the role, or the table is a view."""


class Blame:
    """Finds the cause of an error of one write."""

    def __init__(self, sender: Sender, judge: Judge, changes: TableChanges) -> None:
        self._sender = sender
        self._judge = judge
        self._changes = changes

    async def recover(self, error: Exception) -> None:
        """Make the connection ready for another statement.

        Raises errors that leave no usable connection, and errors that are not caused by a row.
        """
        sender = self._sender
        if isinstance(error, UnknownOutcomeError):
            raise error
        if (
            is_lost(error)
            or is_gone(sender.con)
            or (sender.sealed and not is_from_server(error) and is_stale(error))
        ):
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
            self._changes.compare_again()
            return True
        if (
            table.takes_copy
            and sender.copying == table.name
            and sqlstate(error) in _NO_COPY
            and is_from_server(error)
        ):
            sender.use_no_copy()
            return True
        return await self._changes.after(error)

    async def prepare_again(self, error: Exception) -> None:
        """Forget the connection's prepared statements and types; raise if that has not helped
        before.

        A pooler may use another session for each transaction. So rows whose statement is lost twice
        are written in a transaction without prepared statements.
        """
        if self._sender.scope.may_switch and has_no_statement(error):
            raise StatementLost from error
        if self._sender.lost_statements >= STAGED_FROM:
            raise await self._judge.refuses(self._sender, error)
        await self._sender.forget_statements()

    async def drop_named(self, error: Exception) -> bool:
        """Fail the rows that asyncpg or the server names; return whether there were any."""
        sender = self._sender
        remaining = sender.remaining
        if not is_from_server(error):
            refused = await asked_again(
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
