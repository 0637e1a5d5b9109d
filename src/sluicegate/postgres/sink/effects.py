"""The destination for handlers with effects in PostgreSQL, and the transactions in which they run.

1. A handler has the connection while it runs, and may begin its own savepoints. Statements that
   begin or end the transaction are refused if that is visible in their text.
2. Other cases are detected afterwards: the session is no longer in a transaction, or in one without
   the mark that the first statement has set.
3. A transaction that is not committed is rolled back by the asyncpg object that began it, since
   asyncpg counts savepoints by that object; otherwise the connection is closed.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core import checks
from ..._core.checks import bad
from ..._core.classify import caused, causes
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ClosedError, ErrorClass, KeyStopped, TransientError
from ..._core.keywords import known_arguments
from ..._core.positions import (
    CauseUnclear,
    PositionUnit,
    aborted_by_handler,
    ended_by_handler,
    not_in_transaction,
    not_its_to_end,
)
from ..._core.sink import Capabilities, WriteResult
from ..client.access import Access, PostgresAccess, need_asyncpg
from ..client.connections import Connections
from ..client.errors import classify_postgres, is_gone, sqlstate
from ..client.refusals import for_opening
from .ledger import ON_DISK
from .positions import IDLE_MOST, MovesPosition, PositionOwner, PositionsInTable, PositionTable
from .transaction import attempt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.positions import Effect
    from ..._core.transaction import Unit
    from ..client.statements import Statements


_TARGET = '"effects of handlers"'
"""Stands for a table in the positions. Since it is not a table, its oid never changes."""
_ABORTED = "25P02"
"""The SQLSTATE of a statement in a transaction in which an earlier statement has failed."""
_MARK = "SELECT set_config('sluicegate.handlers', 'on', true)"
_MARKED = "SELECT current_setting('sluicegate.handlers', true)"
_UNCLEAR = "a handler has made the transaction unusable; the handlers run again, with a check after each one"
_WITH_TEXT = frozenset(
    {"cursor", "execute", "executemany", "fetch", "fetchrow", "fetchval", "prepare"}
)
_ENDS_IT = frozenset({"close", "reset", "terminate"})
_CONTROL = re.compile(
    r"\s*(commit|end|rollback|abort|begin|start\s+transaction|prepare\s+transaction)\b"
    r"(?!\s+((work|transaction)\s+)?to\b)",
    re.IGNORECASE,
)
"""Statements that begin or end a transaction; a rollback to a savepoint is excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    access: Access
    positions: PositionTable
    idle_timeout: float


class _Opened(NamedTuple):
    connections: Connections
    positions: PositionOwner


@known_arguments(access=PostgresAccess)
class PostgresEffects(PositionsInTable):
    """The destination of a `flow.transaction` whose handler has its effects in PostgreSQL. They
    commit together with the position of the source, so that each message takes effect once.

    `await flow.transaction(source, PostgresEffects(dsn), handler).run()` calls the async function
    `handler(message)` for each message, in order per partition. `message.connection` is an asyncpg
    connection inside the open transaction. It is lent: the handler's own savepoints are allowed
    (`async with message.connection.transaction():`); a COMMIT, ROLLBACK or BEGIN is refused, and so
    is any use after the handler has returned.

    The positions are stored as with `PostgresSink`. If the handler raises, the transaction is
    rolled back; the earlier messages of the transaction are handled again and commit. So their
    effects elsewhere are repeated.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        pool_size: number of connections, and therefore of partitions in concurrent transactions;
            default 10.
        idle_timeout: seconds for which a transaction may be idle between two statements, for
            example while a handler waits for another service; default 10. After that the server
            ends it, so that a frozen process holds no locks. A slower handler fails.
        positions: the table of positions, taken literally; created if it is missing.
        schema: the schema of that table; default: found by the search path.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Constructing
    connects to nothing. Opening suspends; it raises `ConfigError` for a wrong user, password,
    database or certificate, and `UnavailableError` if no server responds.
    """

    _run_time = ("_open_parts",)

    refuses_units = "its transactions belong to messages, and commit the position of their source"

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        pool_size: int | None = None,
        idle_timeout: float | timedelta = float(IDLE_MOST),
        positions: str = "sluicegate_positions",
        schema: str | None = None,
    ) -> None:
        settings = _Settings(
            access=Access.of(dsn, size=pool_size),
            positions=PositionTable(table=positions, schema=schema),
            idle_timeout=checks.seconds("idle_timeout", idle_timeout, usual=checks.LONG_TIMEOUT),
        )
        need_asyncpg()
        self._settings = settings
        self._open_parts: _Opened | None = None

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent transactions as connections."""
        size = self._settings.access.size
        return Capabilities(key_prefix_safe=True, transactional=True, max_concurrency=size)

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE."""
        return classify_postgres(error)

    def check_handler(self, handler: object) -> None:
        """Raise `ConfigError` for a function that cannot await an asyncpg connection."""
        if callable(handler) and not isinstance(handler, type) and not checks.is_async(handler):
            rule = "must be an async function, since message.connection is an asyncpg connection"
            raise bad("transform", handler, rule)

    async def write(self, batch: Batch[Effect]) -> None:
        """Raise `ConfigError`: handlers run only in the transactions of a flow."""
        raise not_in_transaction(self)

    @asynccontextmanager
    async def transaction(
        self, unit: Unit | PositionUnit | None
    ) -> AsyncGenerator[EffectsTransaction]:
        """A transaction on its own connection, with the position of a source.

        Suspends. Raises the same errors as that of `PostgresSink`.
        """
        if not isinstance(unit, PositionUnit):
            raise bad("unit", unit, f"must be a PositionUnit: {self.refuses_units}")
        settings, parts, position = self._settings, self._parts, unit

        def make(con: PoolConnectionProxy[Any]) -> EffectsTransaction:
            made = EffectsTransaction(
                con,
                statements=parts.connections.statements,
                unit=position,
                place=settings.access.place,
                idle_timeout=settings.idle_timeout,
                close_timeout=settings.access.close_timeout,
            )
            made.move_by(parts.positions.move_of(position))
            return made

        async with attempt(
            parts.connections, make, close_timeout=settings.access.close_timeout
        ) as within:
            yield within

    # -- opening and closing -----------------------------------------------------------------------

    @property
    def _parts(self) -> _Opened:
        if self._open_parts is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._open_parts

    @property
    def _owner(self) -> PositionOwner:
        return self._parts.positions

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        connections = await Connections.to(settings.access)
        stack.push_async_callback(connections.close)
        try:
            async with connections.opening() as con, connections.statements.block(con):
                home = await con.fetchval("SELECT coalesce(current_schema(), 'public')")
        except Exception as error:
            raise for_opening(error, settings.access.place)  # noqa: B904  # the cause is set
        owner = PositionOwner(settings.positions, connections, _TARGET, home)
        self._open_parts = _Opened(connections, owner)

    def _terminate(self) -> None:
        if self._open_parts is not None:
            self._open_parts.connections.terminate()

    def __repr__(self) -> str:
        return f"PostgresEffects({self._settings.access.place})"


class EffectsTransaction(MovesPosition):
    """A transaction of handlers, in which the position is moved last."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        *,
        statements: Statements,
        unit: PositionUnit,
        place: str,
        idle_timeout: float,
        close_timeout: float,
    ) -> None:
        super().__init__(con, statements=statements, unit=unit, place=place, keeper="")
        self._idle_timeout = idle_timeout
        self._close_timeout = close_timeout
        self._top = con.transaction(isolation="read_committed")

    @property
    def capabilities(self) -> Capabilities:
        """No effect runs after a failed one."""
        return Capabilities(key_prefix_safe=True)

    async def _begin(self) -> None:
        await self._top.start()
        await self._con.execute(f"{ON_DISK}; {_MARK}; {self._settings(self._idle_timeout)}")

    async def write(self, batch: Batch[Effect]) -> WriteResult | None:
        """Run the effects, one after the other, up to the first that fails.

        Suspends as they do. Raises `TransactionLost` if the transaction is lost, and
        `CauseUnclear`.
        """
        async with self._turn:
            self._check()
            for index, effect in enumerate(batch):
                error = await self._run(effect)
                if error is None:
                    continue
                effect.failed(error)
                behind = caused(KeyStopped("an earlier effect has failed"), error)
                errors = dict.fromkeys(range(index, len(batch)), behind)
                return WriteResult.failed(batch, {**errors, index: error})
        return None

    async def _run(self, effect: Effect) -> Exception | None:
        """Run an effect; return the error that it has caused."""
        lent, began = LentConnection(self._con), LOOP_CLOCK.now()
        failed: Exception | None = None
        try:
            await effect.run(lent)
        except Exception as error:
            failed = error
        finally:
            lent.end()
        if is_gone(self._con):
            return self._cut_off(failed, LOOP_CLOCK.now() - began)
        if not self._con.is_in_transaction():
            return ended_by_handler()
        if effect.is_checked:
            return failed or await self._after()
        if failed is not None and _is_aborted(failed):
            raise CauseUnclear(_UNCLEAR) from failed
        return failed

    def _cut_off(self, error: Exception | None, seconds: float) -> Exception:
        """The error of a handler that was idle for too long. Raises `TransactionLost` in other
        cases.
        """
        lost = self._lose(error or ConnectionError("the connection is closed"))
        if seconds < self._idle_timeout:
            raise lost
        return TransientError(
            f"the handler ran for {seconds:.3g} s, and the server has ended its session because a "
            f"transaction may be idle for at most idle_timeout={self._idle_timeout:g} s between "
            "two statements; call slow services before the first statement, or increase "
            "idle_timeout"
        )

    async def _after(self) -> Exception | None:
        """The error of a handler that has left the transaction unusable."""
        try:
            is_marked = await self._con.fetchval(_MARKED) == "on"
        except Exception as error:
            if not _is_aborted(error):
                raise self._error_for(error)  # noqa: B904  # the cause is set
            return aborted_by_handler()
        return None if is_marked else ended_by_handler()

    async def _complete(self) -> None:
        if (error := await self._after()) is not None:
            raise CauseUnclear(_UNCLEAR) from error
        await self._advance()

    async def _send_commit(self) -> None:
        await self._top.commit()

    async def roll_back(self) -> None:
        """Roll back within `close_timeout`, even after a cancelled statement; or close the
        connection.

        Cancelling a statement sends a separate request to the server, whose response the rollback
        awaits. Otherwise the statement would continue without its client and hold its locks.
        """
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._close_timeout):
                await self._top.rollback()
        except BaseException as error:
            if not is_gone(self._con):
                self._con.terminate()
            if not isinstance(error, Exception):
                raise


def _is_aborted(error: Exception) -> bool:
    return any(sqlstate(link) == _ABORTED for link in causes(error))


class LentConnection:
    """An asyncpg connection, valid until `end`. Looks like a pool's, even to `isinstance`."""

    def __init__(self, con: PoolConnectionProxy[Any]) -> None:
        self._con = con
        self._is_over = False

    def end(self) -> None:
        """Refuse further use."""
        self._is_over = True

    @property  # type: ignore[misc]  # looks like a connection of the pool
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride,reportIncompatibleMethodOverride]
        return type(self._con)

    def __getattr__(self, name: str) -> Any:
        if self._is_over:
            raise ClosedError(
                f"message.connection.{name}: the handler has ended, and its connection is used for "
                "other messages; use your own connection"
            )
        if name in _ENDS_IT:
            raise not_its_to_end(f"{name}()")
        attribute = getattr(self._con, name)
        return partial(_checked, attribute) if name in _WITH_TEXT else attribute

    def __repr__(self) -> str:
        return f"<{'ended ' if self._is_over else ''}message.connection {self._con!r}>"


def _checked(method: Any, query: Any, *args: Any, **options: Any) -> Any:
    if isinstance(query, str) and (found := _CONTROL.match(query)) is not None:
        raise not_its_to_end(found[1].upper())
    return method(query, *args, **options)
