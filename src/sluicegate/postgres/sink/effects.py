"""The destination for handlers with effects in PostgreSQL."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ClosedError, ErrorClass
from ..._core.keywords import known_arguments
from ..._core.positions import PositionUnit, not_in_transaction
from ..._core.sink import Capabilities
from ..client.access import Access, need_asyncpg
from ..client.answers import ANSWER_TIMEOUT
from ..client.connections import Connections
from ..client.errors import classify_postgres
from ..client.refusals import for_opening
from .transactions.attempt import attempted
from .transactions.effects import EffectsTransaction
from .transactions.position_owner import PositionOwner, PositionsInTable
from .transactions.positions import IDLE_MOST, PositionTable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from asyncpg import Pool
    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.positions import Effect
    from ..._core.transaction import Unit
    from ..client.access import PoolFactory, PostgresAccess

_TARGET = '"effects of handlers"'
"""Stands for a table in the positions. Since it is not a table, its oid never changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    access: Access
    positions: PositionTable
    idle_timeout: float
    close_timeout: float


class _Opened(NamedTuple):
    connections: Connections
    positions: PositionOwner


@known_arguments()
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
        pool: an asyncpg pool of the application, or a function, async or not, that returns one,
            instead of `dsn`.
        close_pool: whether closing the destination closes that pool; default: only if a function
            returned it.
        pool_size: number of connections, and therefore of partitions in concurrent transactions;
            default 10.
        close_timeout: seconds for closing and for rolling back before a connection is terminated.
        answer_timeout: seconds for the answer to each statement of the library itself; then the
            connection is ended, which counts as an outage. Default 20.
        statement_timeout: time limit of one statement on the server, in seconds; default: the
            server's.
        prepared_statements: as for `PostgresSink`.
        idle_timeout: seconds for which a transaction may be idle between two statements, for
            example while a handler waits for another service. After that the server ends it, so
            that a frozen process holds no locks. A slower handler fails.
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
        dsn: str | PostgresAccess | None = None,
        *,
        pool: Pool[Any] | PoolFactory | None = None,
        close_pool: bool | None = None,
        pool_size: int | None = None,
        close_timeout: float | timedelta = 5.0,
        answer_timeout: float | timedelta = ANSWER_TIMEOUT,
        statement_timeout: float | timedelta | None = None,
        prepared_statements: Literal["auto"] | bool = "auto",
        idle_timeout: float | timedelta = float(IDLE_MOST),
        positions: str = "sluicegate_positions",
        schema: str | None = None,
    ) -> None:
        settings = _Settings(
            access=Access.of(
                dsn,
                pool=pool,
                close_pool=close_pool,
                size=pool_size,
                timeout=statement_timeout,
                prepared=prepared_statements,
                answer_timeout=answer_timeout,
            ),
            positions=PositionTable(table=positions, schema=schema),
            idle_timeout=checks.seconds("idle_timeout", idle_timeout, usual=checks.LONG_TIMEOUT),
            close_timeout=checks.seconds("close_timeout", close_timeout, usual=checks.LONG_TIMEOUT),
        )
        need_asyncpg()
        # first, and by these names, for the error message about pickling
        self._pool, self._connect_options = settings.access.pool, settings.access.options
        self._settings = settings
        self._open_parts: _Opened | None = None

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent transactions as connections."""
        size = self._settings.access.size
        return Capabilities(key_prefix_safe=True, transactional=True, max_concurrency=size)

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE; see `classify_postgres`."""
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
                close_timeout=settings.close_timeout,
            )
            made.move_by(parts.positions.move_of(position))
            return made

        async with attempted(
            parts.connections, make, close_timeout=settings.close_timeout
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
        connections = await Connections.to(settings.access, settings.close_timeout)
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
