"""A transaction on one connection, with several writes in it, from its BEGIN to the response to its
COMMIT.

1. Each write runs in a savepoint, which the next one replaces. So the effects of a failed or
   cancelled write can be rolled back: there is no unknown outcome inside a transaction.
2. Writes are serialized, since they share a connection. Rows are created before their turn.
3. An error that requires a new connection or a new transaction ends the transaction: a broken
   connection, a server that cannot be written to, a serialization failure. All other errors belong
   to the write, which may be retried after its savepoint was rolled back. A refusal ends the
   transaction too, since waiting for an operator inside it would hold its locks; leaving the
   transaction then raises the refusal.
4. If the response to the COMMIT is lost, the transaction is *in doubt*: another connection reads the
   transaction's last write, which shows whether the transaction was applied.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.classify import caused, causes
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import (
    ErrorClass,
    RefusedError,
    SinkError,
    SluicegateError,
    TransactionLost,
    UnknownOutcomeError,
)
from ..._core.logs import for_log
from ..._core.sink import Capabilities
from ..._core.text import text_of
from ..._core.transaction import Attempt, Unit, all_duplicate, has_ended
from ..client.errors import (
    NO_PRIVILEGE,
    classify_postgres,
    is_from_server,
    is_gone,
    is_lost,
    is_refusal,
    sqlstate,
)
from ..client.refusals import refusal, refused_again, repair_of
from .ledger import BEGIN
from .scope import SAVEPOINT, WITHIN

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.positions import PositionUnit
    from ..._core.sink import WriteResult
    from ..client.connections import Connections
    from ..client.statements import Statements
    from .ledger import UnitLedger
    from .plan import TablePlan
    from .write import TableWriter


TIMELINE = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_SERIALIZATION_FAILURE = "40001"
_OF_THE_WHOLE = frozenset({ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.UNKNOWN})


class ServerAttempt(Attempt, ABC):
    """An attempt at a PostgreSQL transaction. Its writes run one at a time."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        *,
        statements: Statements,
        unit: Unit | PositionUnit | None,
        place: str,
        keeper: str,
    ) -> None:
        super().__init__(unit)
        self._con = con
        self._statements = statements
        self._place = place
        self._keeper = keeper
        """The table that shows whether it was applied, preceded by its kind, for errors."""
        self._turn = asyncio.Lock()
        self._lost: BaseException | None = None
        self._is_over = False
        self.in_doubt: Exception | None = None
        """The error instead of a response to the COMMIT."""

    @property
    def connection(self) -> PoolConnectionProxy[Any]:
        """The connection of the transaction."""
        return self._con

    # -- parts -------------------------------------------------------------------------------------

    @abstractmethod
    async def _begin(self) -> None:
        """Begin on the server. Raises the server's errors."""

    @abstractmethod
    async def _complete(self) -> None:
        """Run the last statements before the COMMIT. Raises the server's errors."""

    @abstractmethod
    async def is_applied(self, con: PoolConnectionProxy[Any]) -> bool:
        """Whether it was committed, according to another connection.

        Suspends while the server is still committing. Raises the server's errors.
        """

    async def _send_commit(self) -> None:
        if await self._con.execute("COMMIT") != "COMMIT":
            raise has_ended(self.unit)

    async def roll_back(self) -> None:
        """Roll back after an exception, unless returning the connection does so."""

    # -- begin, commit, errors ---------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin the transaction. Raises the keeper's errors, and `TransactionLost`."""
        try:
            await self._begin()
        except Exception as error:
            raise self._error_for(self._error_of_keeper(error))  # noqa: B904  # the cause is set
        if self.is_replay:
            await self._con.execute("ROLLBACK")

    async def commit(self) -> None:
        """Commit after the writes in progress.

        Raises `TransactionLost`, `UnitRefused`, or the server's error for the commit. Without a
        response it returns, and the transaction is `in_doubt`.
        """
        async with self._turn:
            self._is_over = True
            if self.is_replay:
                return
            if self._lost is not None:
                raise self._loss(self._lost)
            try:
                await self._complete()
            except Exception as error:
                raise self._error_for(self._error_of_keeper(error))  # noqa: B904  # the cause is set
            try:
                await self._send_commit()
            except TransactionLost:
                raise
            except Exception as error:
                if not self._ends_it(error):
                    raise
                self.in_doubt = error
                return
        self.commits()

    def end(self) -> None:
        """Refuse further writes."""
        self._is_over = True

    def _check(self) -> None:
        if self._lost is not None:
            raise self._loss(self._lost)
        if self._is_over:
            raise has_ended(self.unit)

    def _error_for(self, error: Exception, *, is_fatal: bool = False) -> Exception:
        """The error to raise for `error`: itself, or `TransactionLost` if it ends the transaction."""
        is_own = isinstance(error, SluicegateError) and not isinstance(
            error, SinkError
        )  # a caller's mistake
        if is_own or not (is_fatal or self._ends_it(error)):
            return error
        return self._lose(error)

    def _lose(self, error: BaseException) -> TransactionLost:
        """Record that the transaction is lost; return the error to raise."""
        self._lost = error
        return self._loss(error)

    def _ends_it(self, error: Exception) -> bool:
        if is_gone(self._con) or classify_postgres(error) in _OF_THE_WHOLE:
            return True
        return any(
            is_lost(link) or sqlstate(link) == _SERIALIZATION_FAILURE for link in causes(error)
        )

    def _error_of_keeper(self, error: Exception) -> Exception:
        """The error to raise for an error of the keeper: a refusal if the server refuses it."""
        if isinstance(error, SluicegateError) or not is_refusal(error):
            return error
        lacks = sqlstate(error) == NO_PRIVILEGE
        kind, _, table = self._keeper.rpartition(" ")
        rights = (
            f"grant the sink's role SELECT, INSERT, UPDATE and DELETE on table {table} "
            f"at {self._place}, and USAGE on its schema"
        )
        return refusal(
            error,
            f"PostgreSQL at {self._place} refuses {kind} {table}",
            rights if lacks else repair_of(error, self._place),
        )

    @property
    def refusal(self) -> RefusedError | None:
        """The refusal that ended the transaction, if any; a new instance each time."""
        return refused_again(self._lost) if isinstance(self._lost, RefusedError) else None

    def _loss(self, error: BaseException) -> TransactionLost:
        name = "the transaction" if self.unit is None else f"the transaction of {self.unit.name}"
        text = f"{name} is lost, and nothing of it was applied"
        made = TransactionLost(f"{text} ({text_of(error) or type(error).__name__})")
        return caused(made, error, summary=f"{text} ({for_log(error)})")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.unit})"


AttemptT = TypeVar("AttemptT", bound=ServerAttempt)


@asynccontextmanager
async def attempt(
    connections: Connections,
    make: Callable[[PoolConnectionProxy[Any]], AttemptT],
    *,
    close_timeout: float,
    settled: Callable[[AttemptT], Awaitable[None]] | None = None,
) -> AsyncGenerator[AttemptT]:
    """A transaction on its own connection, committed unless the block raises.

    `settled` is called after the response to the COMMIT, while the connection is still lent.
    Without a response, another connection shows whether it was applied. Raises the same errors as
    `PostgresSink.transaction`.
    """
    async with connections.lent() as con:
        made = make(con)
        try:
            with connections.bounded(con):
                await made.begin()
            yield made
            with connections.bounded(con):
                await made.commit()
        except BaseException as error:
            await made.roll_back()
            if isinstance(error, TransactionLost) and (refused := made.refusal) is not None:
                raise refused from error
            raise
        finally:
            made.end()
        if settled is not None and made.in_doubt is None:
            await settled(made)
    if made.in_doubt is not None:
        await _resolve(made, made.in_doubt, connections, close_timeout)


async def _resolve(
    made: ServerAttempt, error: Exception, connections: Connections, close_timeout: float
) -> None:
    """Look up in the database whether a COMMIT without a response was applied."""
    if made.unit is None:
        raise UnknownOutcomeError(
            "no response to the COMMIT, and without a unit no ledger shows whether it was applied "
            f"({error})"
        ) from error
    try:
        async with (
            LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + close_timeout),
            connections.lent(answered=True) as con,
        ):
            is_there = await made.is_applied(con)
    except Exception as second:
        message = (
            f"no response to the COMMIT of {made.unit.name}, and the lookup of its outcome failed "
            f"({second}); the next attempt will look it up"
        )
        raise UnknownOutcomeError(message) from error
    if not is_there:
        raise TransactionLost(
            f"no response to the COMMIT of {made.unit.name}; according to the database, nothing of "
            "it was applied"
        ) from error
    made.commits()


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
            place=writer.diagnosis.place,
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
        is_safe = not self._writer.applies_changes
        return Capabilities(key_prefix_safe=is_safe, columnar=True)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row in this transaction, like `PostgresSink.write`.

        Suspends until earlier writes have ended, and for its own. Raises `TransactionLost` if the
        transaction is lost. After a cancellation, the next write or the commit rolls this one back.
        """
        if self.is_replay and not self._is_over:
            return all_duplicate(batch)
        growth = self._writer.growth
        given = self._writer.rows_of(batch, self._plan) if growth is None else None
        async with self._turn:
            self._check()
            await self._mark()
            self._is_untidy = True
            try:
                while growth is not None and (lacking := growth.lacking(batch, self._plan)):
                    plan = await growth.fit(self._con, self._plan, lacking, WITHIN)
                    self._is_untidy = False
                    await self._mark()  # the rollback of a write keeps the columns
                    self._plan, self._is_untidy = plan, True
                given = given or self._writer.rows_of(batch, self._plan)
                # no earlier attempt can have been applied: its savepoint was rolled back
                answer, self._plan = await self._writer.run(
                    self._con, self._plan, batch, given, scope=WITHIN
                )
            except Exception as error:
                raise await self._roll_back_write(error)  # noqa: B904  # the cause is set
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

    async def _roll_back_write(self, error: Exception) -> Exception:
        """Roll back the failed write immediately, since it may hold locks. Returns the error to
        raise.
        """
        told = self._error_for(error)
        if told is error:
            try:
                await WITHIN.undo(self._con)
            except Exception as second:
                return self._error_for(second, is_fatal=True)
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


async def timeline(con: PoolConnectionProxy[Any]) -> str:
    """The server's timeline; empty if the server does not reveal it, as on some managed services."""
    try:
        return str(await con.fetchval(TIMELINE))
    except Exception as error:
        if is_lost(error) or not is_from_server(error):
            raise
        return ""
