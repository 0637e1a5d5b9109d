"""A transaction on one connection, with several writes in it.

1. Each write runs in a savepoint, which the next one replaces. So everything that a failed or
   cancelled write left behind can be rolled back: there is no unknown outcome inside a transaction.
2. Writes are serialised, since they share a connection. Rows are made before their turn.
3. An error that needs a new connection or a new transaction ends the transaction: a broken
   connection, a server that cannot be written to, a serialization failure. All other errors belong
   to the write, which may be retried after its savepoint was rolled back. A refusal ends the
   transaction too, since waiting in it for an operator would hold its locks: leaving the
   transaction raises the refusal.
4. If the answer to the COMMIT is lost, the transaction is *in doubt*; only the ledger can tell.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...._clients.postgres.errors import (
    NO_PRIVILEGE,
    classify_postgres,
    is_gone,
    is_lost,
    is_refusal,
    sqlstate,
)
from ...._clients.postgres.refusals import refusal, refused_again, repair_of
from ...._core.causes import caused, causes
from ...._core.errors import ErrorClass, PenstockError, RefusedError, SinkError, TransactionLost
from ...._core.sink import Capabilities
from ...._core.told import for_log, text_of
from ...._core.transaction import Attempt, Unit, all_duplicate, has_ended
from ..staging.inventory import timeline
from ..writing.scope import SAVEPOINT, WITHIN
from .ledger import BEGIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg.pool import PoolConnectionProxy

    from ...._clients.postgres.statements import Statements
    from ...._core.batch import Batch
    from ...._core.positions import PositionUnit
    from ...._core.result import WriteResult
    from ..batches import TableWriter
    from ..plan.plan import TablePlan
    from .ledger import UnitLedger

_SERIALIZATION_FAILURE = "40001"
_OF_THE_WHOLE = frozenset({ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.UNKNOWN})


class PostgresTransaction(Attempt):
    """The transaction that `PostgresSink.transaction(unit)` gives."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        writer: TableWriter,
        *,
        statements: Statements,
        ledger: UnitLedger,
        unit: Unit | PositionUnit | None,
        target: str,
        confirm: Callable[[Unit, str, int], Awaitable[None]],
    ) -> None:
        super().__init__(unit)
        self._con = con
        self._plan = plan
        self._writer = writer
        self._statements = statements
        self._ledger = ledger
        self.target = target
        """The name of the table under which the ledger knows the unit."""
        self._confirm = confirm
        self._turn = asyncio.Lock()
        self._is_marked = False
        self._is_untidy = False
        """Whether the statements after the savepoint were not completed."""
        self._lost: BaseException | None = None
        self._is_over = False
        self.in_doubt: Exception | None = None
        """The error in place of an answer to the COMMIT."""

    @property
    def connection(self) -> PoolConnectionProxy[Any]:
        """Its connection, for statements that move stages."""
        return self._con

    async def begin(self) -> None:
        """Begin, with the unit's row in the ledger.

        Raises the ledger's errors, and `TransactionLost`.
        """
        try:
            await self._begin()
        except Exception as error:
            raise self._told(self._of_ledger(error))  # noqa: B904  # it has its cause
        if self.is_replay:
            await self._con.execute("ROLLBACK")

    async def _begin(self) -> None:
        if not isinstance(self.unit, Unit):
            await self._con.execute(f"{BEGIN}; {self._statements.limit}")
            return
        async with self._statements.block(self._con):
            self.history = await timeline(self._con)
        home, limit = self._plan.table.schema, self._statements.limit
        self.found(await self._ledger.begin(self._con, self.unit, self.target, home, limit=limit))

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the sink that hold within one transaction."""
        return Capabilities(key_prefix_safe=True, columnar=True)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row, as `PostgresSink.write` does, in this transaction.

        Suspends until earlier writes have ended, and for its own. Raises `TransactionLost` if the
        transaction is gone. After a cancellation the next write, or the commit, rolls this one
        back.
        """
        if self.is_replay and not self._is_over:
            return all_duplicate(batch)
        given = self._writer.rows_of(batch, self._plan)
        async with self._turn:
            self._check()
            await self._mark()
            self._is_untidy = True
            try:
                # no earlier try can have been applied: its savepoint was rolled back
                answer, self._plan = await self._writer.run(
                    self._con, self._plan, batch, given, scope=WITHIN
                )
            except Exception as error:
                raise await self._undone(error)  # noqa: B904  # it has its cause
            self._is_untidy = False
        return answer

    def _check(self) -> None:
        if self._lost is not None:
            raise self._gone(self._lost)
        if self._is_over:
            raise has_ended(self.unit)

    async def _mark(self) -> None:
        """Set the savepoint where the write begins, after the complete statements."""
        statement = f"SAVEPOINT {SAVEPOINT}"
        if self._is_untidy:
            statement = f"ROLLBACK TO {statement}"
        elif self._is_marked:
            statement = f"RELEASE {statement}; {statement}"
        try:
            await self._con.execute(statement)
        except BaseException as error:  # whether the savepoint was set is unknown now
            self._lost = error
            raise self._gone(error) if isinstance(error, Exception) else error  # noqa: B904  # it has its cause
        self._is_marked, self._is_untidy = True, False

    async def _undone(self, error: Exception) -> Exception:
        """Roll back the failed write at once: it may hold locks. Returns the error to raise."""
        told = self._told(error)
        if told is error:
            try:
                await WITHIN.undo(self._con)
            except Exception as second:
                return self._told(second, is_fatal=True)
            self._is_untidy = False
        return told

    def _told(self, error: Exception, *, is_fatal: bool = False) -> Exception:
        """The error to raise for `error`: itself, or `TransactionLost` if it ends the whole."""
        is_own = isinstance(error, PenstockError) and not isinstance(
            error, SinkError
        )  # a caller's mistake, however it was found
        if is_own or not (is_fatal or self._ends_it(error)):
            return error
        self._lost = error
        return self._gone(error)

    def _ends_it(self, error: Exception) -> bool:
        if is_gone(self._con) or classify_postgres(error) in _OF_THE_WHOLE:
            return True
        return any(
            is_lost(link) or sqlstate(link) == _SERIALIZATION_FAILURE for link in causes(error)
        )

    def _of_ledger(self, error: Exception) -> Exception:
        """The error to raise for one of the ledger: a refusal if the server refuses it."""
        if isinstance(error, PenstockError) or not is_refusal(error):
            return error
        place, ledger = self._writer.judge.place, self._ledger.qualified
        lacks = sqlstate(error) == NO_PRIVILEGE
        rights = (
            f"grant the sink's role SELECT, INSERT, UPDATE and DELETE on table {ledger} "
            f"at {place}, and USAGE on its schema"
        )
        return refusal(
            error,
            f"PostgreSQL at {place} refuses the ledger {ledger}",
            rights if lacks else repair_of(error, place),
        )

    @property
    def refusal(self) -> RefusedError | None:
        """The refusal that ended the transaction, if any; a new instance each time."""
        return refused_again(self._lost) if isinstance(self._lost, RefusedError) else None

    def _gone(self, error: BaseException) -> TransactionLost:
        name = "the transaction" if self.unit is None else f"the transaction of {self.unit.name}"
        text = f"{name} is gone, and nothing of it was applied"
        made = TransactionLost(f"{text} ({text_of(error) or type(error).__name__})")
        return caused(made, error, summary=f"{text} ({for_log(error)})")

    # -- the end -----------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit, after the writes under way.

        Raises `TransactionLost`, `UnitRefused`, or the server's error for the commit. Without an
        answer it returns, and the transaction is `in_doubt`.
        """
        async with self._turn:
            self._is_over = True
            if self.is_replay:
                return
            if self._lost is not None:
                raise self._gone(self._lost)
            await self._complete()
            try:
                tag = await self._con.execute("COMMIT")
            except Exception as error:
                if not self._ends_it(error):
                    raise
                self.in_doubt = error
                return
            if tag != "COMMIT":
                raise has_ended(self.unit)
        self.commits()

    async def _complete(self) -> None:
        try:
            if self._is_untidy:
                await WITHIN.undo(self._con)
            await self._record()
        except Exception as error:
            raise self._told(self._of_ledger(error))  # noqa: B904  # it has its cause

    async def _record(self) -> None:
        if isinstance(self.unit, Unit):
            await self._ledger.complete(
                self._con, self.unit, self.target, self.counts, self.letters_held
            )

    async def is_applied(self, con: PoolConnectionProxy[Any]) -> bool:
        """Whether it was committed, as the ledger tells on another connection.

        Suspends while the server still commits. Raises the server's errors.
        """
        assert isinstance(self.unit, Unit)
        return await self._ledger.has(con, self.unit, self.target)

    def end(self) -> None:
        """Refuse further writes."""
        self._is_over = True

    async def wrote_letters(self, count: int) -> None:
        """Record, after the commit, how many held letters were written.

        Suspends. Raises errors of the connection.
        """
        if isinstance(self.unit, Unit):
            await self._confirm(self.unit, self.target, count)
        await super().wrote_letters(count)

    def __repr__(self) -> str:
        return f"PostgresTransaction({self.unit})"
