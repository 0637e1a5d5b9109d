"""From a source into a destination that stores the source's positions together with the rows.

The transactions are in `commits`, the positions in `positions`.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from .._core import checks
from .._core.checks import bad
from .._core.clock import Signal, wait_until
from .._core.keywords import takes
from .._core.opening import Openable, opened
from .._core.positions import (
    RunsEffects,
    SettlesInTransaction,
    TakesMoves,
    check_keeps_positions,
    destination_of,
)
from .._core.sink import capabilities_of
from .._core.source import Source, TransactionalSource
from .._core.stacking import as_sink
from .._core.transaction import check_transactional
from ..consumer.handling.handlers import as_handler
from ..consumer.operated import Operated
from ..consumer.settings import (
    check_left_to_source,
    checked_limits,
    checked_settings,
    checked_strategy,
)
from .commits import PartitionEffects, PartitionTransactions
from .positions import LeasedPositions, PositionKeeper
from .transform import Transformer, checked_transform

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from datetime import timedelta
    from typing import Unpack

    from .._core.clock import Clock
    from .._core.observer import ConsumerObserver
    from .._core.positions import KeepsPositions
    from .._core.retry_policy import RetryPolicy
    from .._core.sink import Sink, SinkLike
    from .._core.source import SourceRecord
    from ..consumer.engine import Engine
    from ..consumer.failures.poison import PoisonStrategy
    from ..consumer.lanes.batches import BatchLimits
    from ..consumer.operating.report import DrainReport
    from ..consumer.operating.stats import ConsumerStats
    from ..consumer.settings import ConsumerSettings
    from .commits import PartitionCommits
    from .positions import KeepsMoves
    from .transform import Transform


FETCH_MAX = 1000
"""The most records of one fetch."""
MOST_AT_ONCE = 8
"""Default limit of concurrent transactions."""


class TransactionOptions(TypedDict, total=False):
    """The keyword arguments of `flow.transaction`, documented there."""

    name: str
    on_rejected: PoisonStrategy | None
    retry: RetryPolicy | None
    dead_letters: SinkLike[Any] | None
    max_dead_letter_ratio: float | None
    max_consecutive_dead_letters: int | None
    commit_after: int
    commit_bytes: int | None
    commit_every: float | timedelta
    write_size: int
    concurrency: int | None
    max_in_flight: int | None
    max_in_flight_bytes: int
    size_of: Callable[[SourceRecord], int] | None
    drain: float | timedelta
    stall_after: float | timedelta | None
    observers: Iterable[ConsumerObserver]
    clock: Clock | None


class TransactionSettings(NamedTuple):
    """The checked arguments of a transactional flow."""

    sink: Sink[Any]
    consumer: ConsumerSettings
    limits: BatchLimits
    """The limits at which a transaction of a partition's records begins."""
    write_size: int


def checked_transaction(
    source: object,
    sink: SinkLike[Any],
    *,
    name: str = "transaction",
    on_rejected: PoisonStrategy | None = None,
    retry: RetryPolicy | None = None,
    dead_letters: SinkLike[Any] | None = None,
    max_dead_letter_ratio: float | None = None,
    max_consecutive_dead_letters: int | None = None,
    commit_after: int = 1000,
    commit_bytes: int | None = 16 << 20,
    commit_every: float | timedelta = 1.0,
    write_size: int = 5000,
    concurrency: int | None = None,
    max_in_flight: int | None = None,
    max_in_flight_bytes: int = 64 << 20,
    size_of: Callable[[SourceRecord], int] | None = None,
    drain: float | timedelta = 5.0,
    stall_after: float | timedelta | None = 60.0,
    observers: Iterable[ConsumerObserver] = (),
    clock: Clock | None = None,
) -> TransactionSettings:
    """Check the arguments of a transactional flow. Raises `ConfigError`."""
    stack = as_sink(sink, "sink")
    is_leased = False
    if isinstance(source, SettlesInTransaction):
        is_leased = True
        _check_takes_moves(source, destination_of(stack))
        check_left_to_source("on_rejected", on_rejected)
    check_keeps_positions(destination_of(stack))
    check_transactional(stack, positions=True)
    if on_rejected == "park_key":
        rule = "cannot be 'park_key': a parked record is stored outside the transaction"
        raise checks.bad("on_rejected", on_rejected, rule)
    checks.count("commit_after", commit_after)
    checked = _checked_source(source)
    if not is_leased:
        on_rejected = checked_strategy("on_rejected", on_rejected, dead_letters, None)
    settings = checked_settings(
        checked,
        name=name,
        poison=on_rejected,
        retry=retry,
        dead_letters=dead_letters,
        max_dead_letter_ratio=max_dead_letter_ratio,
        max_consecutive_dead_letters=max_consecutive_dead_letters,
        max_in_flight=max(10_000, 4 * commit_after) if max_in_flight is None else max_in_flight,
        max_in_flight_bytes=max_in_flight_bytes,
        fetch_max=FETCH_MAX,
        size_of=size_of,
        concurrency=_concurrency(concurrency, stack),
        drain=drain,
        commit_every=commit_every,
        commit_after=None,
        stall_after=stall_after,
        observers=observers,
        ordering="partition",
        clock=clock,
    )
    limits = checked_limits(
        settings,
        size=commit_after,
        max_wait=0.0
        if is_leased
        else settings.commit_every,  # all records of a lease are there at once
        max_bytes=checks.optional_count("commit_bytes", commit_bytes),
    )
    return TransactionSettings(stack, settings, limits, checks.count("write_size", write_size))


def _checked_source(source: object) -> Source:
    if isinstance(source, TransactionalSource):
        return source
    if isinstance(source, Source) and isinstance(source, SettlesInTransaction):
        return source
    rule = (
        "must be a source whose positions the destination can store, such as KafkaSource; use "
        "flow.pipe for others (at least once)"
    )
    raise checks.bad("source", source, rule)


def _check_takes_moves(source: SettlesInTransaction, destination: object) -> None:
    """Raise `ConfigError` if the destination's transactions cannot settle the source's records."""
    kind = source.moves_in
    if not (isinstance(destination, TakesMoves) and destination.takes_moves_of == kind):
        rule = (
            f"settles its records in transactions of its own {kind}; use PostgresSink or "
            "PostgresEffects there, or flow.pipe (at least once)"
        )
        raise checks.bad("source", source, rule)


def _concurrency(concurrency: int | None, stack: Sink[Any]) -> int:
    most = capabilities_of(destination_of(stack)).max_concurrency
    if concurrency is None:
        return MOST_AT_ONCE if most is None else min(MOST_AT_ONCE, most)
    if checks.count("concurrency", concurrency) > (most or concurrency):
        rule = f"must be at most {most}, the simultaneous writes of the sink"
        raise checks.bad("concurrency", concurrency, rule)
    return concurrency


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
        transformer = Transformer(self._transform, retry, engine, concurrency=100)
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
        return self._open().stats()


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
