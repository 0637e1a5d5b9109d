"""The state of partitions in PostgreSQL, stored in the transaction of their positions.

1. The position moves last in a transaction, on the condition that the ownership and the known
   position are unchanged.
2. Each transaction writes a mark alongside the state, with the position and a number that the
   position's metadata repeats. A state that does not belong to the position is refused.
3. After a failure the position is read: its number shows whether the transaction is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ClosedError, PositionLost, UnavailableError
from ..._core.keywords import known_arguments
from ..._core.source import Position
from ...flow.state.changes import ChangeLog, StateMark, for_the_source
from ...flow.state.positions import PositionedState
from ...flow.state.store import KeptStore, check_decodes, checked_codec
from ..client.access import Access, PostgresAccess, need_asyncpg
from ..client.connections import Connections
from ..client.refusals import for_opening
from ..sink.ledger import BEGIN_UNIT
from ..sink.positions import IDLE_MOST, PositionTable
from .table import StateTable, check_mark

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
    from contextlib import AsyncExitStack

    from ..._core.source import TopicPartition, TransactionalSource
    from ...flow.state.changes import Stored, TakenChanges
    from ...flow.state.positions import StateKeeper
    from ...flow.state.store import StateCodec
    from ..sink.positions import OwnedPosition


class _OpenedState(NamedTuple):
    connections: Connections
    home: str


@known_arguments(access=PostgresAccess)
class PostgresState(PositionedState):
    """The state of partitions, for `Consumer.run_events`, in memory while it is used, and stored in
    a PostgreSQL table in one transaction with the source's position. After a crash it is exactly
    the result of the events before the position; later events run again.

        async with (
            PostgresState(dsn, table="order_state") as state,
            Consumer(state.attach(source), ordering="partition") as consumer,
        ):
            await consumer.run_events(handle, state=state)

    As with `PostgresSink`, the positions are stored in a table of positions, and no longer by the
    source.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        table: the literal name of the state table; created if it does not exist.
        schema: the schema of both tables; default: found by the search path.
        positions: the table of positions; created if it does not exist.
        codec: the encoding of values; default: JSON.
        max_pending: the maximum number of turns whose changes wait for their position; default
            10,000. At this limit, no later event of the partition begins until they are stored.
        max_pending_bytes: the same in bytes of keys and encoded values; default 16 MiB.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. The constructor does
    not connect. Opening suspends; it raises `ConfigError` for a wrong user, password, database or
    certificate, for a table with other columns or missing privileges, and for a table that cannot
    be created; and `UnavailableError` if no server responds.
    """

    _run_time = ("_opened", "_kept")
    _fitting = "KafkaSource, PostgresStreamSource or MemorySource"

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        table: str,
        schema: str | None = None,
        positions: str = "sluicegate_positions",
        codec: StateCodec | None = None,
        max_pending: int = 10_000,
        max_pending_bytes: int = 16 << 20,
    ) -> None:
        super().__init__()
        self._access = Access.of(dsn)
        self._codec = checked_codec(codec)
        self._table = StateTable(table=table, schema=schema, column=self._codec.column)
        self._positions = PositionTable(table=positions, schema=schema, marks_rows=True)
        self._most = checks.count("max_pending", max_pending)
        self._most_bytes = checks.count("max_pending_bytes", max_pending_bytes)
        need_asyncpg()
        self._opened: _OpenedState | None = None

    @property
    def creation(self) -> tuple[str, str]:
        """The statements that create the state table and the positions table."""
        return self._table.creation, self._positions.creation

    def _keeper(self, source: TransactionalSource) -> StateKeeper:
        opened = self._parts
        parts = self._table, self._positions, opened.connections, opened.home
        return PostgresKeeper(source.group, *parts)

    def _made(
        self, partition: TopicPartition, entries: dict[str, Stored], offset: int
    ) -> KeptStore:
        check_decodes(self._codec, entries)
        log = ChangeLog(self._most, self._most_bytes, at=offset)
        return KeptStore(partition, entries, log, self._codec, self._table.check_value)

    # -- opening and closing -----------------------------------------------------------------------

    @property
    def _parts(self) -> _OpenedState:
        if self._opened is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._opened

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = await Connections.to(self._access)
        stack.push_async_callback(connections.close)
        try:
            async with connections.opening() as con, connections.statements.block(con):
                home = await con.fetchval("SELECT coalesce(current_schema(), 'public')")
                encoding = await con.fetchval("SHOW server_encoding")
            if encoding != "UTF8":
                rule = f"is a database with the encoding {encoding}; the keys of a state need UTF8"
                raise bad("dsn", self._access.place, rule)
            async with connections.opening() as con:
                await self._table.examine(con)
                await self._table.examine_positions(con, self._positions)
        except Exception as error:
            raise for_opening(error, self._access.place)  # noqa: B904  # it has a cause
        self._opened = _OpenedState(connections, home)

    def _terminate(self) -> None:
        if self._opened is not None:
            self._opened.connections.terminate()

    def __repr__(self) -> str:
        return f"PostgresState({self._access.place}, table={self._table.table!r})"


class ClaimedRows:
    """A claimed position, and the number of the last transaction."""

    def __init__(self, owned: OwnedPosition) -> None:
        self.owned = owned
        self.number = 0

    def set_number(self, number: int) -> None:
        """Set the number of the last transaction."""
        self.number = number

    def next_mark(self, offset: int) -> StateMark:
        """Return the mark of the next transaction."""
        group, topic, _ = self.owned.key
        return StateMark(group, topic, offset, self.number + 1)

    def record(self, mark: StateMark) -> None:
        """Record a committed transaction."""
        self.owned.moved(Position(mark.position, mark.metadata))
        self.number = mark.number


class PostgresKeeper:
    """The states and positions of one consumer group: a `StateKeeper`."""

    keeps_group_offsets = False

    def __init__(
        self,
        group: str,
        table: StateTable,
        positions: PositionTable,
        connections: Connections,
        home: str,
    ) -> None:
        self._group = group
        self._table = table
        self._positions = positions
        self._connections = connections
        self._home = home
        self._owned: dict[TopicPartition, ClaimedRows] = {}

    async def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take over these partitions; return their stored positions."""
        async with self._connections.lent(answered=True) as con:
            claimed = await self._positions.claim(
                con, self._group, partitions, self._table.qualified, self._home, limit=self._limit
            )
        self._owned.update({each.partition: ClaimedRows(each) for each in claimed})
        known = {each.partition: each.position for each in claimed}
        return {each: for_the_source(at) for each, at in known.items() if at is not None}

    async def pages(
        self, partition: TopicPartition, entries: Mapping[str, Stored]
    ) -> AsyncGenerator[Sequence[tuple[str, Stored]]]:
        """Yield the rows of a partition, from one snapshot.

        Raises `ConfigError` for a state of a different position.
        """
        del entries  # the table cannot lose individual rows
        claimed = self._of(partition)
        async with self._connections.lent(answered=True) as con:
            await con.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            mark = await self._table.mark(con, self._group, partition)
            check_mark(mark, claimed.owned, self._table, self._positions)
            claimed.set_number(0 if mark is None else mark.number)
            async for page in self._table.pages(con, self._group, partition):
                yield page
            await con.execute("COMMIT")

    async def store(self, partition: TopicPartition, taken: TakenChanges) -> None:
        """Write the changes, and move the position. Raises `PositionLost`, and the server's errors."""
        claimed = self._of(partition)
        mark = claimed.next_mark(taken.offset)
        idle = f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_MOST}s'"
        async with self._connections.lent(answered=True) as con:
            await con.execute(f"{BEGIN_UNIT}; {idle}; {self._limit}")
            await self._table.apply(con, self._group, partition, taken.changes)
            await self._table.set_mark(con, partition, mark)
            await self._positions.advance(
                con, claimed.owned, Position(mark.position, mark.metadata)
            )
            if (answer := await con.execute("COMMIT")) != "COMMIT":
                raise UnavailableError(f"the transaction ended by {answer} instead of COMMIT")
            claimed.record(mark)

    async def has_stored(self, partition: TopicPartition, taken: TakenChanges) -> bool:
        """Whether the position is that of the next transaction. Raises `PositionLost`."""
        claimed = self._of(partition)
        mark = claimed.next_mark(taken.offset)
        async with self._connections.lent(answered=True) as con:
            known = await self._positions.read(con, claimed.owned, limit=self._limit)
        if known == Position(mark.position, mark.metadata):
            claimed.record(mark)
            return True
        if known != claimed.owned.position:
            raise PositionLost(f"the position of {partition} was changed by other means")
        return False

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions."""
        for each in partitions:
            self._owned.pop(each, None)

    @property
    def _limit(self) -> str:
        return self._connections.statements.limit

    def _of(self, partition: TopicPartition) -> ClaimedRows:
        claimed = self._owned.get(partition)
        if claimed is None:
            raise PositionLost(f"{partition} is no longer owned")
        return claimed
