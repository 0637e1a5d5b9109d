"""State of partitions in PostgreSQL, stored in the transaction of their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from ..._clients.postgres.access import Access, need_asyncpg
from ..._clients.postgres.connections import Connections
from ..._clients.postgres.refusals import for_opening
from ..._core import checks
from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ClosedError, PositionLost
from ..._core.keywords import known_arguments
from ..._core.opening import Openable
from ..._core.source import Source, TransactionalSource
from ...sinks.postgres.transactions.positions import PositionTable
from .codec import JsonState, StateCodec
from .keeping import StatePositions
from .table import StateTable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from asyncpg import Pool

    from ..._clients.postgres.access import PoolFactory
    from ..._core.source import TopicPartition
    from ...consumer.jobs.state import StateStore
    from .store import KeptStore


class _OpenedState(NamedTuple):
    connections: Connections
    home: str


@known_arguments()
class PostgresState(Openable):
    """State of partitions, for `Consumer.run_events`: in memory while it is used, and stored in a table
    of PostgreSQL in one transaction with the position of the source. So after a crash it is what the
    events before the position have made of it, exactly, and the others run again.

        async with (
            PostgresState(dsn, table="order_state") as state,
            Consumer(state.attach(source), ordering="partition") as consumer,
        ):
            await consumer.run_events(handle, state=state)

    The positions are kept as by `PostgresSink`, in a table of positions, and no longer by the source.

    Args:
        dsn: `postgresql://user:password@host:port/database`; default: asyncpg's environment
            variables. Never shown.
        table: the table of state, taken literally; created if it is missing.
        schema: its schema, and that of the positions; default: found by the search path.
        positions: the table of positions; created if it is missing.
        codec: how values are kept; default: as JSON.
        max_pending: the most turns whose changes wait for their position; then no later event of the
            partition begins until they are stored.
        max_pending_bytes: the same in bytes of keys and encoded values.
        pool: as for `PostgresSink`, as are `close_pool`, `connect_options`, `close_timeout`,
            `statement_timeout` and `prepared_statements`.
        pool_size: number of connections, and so of partitions that are stored or restored at once;
            default 10.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Constructing connects
    to nothing. Opening suspends; it raises `ConfigError` for a wrong user, password, database or
    certificate, for a table of another shape or without the rights to it, and for one that cannot
    be created; and `UnavailableError` if no server answers.
    """

    _run_time = ("_opened", "_kept")

    def __init__(
        self,
        dsn: str | None = None,
        *,
        table: str,
        schema: str | None = None,
        positions: str = "penstock_positions",
        codec: StateCodec | None = None,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 << 20,
        pool: Pool[Any] | PoolFactory | None = None,
        close_pool: bool | None = None,
        pool_size: int | None = None,
        connect_options: Mapping[str, Any] | None = None,
        close_timeout: float | timedelta = 5.0,
        statement_timeout: float | timedelta | None = None,
        prepared_statements: Literal["auto"] | bool = "auto",
    ) -> None:
        self._access = Access.of(
            dsn,
            pool=pool,
            close_pool=close_pool,
            size=pool_size,
            options=connect_options,
            timeout=statement_timeout,
            prepared=prepared_statements,
        )
        self._codec = JsonState() if codec is None else codec
        if not isinstance(cast("object", self._codec), StateCodec):
            raise bad("codec", codec, "must have column, encode() and decode(), as JsonState()")
        column = checks.choice("codec.column", self._codec.column, ("json", "text", "bytea"))
        self._table = StateTable(table=table, schema=schema, column=column)
        self._positions = PositionTable(table=positions, schema=schema)
        self._most = checks.count("max_pending", max_pending)
        self._most_bytes = checks.count("max_pending_bytes", max_pending_bytes)
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        need_asyncpg()
        # by these names, for the error that they cannot be pickled
        self._pool, self._connect_options = self._access.pool, self._access.options
        self._opened: _OpenedState | None = None
        self._kept: StatePositions | None = None
        self._source: Source | None = None
        self._stores: dict[TopicPartition, KeptStore] = {}

    @property
    def creation(self) -> tuple[str, str]:
        """The statements that create the table of state and that of positions."""
        return self._table.creation, self._positions.creation

    def attach(self, source: Source) -> Source:
        """The source to give the consumer: the same one, with its positions in this state. Once.

        Raises `ConfigError` for a source that cannot leave its positions to another store, and
        `ClosedError` unless the state is open.
        """
        if not isinstance(source, TransactionalSource):
            rule = (
                "must be a source that can leave its positions to the state, such as KafkaSource, "
                "PostgresStreamSource or MemorySource"
            )
            raise bad("source", source, rule)
        opened = self._parts
        if self._kept is not None:
            raise bad("source", source, "must be the only one of a state; make a state for each")
        self._kept = StatePositions(
            source.group, self._table, self._positions, opened.connections, opened.home
        )
        self._source = source.with_positions(self._kept)
        return self._source

    # -- the backend of a consumer -----------------------------------------------------------------

    def check_source(self, source: Source) -> None:
        """Raise `ConfigError` for a source that does not leave its positions to this state."""
        if source is not self._source or self._kept is None:
            rule = (
                "has to keep the positions of the consumer's source: Consumer(state.attach(source))"
            )
            raise bad("state", self, rule)

    async def open(self, partition: TopicPartition) -> StateStore:
        """Read the state of a partition. Suspends. Raises `PositionLost`, and the server's errors."""
        if self._kept is None:
            raise PositionLost(f"{partition} is not owned")
        limits = self._most, self._most_bytes
        store = await self._kept.restore(partition, limits, self._codec, LOOP_CLOCK)
        self._stores[partition] = store
        return store

    def close(self, partition: TopicPartition) -> None:
        """Forget the state of a partition; its position moves no more."""
        store = self._stores.pop(partition, None)
        if store is not None and self._kept is not None:
            self._kept.ended(partition, store)

    # -- opening and closing -----------------------------------------------------------------------

    @property
    def _parts(self) -> _OpenedState:
        if self._opened is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._opened

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = await Connections.to(self._access, self._close_timeout)
        stack.push_async_callback(connections.close)
        try:
            async with connections.opening() as con, connections.statements.block(con):
                home = await con.fetchval("SELECT coalesce(current_schema(), 'public')")
                encoding = await con.fetchval("SHOW server_encoding")
            if encoding != "UTF8":
                rule = (
                    f"is a database with the encoding {encoding}; a state needs UTF8 for its keys"
                )
                raise bad("dsn", self._access.place, rule)
            async with connections.opening() as con:
                await self._table.examine(con)
                await self._table.examine_positions(con, self._positions)
        except Exception as error:
            raise for_opening(error, self._access.place)  # noqa: B904  # it has its cause
        self._opened = _OpenedState(connections, home)

    def _terminate(self) -> None:
        if self._opened is not None:
            self._opened.connections.terminate()

    def __repr__(self) -> str:
        return f"PostgresState({self._access.place}, table={self._table.table!r})"
