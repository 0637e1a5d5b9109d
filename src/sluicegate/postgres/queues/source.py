"""A queue in PostgreSQL as a source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.keywords import known_arguments
from ..._core.logs import storable
from ..._core.source import SourceCapabilities
from ..._core.text import text_of
from ..client.access import PostgresAccess
from ..records.source import RecordSource
from ..schema.opened import check_schema_name
from .enqueue import queue_channel
from .leasing import QueueLeases, QueueOptions, own_name
from .serving import OpenQueue

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from ..._core.clock import Clock
    from ..._core.positions import UnitMove
    from ..._core.source import ClaimHost, Position, ReturnedAs, SourceClaim, SourceRecord
    from ..client.connections import Connections

LEASE = 30.0


@known_arguments(access=PostgresAccess)
class PostgresQueueSource(RecordSource[OpenQueue]):
    """A queue in PostgreSQL, served by one or more consumers. Jobs of a key run one after another,
    in the order in which they were enqueued; different keys run concurrently.

    A record has the job's key, the JSON of its payload as its value, in bytes, and the entries of
    its headers. Its topic is the queue, its partition the slot of the key, and its offset the job's
    place in the queue. In a queue with `ordering_required` every record has the key `""`, and the
    job's key is in the header `key`. Each job without a key is independent; its partition is a
    negative number.

    A key is leased with a few of its jobs at a time. The consumer settles the jobs as they are
    handled, extends the leases while it runs, and gives them back when it stops. If it dies, the
    keys pass to others after `lease` seconds. A handler whose lease was lost has no effect on the
    queue, but may have other effects: delivery is at least once.

    The queue decides about a job that cannot be handled (`poison` of `sluicegate queue create`), so
    a consumer of this source does not accept `poison`, except `poison="exit"`. An attempt with a
    backoff of `back_after` seconds or more is left to the queue, which counts the attempts across
    processes.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        queue: the name of an existing queue (`sluicegate queue create`).
        schema: the schema, created by `sluicegate pg install`; default `"sluicegate"`.
        group: the group of consumers that share the ranges of slots, in a queue with sticky
            routing; default `"default"`.
        consumer: the name of this process in the group; default: a unique name, from the host's
            name and the process id. A name that stays the same across restarts keeps manual ranges,
            and automatic ones if the process was killed and restarts within `lease`.
        lease: seconds after which the keys of a dead process pass to others; default 30. Leases are
            extended three times in that time.
        per_key: the maximum number of jobs of a key in a lease; default 10. For a key whose lease
            was lost it is one.
        poll: seconds between checks for new jobs without a notification; default 0.25.
        back_after: the backoff in seconds from which a job is put back into the queue instead of
            waiting under its lease; default 1.
        ends: whether the source ends when no job is ready; otherwise it waits for more. It does not
            wait for jobs that are leased elsewhere, in a backoff, or due later.
        clock: the source of time; default: the loop's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Used by one consumer
    at a time, on one loop. Opening connects, and raises `ConfigError` for a schema that is missing
    or too old, and for a queue that does not exist. An unreachable server is reported in
    `explain()`, and tried again.
    """

    capabilities = SourceCapabilities(
        batches=True, shares="keys", takes_back=True, transactions="records"
    )

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        queue: str,
        schema: str = "sluicegate",
        group: str = "default",
        consumer: str | None = None,
        lease: float | timedelta = LEASE,
        per_key: int = 10,
        poll: float | timedelta = 0.25,
        back_after: float | timedelta = 1.0,
        ends: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._options = QueueOptions(
            lease=checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT),
            queue=checks.text("queue", queue),
            schema=check_schema_name(schema),
            group=checks.text("group", group),
            consumer=own_name() if consumer is None else checks.text("consumer", consumer),
            per_key=checks.count("per_key", per_key),
            poll=checks.seconds("poll", poll, usual=checks.LONG_DELAY),
            back_after=checks.seconds(
                "back_after", back_after, zero=True, usual=checks.LONG_TIMEOUT
            ),
            ends=checks.flag("ends", ends),
        )
        super().__init__(dsn, lease=lease, clock=clock)

    @property
    def _name(self) -> str:
        return self._options.queue

    @property
    def _channel(self) -> str:
        return queue_channel(self._options.schema)

    async def _serve(
        self, connections: Connections, host: ClaimHost, stack: AsyncExitStack
    ) -> OpenQueue:
        del stack
        leases = QueueLeases(connections, self._options)
        return OpenQueue(leases, self._options, host, self._clock)

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return self._options.group

    @property
    def back_after(self) -> float:
        """The backoff in seconds from which a job is put back into the queue."""
        return self._options.back_after

    @property
    def moves_in(self) -> str:
        """The kind of server that a `flow.transaction` has to write to."""
        return "PostgreSQL"

    def move_to(self, claim: SourceClaim, position: Position) -> UnitMove:
        """Return the move that settles the jobs of a claim in a transaction of the same database.

        Raises `PositionLost` for a claim that has ended.
        """
        return self._opened.move_to(claim, position.offset)

    async def fetch_settled_offset(self, claim: SourceClaim) -> int:
        """Ask the server for the offset before which all jobs of a claim are settled.

        Raises `PositionLost` for a claim that has ended, and client errors.
        """
        return await self._opened.fetch_settled_offset(claim)

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
        """Put back a job into the queue for `delay` seconds, with the later jobs of its key."""
        reason = None if error is None else storable(text_of(error))
        given = {"delay": delay, "attempts": tries, "reason": reason}
        return await self._opened.settle_one(claim, settled, record, action="nak", **given)

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
        """Leave a job that cannot be handled to the queue, which applies its `poison` setting."""
        return await self._opened.settle_one(
            claim,
            settled,
            record,
            action="bury" if bury else "fail",
            attempts=tries,
            reason=storable(text_of(error)),
            error=type(error).__name__,
        )

    def __repr__(self) -> str:
        options = self._options
        return (
            f"PostgresQueueSource({self._access.place}, queue={options.queue!r}, "
            f"schema={options.schema!r}, consumer={options.consumer!r})"
        )
