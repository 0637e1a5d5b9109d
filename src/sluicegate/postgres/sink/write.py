"""One write of one batch on one connection.

1. The fast path comes first: one `INSERT` with a parameter per value below the threshold, `COPY`
   from the threshold on; with `ignore` and `update`, or if rows are returned, one `INSERT` from an
   array per column. Each is its own transaction, which the server commits by itself. That saves the
   two round trips of `BEGIN` and `COMMIT`; in return, a connection that breaks after the last row
   was sent leaves an unknown outcome, which the next attempt repairs (4). Very large batches of the
   latter kind are sent by `COPY` into a staging table, which takes a few milliseconds to create. A
   statement chosen by the user is used at any size; repairs choose their own. Most small batches
   need only their `INSERT` and reach this module only after an error (`write_directly`).
2. A bad row is named by asyncpg (which could not encode it) or by the server (`COPY events, line
   2`). It fails alone, and the remaining rows are written again, up to `MAX_HINTS` times. All rows
   that asyncpg cannot encode are found at once, without the server.
3. If no row is named, or too many were named, the remaining rows are *sifted*: staged loosely, then
   inserted row by row inside the server, each in a subtransaction. So any number of bad rows costs
   at most `MAX_HINTS` writes, one staging and one sifting, and with keys (5) a few more siftings.
4. After an unknown outcome the rows are sent through staging and `ON CONFLICT DO NOTHING`, once. A
   conflict is a `duplicate` only if the item was in the unknown attempt, and if the stored row is
   the item's (`KeyConflicts`); otherwise the item is at fault, or stays unknown.
5. In a batch with keys, the rows after a failed row of their key are left out with it, however the
   failure was found.
6. Before any row is blamed, the table is read again, once: rows that fail because of an outdated
   plan are written with the new one. A missing privilege, table or column refuses the whole write
   (`RefusedError`). An error whose code does not prove that a row is at fault is attributed to the
   table if sifting finds no row that can be stored, and to the row otherwise. If such rows come
   before the first stored one, they are sifted again, since an outage may have ended in between.
7. A lock or statement timeout while another session blocks the whole table (for example a
   migration) is an outage, and uses no attempts; a lock on single rows is transient.
8. A lost prepared statement is prepared again. That uses no attempt and is not logged. If
   statements need not be prepared, the whole write starts again instead (`StatementLost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.errors import TransientError
from ..client.errors import LOCK_NOT_AVAILABLE, for_write, is_lost, is_refusal, sqlstate
from ..client.refusals import for_connecting
from .repair.blame import Blame
from .repair.changes import TableChanges
from .repair.resend import resend, set_aside_unfindable
from .repair.sift import Sifting
from .writing.fast import send
from .writing.scope import ALONE
from .writing.sender import Sender

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from .plan.plan import TablePlan
    from .plan.strategy import Chooser
    from .repair.judge import Judge
    from .writing.packing import Packing
    from .writing.remaining import Remaining
    from .writing.scope import Scope

MAX_HINTS = 3
_WAITED = frozenset({LOCK_NOT_AVAILABLE, "57014"})
"""A lock timeout or a statement timeout was exceeded."""


class TableWrite:
    """Writes the rows of one batch: the fast path, and repairs after its errors."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        judge: Judge,
        remaining: Remaining,
        scope: Scope = ALONE,
        *,
        packing: Packing,
        failed: Exception | None = None,
    ) -> None:
        self._remaining = remaining
        self._judge = judge
        self._failed = failed
        """The error of an attempt that was made before, if any."""
        self._sender = Sender(con, plan, remaining, scope, packing, has_sent=failed is not None)
        self._changes = TableChanges(self._sender, judge)
        self._blame = Blame(self._sender, judge, self._changes)
        self._sifting = Sifting(self._sender, judge, self._blame)

    @property
    def plan(self) -> TablePlan:
        """The plan with which the rows were written; a new one if the table was changed."""
        return self._sender.plan

    async def run(self, chooser: Chooser) -> None:
        """Write every row; the results are then in the `Remaining`.

        Raises errors of the batch as a whole. Cancellation leaves the connection busy or in a
        transaction: it must be reset.
        """
        try:
            await self._run(chooser)
        except Exception as error:
            if is_refusal(error):
                raise await self._judge.refuses(self._sender, error)  # noqa: B904  # the cause is set
            if (
                sqlstate(error) in _WAITED
                and not self._sender.scope.is_inside
                and await self._is_locked()
            ):
                raise self._judge.locked(error, self.plan)  # noqa: B904  # the cause is set
            raise

    async def _run(self, chooser: Chooser) -> None:
        remaining, blame = self._remaining, self._blame
        if remaining.stop_keys():
            remaining.keep()
        remaining.drop_unversioned(self.plan)
        if not remaining.rows:
            return
        await self._begin()
        is_resent = bool(remaining.maybe) and self.plan.mode != "update"
        if remaining.maybe and not is_resent:
            self._sender.as_tuples()
            set_aside_unfindable(self._sender)
        hints = 0
        while remaining.rows:
            try:
                if (failed := self._failed) is not None:
                    self._failed = None
                    raise failed
                await self._changes.before_sending(chooser)
                if not is_resent:
                    await send(self._sender, chooser)
                    await self._sender.finish()
                elif not await resend(self._sender):
                    await self._sifting.run()
                return
            except Exception as error:
                await blame.recover(error)
                if await blame.sends_again(error):
                    continue
                hints += 1
                is_named = not is_resent and await blame.drop_named(error)
            if not is_named or hints == MAX_HINTS:
                await self._sifting.run()
                return

    async def _begin(self) -> None:
        try:
            await self._sender.scope.enter(self._sender.con)
        except Exception as error:
            told = for_write(error, sealed=False)
            if is_lost(error) and isinstance(told, TransientError):  # a pooler without a server
                told = for_connecting(error, self._judge.place)
            raise told  # noqa: B904  # the cause is set

    async def _is_locked(self) -> bool:
        """Whether another session's lock blocks the whole table, according to the server."""
        try:
            await self._sender.undo()
            await self._sender.begin(
                f"LOCK TABLE {self.plan.table.qualified} IN ROW EXCLUSIVE MODE NOWAIT"
            )
            await self._sender.undo()
        except Exception as error:  # for any other error, the original one is raised
            return sqlstate(error) == LOCK_NOT_AVAILABLE
        return False
