"""Changes of the table since the plan was made, checked once per write."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...._core.errors import RefusedError
from ...client.errors import NO_PRIVILEGE, for_write, is_lost, sqlstate
from ..plan.table import is_current
from ..rows.changed import are_rounded
from ..rows.lazy import LazyRows
from ..writing.fast import statement_for
from .judge import asked_again

if TYPE_CHECKING:
    from ..plan.strategy import Chooser
    from ..writing.sender import Sender
    from .judge import Judge


class TableChanges:
    """Compares the table with the plan of one write, and replaces an outdated plan."""

    def __init__(self, sender: Sender, judge: Judge) -> None:
        self._sender = sender
        self._judge = judge
        self._is_compared = False
        self._is_read_again = False

    async def before_sending(self, chooser: Chooser) -> None:
        """Compare the columns, once, before values are checked, cast or encoded by type.

        The bytes of a number may also be a valid date, and asyncpg caches the types that it has
        seen in a `COPY`. A `COPY` directly into the table compares the types itself, without a
        round trip; that is sufficient unless values are converted by type beforehand. The server
        replans a statement with parameters, so for such a statement the comparison is made only if
        asyncpg would truncate a value to the column's previous type.
        """
        if self._is_compared or not self._depends_on_types(chooser):
            return
        sender = self._sender
        con, plan = sender.con, sender.plan
        if not await asked_again(con, partial(is_current, con, plan.table, plan.columns)):
            changed = TypeError("the table's columns have changed since the sink was opened")
            sender.use(await self._judge.read_again(con, plan, changed))
            await con.reload_schema_state()
        self._is_compared = True

    def compare_again(self) -> None:
        """Compare again before the next statement, since the types have changed."""
        self._is_compared = False

    def _depends_on_types(self, chooser: Chooser) -> bool:
        sender, plan = self._sender, self._sender.plan
        rows = sender.remaining.rows
        if isinstance(rows, LazyRows):
            return True
        statement = statement_for(sender, chooser)
        if statement == "copy" and sender.compares_types:
            casts = plan.json_places or plan.numeric_places
            return bool(casts) or (not sender.packs and bool(sender.remaining.changed(plan)))
        if statement in {"copy", "staging"}:
            return True
        return bool(sender.remaining.changed(plan)) or are_rounded(rows, plan.rounded_places)

    async def after(self, error: Exception) -> bool:
        """Read the table again, once, before a row is blamed; return whether the plan changed.

        Raises `RefusedError` if the sink can no longer write to the table.
        """
        if self._is_read_again:
            return False
        self._is_read_again = True
        sender, judge = self._sender, self._judge
        try:
            plan = await judge.read_again(sender.con, sender.plan, error)
            lacks = sqlstate(error) == NO_PRIVILEGE and await judge.missing(
                sender.con, plan, again=bool(sender.remaining.maybe)
            )
        except Exception as second:
            if isinstance(second, RefusedError) or is_lost(second):
                raise for_write(second, sealed=False)  # noqa: B904  # the cause is set
            raise await judge.refuses(sender, error) from second
        if lacks:
            raise await judge.refuses(sender, error)
        if plan == sender.plan:
            return False
        sender.use(plan)
        await sender.con.reload_schema_state()
        return True
