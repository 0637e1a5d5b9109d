"""A transaction on one connection, with several writes in it.

1. Each write runs in a savepoint, which the next one replaces. So the effects of a failed or
   cancelled write can be rolled back: there is no unknown outcome inside a transaction.
2. Writes are serialized, since they share a connection. Rows are created before their turn.
3. An error that requires a new connection or a new transaction ends the transaction: a broken
   connection, a server that cannot be written to, a serialization failure. All other errors belong
   to the write, which may be retried after its savepoint was rolled back. A refusal ends the
   transaction too, since waiting for an operator inside it would hold its locks; leaving the
   transaction then raises the refusal.
4. If the response to the COMMIT is lost, only the ledger shows the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._core.sink import Capabilities
from ...._core.transaction import Unit, all_duplicate
from ..staging.inventory import timeline
from ..writing.scope import SAVEPOINT, WITHIN
from .attempt import ServerAttempt
from .ledger import BEGIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg.pool import PoolConnectionProxy

    from ...._core.batch import Batch
    from ...._core.positions import PositionUnit
    from ...._core.sink import WriteResult
    from ...client.statements import Statements
    from ..batches import TableWriter
    from ..plan.plan import TablePlan
    from .ledger import UnitLedger


class PostgresTransaction(ServerAttempt):
    """The transaction from `PostgresSink.transaction(unit)`."""

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
        super().__init__(
            con,
            statements=statements,
            unit=unit,
            place=writer.judge.place,
            keeper=f"the ledger {ledger.qualified}",
        )
        self._plan = plan
        self._writer = writer
        self._ledger = ledger
        self.target = target
        """The name of the table under which the ledger stores the unit."""
        self._confirm = confirm
        self._is_marked = False
        self._is_untidy = False
        """Whether the statements after the savepoint were not completed."""

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
        """The capabilities of the sink inside one transaction."""
        return Capabilities(key_prefix_safe=True, columnar=True)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row in this transaction, like `PostgresSink.write`.

        Suspends until earlier writes have ended, and for its own. Raises `TransactionLost` if the
        transaction is lost. After a cancellation, the next write or the commit rolls this one back.
        """
        if self.is_replay and not self._is_over:
            return all_duplicate(batch)
        given = self._writer.rows_of(batch, self._plan)
        async with self._turn:
            self._check()
            await self._mark()
            self._is_untidy = True
            try:
                # no earlier attempt can have been applied: its savepoint was rolled back
                answer, self._plan = await self._writer.run(
                    self._con, self._plan, batch, given, scope=WITHIN
                )
            except Exception as error:
                raise await self._undone(error)  # noqa: B904  # the cause is set
            self._is_untidy = False
        return answer

    async def _mark(self) -> None:
        """Set the savepoint at the start of the write, after the completed statements."""
        statement = f"SAVEPOINT {SAVEPOINT}"
        if self._is_untidy:
            statement = f"ROLLBACK TO {statement}"
        elif self._is_marked:
            statement = f"RELEASE {statement}; {statement}"
        try:
            await self._con.execute(statement)
        except BaseException as error:  # it is unknown whether the savepoint was set
            lost = self._lose(error)
            raise lost if isinstance(error, Exception) else error  # noqa: B904  # the cause is set
        self._is_marked, self._is_untidy = True, False

    async def _undone(self, error: Exception) -> Exception:
        """Roll back the failed write immediately, since it may hold locks. Returns the error to
        raise.
        """
        told = self._told(error)
        if told is error:
            try:
                await WITHIN.undo(self._con)
            except Exception as second:
                return self._told(second, is_fatal=True)
            self._is_untidy = False
        return told

    async def _complete(self) -> None:
        if self._is_untidy:
            await WITHIN.undo(self._con)
        await self._record()

    async def _record(self) -> None:
        if isinstance(self.unit, Unit):
            await self._ledger.complete(
                self._con, self.unit, self.target, self.counts, self.letters_held
            )

    async def is_applied(self, con: PoolConnectionProxy[Any]) -> bool:
        """Whether it was committed, according to the ledger on another connection."""
        assert isinstance(self.unit, Unit)
        return await self._ledger.has(con, self.unit, self.target)

    async def wrote_letters(self, count: int) -> None:
        """Record, after the commit, how many held letters were written.

        Suspends. Raises errors of the connection.
        """
        if isinstance(self.unit, Unit):
            await self._confirm(self.unit, self.target, count)
        await super().wrote_letters(count)
