"""A transaction on one connection, from its BEGIN to the response to its COMMIT.

If the response to the COMMIT is lost, the transaction is *in doubt*: another connection reads the
transaction's last write, which shows whether the transaction was applied.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ...._core.classify import caused, causes
from ...._core.clock import LOOP_CLOCK
from ...._core.errors import (
    ErrorClass,
    RefusedError,
    SinkError,
    SluicegateError,
    TransactionLost,
    UnknownOutcomeError,
)
from ...._core.logs import for_log
from ...._core.text import text_of
from ...._core.transaction import Attempt, has_ended
from ...client.errors import NO_PRIVILEGE, classify_postgres, is_gone, is_lost, is_refusal, sqlstate
from ...client.refusals import refusal, refused_again, repair_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from asyncpg.pool import PoolConnectionProxy

    from ...._core.positions import PositionUnit
    from ...._core.transaction import Unit
    from ...client.connections import Connections
    from ...client.statements import Statements

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
            raise self._told(self._of_keeper(error))  # noqa: B904  # the cause is set
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
                raise self._gone(self._lost)
            try:
                await self._complete()
            except Exception as error:
                raise self._told(self._of_keeper(error))  # noqa: B904  # the cause is set
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
            raise self._gone(self._lost)
        if self._is_over:
            raise has_ended(self.unit)

    def _told(self, error: Exception, *, is_fatal: bool = False) -> Exception:
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
        return self._gone(error)

    def _ends_it(self, error: Exception) -> bool:
        if is_gone(self._con) or classify_postgres(error) in _OF_THE_WHOLE:
            return True
        return any(
            is_lost(link) or sqlstate(link) == _SERIALIZATION_FAILURE for link in causes(error)
        )

    def _of_keeper(self, error: Exception) -> Exception:
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

    def _gone(self, error: BaseException) -> TransactionLost:
        name = "the transaction" if self.unit is None else f"the transaction of {self.unit.name}"
        text = f"{name} is lost, and nothing of it was applied"
        made = TransactionLost(f"{text} ({text_of(error) or type(error).__name__})")
        return caused(made, error, summary=f"{text} ({for_log(error)})")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.unit})"


AttemptT = TypeVar("AttemptT", bound=ServerAttempt)


@asynccontextmanager
async def attempted(
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
