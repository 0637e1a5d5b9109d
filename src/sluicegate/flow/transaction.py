"""From a source into a destination that stores the source's positions together with the rows."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

from .._core.checks import bad
from .._core.clock import Signal, wait_until
from .._core.keywords import takes
from .._core.opening import Openable, opened
from .._core.positions import RunsEffects, SettlesInTransaction, destination_of
from .._core.source import TransactionalSource
from ..consumer.handlers import as_handler
from ..consumer.operated import Operated
from .effects import PartitionEffects
from .leased import LeasedPositions
from .positions import PositionKeeper
from .transacting import PartitionTransactions
from .transaction_settings import TransactionOptions, checked_transaction
from .transform import Transformer, checked_transform

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Unpack

    from .._core.positions import KeepsPositions
    from .._core.sink import SinkLike
    from .._core.source import Source
    from ..consumer.engine import Engine
    from ..consumer.report import DrainReport
    from ..consumer.stats import ConsumerStats
    from .positions import KeepsMoves
    from .transacting import PartitionCommits
    from .transform import Transform


class TransactionalPipe(Operated):
    """Moves the records of a source into a sink, each exactly once and in order per partition:
    rows, or the effects of a handler, commit in one transaction of the destination with the
    source's position.

    Args:
        source: the source of the records. The positions of a `KafkaSource`, a
            `PostgresStreamSource` or a `MemorySource` are stored in the destination, from the next
            assignment on. The jobs of a `PostgresQueueSource` are settled by the last statement of
            the transaction, so the destination must be in the same database as the queue.
        sink: the destination of the rows: an unopened `PostgresSink`, or a stack of sinks around
            one; or `PostgresEffects` or `SQLiteEffects`, the destinations of a handler's effects.
            `run` opens and closes it; it must have no other user.
        transform: a function from a `Message` to its rows: a row, a list or generator of rows, or
            `None` for no row; `Skip()`, `ToDeadLetter(why)` or `Terminate(why)` settle the record
            without rows. A plain function runs in the event loop and has to be fast. Its effects
            elsewhere are not part of the transaction. Default: the record itself is the row. With
            `PostgresEffects` and `SQLiteEffects` it is the handler, which uses `message.connection`
            in the transaction, and returns the results of a consumer's handler, except `Manual()`.
        name: name of the flow in logs, metrics and dead letters.
        on_rejected: the strategy for a record with a permanently refused row, or that cannot be
            transformed: `skip`, `block`, `block_and_dead_letter`, or `exit`: `run` ends and raises
            its error. The records before it commit first. Default: `block_and_dead_letter` with
            `dead_letters`, else `block`. With a queue as the source only `exit` is accepted;
            otherwise the queue's own setting applies.
        retry: attempts and backoff of a failed transaction, and of a transform after a temporary
            error. Default: 5 attempts, 0.1 s doubled up to 30 s, with full jitter; outages do not
            count as attempts.
        dead_letters: the sink, or stack of sinks, for dead letters of records. A letter is written
            before the position passes its record: at least once, with the same key.
        max_dead_letter_ratio: stop if more than this fraction of a partition's recent records
            became dead letters.
        max_consecutive_dead_letters: stop after this number of consecutive dead letters in a
            partition.
        commit_after: the most records in a transaction.
        commit_bytes: the most bytes of records in a transaction; a larger record is committed
            alone.
        commit_every: the longest wait in seconds of a transaction's first record for more records.
        write_size: the most rows in one write within a transaction.
        concurrency: the most concurrent transactions, each of one partition; default: 8, or the
            number of the sink's connections if it is smaller.
        max_in_flight: the most records in flight; default: 10,000, or 4 full transactions if that
            is more.
        max_in_flight_bytes: the same in bytes of values; a larger record is processed alone.
        fetch_max: the most records of one fetch.
        refill_below: fetch again when the records in flight have fallen to this fraction of a
            limit.
        size_of: a function from a record to its size in bytes; default: the length of its value.
        drain: seconds to finish running transactions when the flow stops or a partition is revoked.
        stall_after: seconds without progress after which the flow is reported as stalled.
        observers: observers for metrics and traces of the records.
        clock: the source of time.

    A flow can be run once. Raises `ConfigError` for a bad argument, for a sink that does not store
    positions, and for a stack with effects that cannot be part of the transaction.
    """

    _opened_by = "`await flow.run()`"

    @takes(TransactionOptions, checked_transaction)
    def __init__(
        self,
        source: Source,
        sink: SinkLike[Any],
        transform: Transform | None = None,
        **options: Unpack[TransactionOptions],
    ) -> None:
        made = checked_transaction(source, sink, **options)
        self._sink = made.sink
        self._limits = made.limits
        self._write_size = made.write_size
        settings = made.consumer
        destination = cast("KeepsPositions", destination_of(made.sink))
        self._handler: Any = None
        self._transform: Any = None
        if isinstance(destination, RunsEffects):
            self._handler = _checked_handler(destination, transform)
        else:
            self._transform = checked_transform(transform)
        if isinstance(source, SettlesInTransaction):
            self._keeper: KeepsMoves = LeasedPositions(source)
            super().__init__(source, settings)
        elif isinstance(source, TransactionalSource):
            keeper = PositionKeeper(destination, source.group, settings.name, settings.clock)
            self._keeper = keeper
            super().__init__(source.with_positions(keeper), settings)
        self._opened = Signal()
        self._has_ended = False

    async def run(self) -> DrainReport:
        """Open the sink and the source, move records until `stop`, a cancellation or the end of the
        source, then drain and close both.

        A transaction that is not committed within `drain` is rolled back, and its records are
        delivered again to the next owner of the partition. Raises errors of opening, and after the
        drain errors of the source, and a `SystemExit` or `KeyboardInterrupt` of the transform. A
        cancellation is raised after a drain as well; a second one ends the drain at once. Raises
        `ConfigError` for a second call, and for a sink that is already open.
        """
        self._check_new()
        destination = destination_of(self._sink)
        if isinstance(destination, Openable) and destination.is_open:
            rule = "is already open; a flow opens its sink, which must have no other user"
            raise bad("sink", destination, rule)
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._closing)
                await stack.enter_async_context(opened(self._sink))
                engine = await self._enter(stack)
                self._opened.fire()
                handle = self._commits(engine).handle
                return await engine.run(engine.batches(handle, self._limits))
        finally:
            self._has_ended = True
            self._opened.fire()

    def _commits(self, engine: Engine) -> PartitionCommits:
        parts = self._sink, self._keeper
        if self._handler is not None:
            return PartitionEffects(*parts, self._handler, write_size=self._write_size)
        retry = self._settings.retry
        transformer = Transformer(self._transform, retry, engine.commons, concurrency=100)
        return PartitionTransactions(*parts, transformer, write_size=self._write_size)

    async def wait_ready(self) -> None:
        """Suspend until `ready`, also before `run` has opened the flow. Raises `ClosedError` if the
        flow ends first.
        """
        while self._engine is None and not self._has_ended:
            await wait_until(self._settings.clock, math.inf, self._opened)
        await super().wait_ready()

    def stats(self) -> ConsumerStats:
        """Return a snapshot of counts and levels. May be called in any thread."""
        return self._open().views.stats()


def _checked_handler(
    destination: RunsEffects, handler: object
) -> Callable[[Any], Awaitable[object]]:
    """Check the handler of a flow into a destination of effects. Raises `ConfigError`."""
    if handler is None:
        rule = "must be given: the handler of messages, which runs in the transaction"
        raise bad("transform", handler, rule)
    destination.check_handler(handler)
    return as_handler(handler, "transform")


def transaction(
    source: Source,
    sink: SinkLike[Any],
    transform: Transform | None = None,
    **options: Unpack[TransactionOptions],
) -> TransactionalPipe:
    """Create a `TransactionalPipe`, which moves the records of a source into a sink exactly once.

    Takes the arguments of `TransactionalPipe`. Nothing is opened until `run`.
    """
    return TransactionalPipe(source, sink, transform, **options)
