"""From a source into a destination that stores the source's positions with the rows."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

from .._core.checks import bad
from .._core.clock import Signal, wait_until
from .._core.effects import RunsEffects
from .._core.keywords import takes
from .._core.opening import Openable, opened
from .._core.positions import SettlesInTransaction, destination_of
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
    """Moves the records of a source into a sink, each exactly once and in order per partition: the
    rows of records, or the effects of a handler, and the source's position commit in one
    transaction of the destination.

    Args:
        source: where the records come from. The positions of a `KafkaSource`, a
            `PostgresStreamSource` or a `MemorySource` are stored in the destination, from the next
            assignment on. The jobs of a `PostgresQueueSource` are settled by the last statement of
            the transaction, so the destination must be in the queue's own database.
        sink: where the rows go: a `PostgresSink`, or a stack of sinks around one, not opened. Or
            where a handler has its effects: `PostgresEffects`. `run` opens and closes it, and is
            the only one that uses it.
        transform: a function from a `Message` to its rows: a row, a list or generator of rows, or
            `None` for no row; `Skip()`, `ToDeadLetter(why)` or `Terminate(why)` settle the record
            without rows. A plain function runs in the event loop and has to be quick. What it does
            elsewhere is not in the transaction. Default: the record itself is the row. Into
            `PostgresEffects` it is the handler, with `message.connection` in the transaction, and
            answers as the handler of a consumer; but for `Manual()`.
        name: names the flow in logs, metrics and dead letters.
        on_rejected: with a queue as the source only `exit`; it does with such a job what it is set
            to do. Otherwise what becomes of a record with a row that is refused for good, or that cannot be
            transformed: `skip`, `block`, `block_and_dead_letter`, or `exit`: `run` ends and raises
            its error. The records before it commit first. Default: `block_and_dead_letter` with dead letters, else `block`.
        retry: attempts and backoff of a transaction that failed, and of a transform whose error may
            pass. Default: 5 attempts, 0.1 s doubled up to 30 s, with full jitter; outages use up no
            attempt.
        dead_letters: the sink, or stack of sinks, of dead letters of records. A letter is written
            before the position passes its record: at least once, under one key.
        max_dead_letter_ratio: stop if more than this part of a partition's recent records became
            dead letters.
        max_consecutive_dead_letters: stop after this number of them in a row in a partition.
        commit_after: the most records of a transaction.
        commit_bytes: the most bytes of a transaction's records; one larger record is alone.
        commit_every: seconds that the first record of a transaction waits for more, at most.
        write_size: the most rows of one write within a transaction.
        concurrency: the most partitions in a transaction at once; default: 8, or as many as the
            sink has connections, if those are fewer.
        max_in_flight: the most records inside; default: 10,000, or 4 transactions.
        max_in_flight_bytes: the same in bytes of values; one larger record is taken alone.
        fetch_max: the most records of one fetch.
        refill_below: fetch again when the records inside have fallen to this part of a bound.
        size_of: a function from a record to its size in bytes; default: the length of its value.
        drain: seconds for transactions under way when the flow stops or a partition is revoked.
        stall_after: seconds without progress after which the flow is reported as stalled.
        observers: metrics and traces of the records.
        clock: the source of time.

    A flow runs once. Raises `ConfigError` for a bad argument, for a sink that keeps no positions,
    and for a stack with effects that cannot be in the transaction.
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
        delivered again to the next owner of the partition. Raises what opening raises, an error of
        the source, and a `SystemExit` or `KeyboardInterrupt` of the transform, after the drain. A
        cancellation drains, too, and is raised then; a second one ends the drain at once. Raises
        `ConfigError` the second time, and for a sink that is open already.
        """
        self._check_new()
        destination = destination_of(self._sink)
        if isinstance(destination, Openable) and destination.is_open:
            rule = "is open already; a flow opens its sink, and is the only one that uses it"
            raise bad("sink", destination, rule)
        try:
            async with AsyncExitStack() as stack:
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
        """Suspend until `ready`, also before `run` has opened the flow. Raises `ClosedError` if it
        ends before.
        """
        while self._engine is None and not self._has_ended:
            await wait_until(self._settings.clock, math.inf, self._opened)
        await super().wait_ready()

    def stats(self) -> ConsumerStats:
        """A snapshot of counts and levels. May be called in any thread."""
        return self._open().views.stats()


def _checked_handler(
    destination: RunsEffects, handler: object
) -> Callable[[Any], Awaitable[object]]:
    """The handler of a flow into a destination of effects. Raises `ConfigError`."""
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
    """Make a `TransactionalPipe`, which moves the records of a source into a sink exactly once.

    Takes the arguments of `TransactionalPipe`. Nothing is opened until `run`.
    """
    return TransactionalPipe(source, sink, transform, **options)
