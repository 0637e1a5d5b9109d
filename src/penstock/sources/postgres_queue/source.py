"""A queue in PostgreSQL as a source."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..._clients.postgres.access import Access, need_asyncpg
from ..._clients.postgres.connections import Connections
from ..._clients.postgres.queues.channel import queue_channel
from ..._clients.postgres.queues.leasing import QueueLeases
from ..._core import checks
from ..._core.errors import ClosedError
from ..._core.source import SourceCapabilities, SourceTraits
from ..troubles import Troubles
from ..waking import Waker
from .options import QueueOptions
from .serving import OpenQueue, logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
    from datetime import timedelta

    from asyncpg import Pool

    from ..._clients.postgres.access import PoolFactory, Prepared
    from ..._core.clock import Clock
    from ..._core.positions import UnitMove
    from ..._core.source import (
        ClaimHost,
        Fetched,
        Position,
        ReturnedAs,
        SourceClaim,
        SourceRecord,
    )

LEASE = 30.0


class PostgresQueueSource:
    """A queue in PostgreSQL, served by one consumer of possibly many: the jobs of a key one after
    another in the order in which they were enqueued, different keys side by side.

    A record has the job's key as its key, the JSON of its payload as its value, in bytes, and the
    entries of its headers. Its topic is the queue, its partition the slot of the key, and its offset
    the job's place in the queue. In a queue with `ordering_required` every record has the key `""`,
    and that of the job is the header `key`. Jobs without a key are each alone; their partition is a
    negative number.

    A key is leased with a few of its jobs at a time. The consumer settles them as they are handled,
    keeps the leases while it lives, and gives them back when it stops. When it dies, they pass to
    others after `lease` seconds. Whatever runs under a lease that was lost has no effect on the
    queue, but may have others: delivery is at least once.

    The queue decides what becomes of a job that cannot be handled (`poison` of `penstock queue
    create`), so a consumer takes no `poison`, `dead_letters` or `parked` beside it, but for
    `poison="exit"`. A try that waits for `back_after` seconds or more is left to the queue, which
    counts the tries across processes.

    Args:
        dsn: `postgresql://user:password@host:port/database`; default: asyncpg's environment
            variables. Never shown.
        queue: the queue's name; it must exist (`penstock queue create`).
        schema: the schema, as `penstock pg install` made it; default `"penstock"`.
        group: the group of consumers whose ranges of slots this one shares, in a queue with sticky
            routing; default `"default"`.
        consumer: the name of this process in the group; default: one of its own, from the host's
            name and the process id. One that stays the same over restarts keeps manual ranges,
            and automatic ones if the process was killed and is back within `lease`.
        lease: seconds after which the keys of a process that died pass to others; default 30. Leases
            are extended three times in that time.
        per_key: the most jobs of a key in a lease; default 10. Of a key whose lease was lost, one.
        poll: seconds between looks for new jobs while no notification comes; default 0.25.
        back_after: seconds of a backoff from which on a job is left to the queue instead of being
            kept under its lease; default 1.
        ends: whether the source ends when no job is ready; otherwise it waits for more. It does not
            wait for jobs that are leased elsewhere, back off, or are due later.
        pool: an asyncpg pool of the application's, or a function that makes or finds one, instead
            of `dsn`. One of its connections listens for notifications if it has three or more.
        close_pool: whether closing closes that pool; default: only one that a function made.
        connect_options: any options of `asyncpg.create_pool`.
        statement_timeout: seconds that a statement may run on the server; default: the server's.
        prepared_statements: as for `PostgresSink`.
        close_timeout: seconds for closing the connections; default 5.
        clock: the source of time; default: the loop's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Used by one consumer
    at a time, on one loop. Nothing is connected before it is opened; then a schema that is missing
    or older, and a queue that does not exist, raise `ConfigError`. A server that cannot be reached
    is a reason in `explain()`, and tried again.
    """

    capabilities = SourceCapabilities(
        batches=True, shares="keys", takes_back=True, transactions="records"
    )

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue: str,
        schema: str = "penstock",
        group: str = "default",
        consumer: str | None = None,
        lease: float | timedelta = LEASE,
        per_key: int = 10,
        poll: float | timedelta = 0.25,
        back_after: float | timedelta = 1.0,
        ends: bool = False,
        pool: Pool[Any] | PoolFactory | None = None,
        close_pool: bool | None = None,
        connect_options: Mapping[str, Any] | None = None,
        statement_timeout: float | timedelta | None = None,
        prepared_statements: Prepared = "auto",
        close_timeout: float | timedelta = 5.0,
        clock: Clock | None = None,
    ) -> None:
        need_asyncpg()
        self._options = QueueOptions.of(
            queue,
            schema=schema,
            group=group,
            consumer=consumer,
            lease=lease,
            per_key=per_key,
            poll=poll,
            back_after=back_after,
            ends=ends,
        )
        self._access = Access.of(
            dsn,
            pool=pool,
            close_pool=close_pool,
            size=None,
            options=connect_options,
            timeout=statement_timeout,
            prepared=prepared_statements,
        )
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        self._clock = checks.checked_clock(clock)
        self.traits = SourceTraits(short_claims=True)
        self._open_queue: OpenQueue | None = None

    @property
    def group(self) -> str:
        """The group of consumers."""
        return self._options.group

    @property
    def back_after(self) -> float:
        """Seconds of a backoff from which on a job is left to the queue."""
        return self._options.back_after

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Serve the queue; at exit, end the claims and give back what is not settled.

        Raises `ClosedError` if it is open, and `ConfigError` for a schema that is missing or older,
        and a queue that does not exist.
        """
        if self._open_queue is not None:
            raise ClosedError(f"{self!r} is open already, for another consumer")
        options = self._options
        async with AsyncExitStack() as stack:
            connections = await Connections.to(self._access, self._close_timeout)
            stack.push_async_callback(connections.close)
            leases = QueueLeases(
                connections, options.schema, options.queue, options.group, options.consumer
            )
            troubles = Troubles(host, options.queue, logger)
            self._open_queue = OpenQueue(leases, options, host, troubles, self._clock)
            stack.callback(self._closed)
            channel, news = queue_channel(options.schema), self._open_queue.news
            waker = Waker(options.queue, channel, connections, news, self._clock)
            await stack.enter_async_context(self._open_queue.running(waker))
            yield

    def _closed(self) -> None:
        self._open_queue = None

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver jobs of these claims, or begin claims. Raises `ConfigError` for what no other try
        puts right.
        """
        return await self._open().fetch(claims, most)

    async def keep_alive(self) -> None:
        """Do nothing: the leases are kept beside the fetches."""

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Settle the jobs before these positions, in one statement. Raises errors of the client."""
        return await self._open().commit(positions)

    @property
    def moves_in(self) -> str:
        """The server that a `flow.transaction` has to write to."""
        return "PostgreSQL"

    def move_to(self, claim: SourceClaim, position: Position) -> UnitMove:
        """What settles the jobs of a claim in a transaction of the same database.

        Raises `PositionLost` for a claim that has ended.
        """
        return self._open().move_to(claim, position.offset)

    async def settled(self, claim: SourceClaim) -> int:
        """The offset before which everything of a claim is settled, asked of the server.

        Raises `PositionLost` for a claim that has ended, and errors of the client.
        """
        return await self._open().settled(claim)

    async def put_back(
        self,
        claim: SourceClaim,
        settled: int,
        record: SourceRecord,
        *,
        error: BaseException | None,
        delay: float,
        tries: int,
    ) -> ReturnedAs | None:
        """Leave a job to the queue for `delay` seconds, with those of its key behind it."""
        return await self._open().put_back(
            claim, settled, record, error=error, delay=delay, tries=tries
        )

    async def give_up(
        self,
        claim: SourceClaim,
        settled: int,
        record: SourceRecord,
        *,
        error: BaseException,
        tries: int,
        bury: bool,
    ) -> ReturnedAs | None:
        """Leave a job that cannot be handled to the queue, which does what it is set to do."""
        return await self._open().give_up(
            claim, settled, record, error=error, tries=tries, bury=bury
        )

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """The offsets after the last leased jobs. `penstock queue lag` tells how many others wait."""
        return await self._open().ends(claims)

    def extend(self, records: Iterable[SourceRecord]) -> None:
        """Do nothing: a job may take any time while its lease is kept."""

    def _open(self) -> OpenQueue:
        if self._open_queue is None:
            raise ClosedError(f"{self!r} is not open")
        return self._open_queue

    def __repr__(self) -> str:
        options = self._options
        return (
            f"PostgresQueueSource({self._access.place}, queue={options.queue!r}, "
            f"schema={options.schema!r}, consumer={options.consumer!r})"
        )
