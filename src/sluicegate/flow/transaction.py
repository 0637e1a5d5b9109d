"""From a source into a destination that stores the source's positions together with the rows.

The transactions are in `commits`, the positions in `positions`.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from dataclasses import replace
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
from .._core.transaction import check_parts
from ..consumer.handling.handlers import as_handler
from ..consumer.operated import Operated
from ..consumer.options import Poison, as_commits, pipe_limits
from ..consumer.settings import check_left_to_source, checked_limits, checked_settings
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
    from ..consumer.engine import Engine
    from ..consumer.failures.poison import PoisonStrategy
    from ..consumer.lanes.batches import BatchLimits
    from ..consumer.operating.report import DrainReport
    from ..consumer.operating.stats import ConsumerStats
    from ..consumer.options import Commits, InFlight
    from ..consumer.settings import ConsumerSettings
    from .commits import PartitionCommits
    from .positions import KeepsMoves
    from .transform import Transform


FETCH_MAX = 1000
"""Maximum number of records of one fetch."""
MOST_AT_ONCE = 8
"""Default limit of concurrent transactions."""


class TransactionOptions(TypedDict, total=False):
    """The keyword arguments of `flow.transaction`, documented there."""

    name: str
    poison: PoisonStrategy | Poison | None
    retry: RetryPolicy | None
    commits: Commits | None
    concurrency: int | None
    in_flight: int | InFlight | None
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


def checked_transaction(
    source: object,
    sink: SinkLike[Any],
    *,
    name: str = "transaction",
    poison: PoisonStrategy | Poison | None = None,
    retry: RetryPolicy | None = None,
    commits: Commits | None = None,
    concurrency: int | None = None,
    in_flight: int | InFlight | None = None,
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
        check_left_to_source(poison)
    check_keeps_positions(destination_of(stack))
    check_parts(stack, positions=True)
    if poison == "park_key" or (isinstance(poison, Poison) and poison.parked is not None):
        rule = "cannot be 'park_key': a parked record is stored outside the transaction"
        raise checks.bad("poison", poison, rule)
    times = as_commits(commits)
    records = 1000 if times.after is None else times.after
    checked = _checked_source(source)
    settings = checked_settings(
        checked,
        name=name,
        poison=poison,
        retry=retry,
        in_flight=pipe_limits(in_flight, messages=max(10_000, 4 * records), fetch_max=FETCH_MAX),
        concurrency=_concurrency(concurrency, stack),
        drain=drain,
        commits=replace(times, bytes=None),
        stall_after=stall_after,
        observers=observers,
        ordering="partition",
        clock=clock,
    )
    settings = replace(settings, commit_after=None)  # the end of a transaction is a commit
    limits = checked_limits(
        settings,
        size=records,
        # all records of a lease arrive together
        max_wait=0.0 if is_leased else settings.commit_every,
        max_bytes=16 << 20 if times.bytes is None else times.bytes,
    )
    return TransactionSettings(stack, settings, limits)


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
            one; or `PostgresEffects`, the destination of a handler's effects. `run` opens and
            closes it; it must have no other user.
        transform: a function from a `Message` to its rows: a row, a list or generator of rows, or
            `None` for no row; `Skip()`, `ToDeadLetter(why)` or `Terminate(why)` settle the record
            without rows. A plain function runs in the event loop and has to be fast. Its effects
            elsewhere are not part of the transaction. Default: the record itself is the row. With
            `PostgresEffects` it is the handler, which uses `message.connection` in the transaction,
            and returns the results of a consumer's handler, except `Manual()`.
        name: name of the flow in logs, metrics and dead letters.
        poison: the treatment of a record with a permanently refused row, or that cannot be
            transformed: `Poison(...)` with a strategy or dead letters; or a strategy that needs
            none: `block` (default), `skip`, or `exit`: `run` ends and raises its error. The records
            before it commit first. A dead letter is written before the position passes its record:
            at least once, with the same key. No keys can be parked. With a queue as the source only
            `exit` is accepted; otherwise the queue's own setting applies.
        retry: attempts and backoff of a failed transaction, and of a transform after a temporary
            error. Default: 5 attempts, 0.1 s doubled up to 30 s, with full jitter; outages do not
            count as attempts.
        commits: the maximum number of records and bytes in a transaction, and the longest wait in
            seconds of its first record for more; default:
            `Commits(every=1.0, after=1000, bytes=16 << 20)`.
        concurrency: the maximum number of concurrent transactions, each of one partition; default:
            8, or the number of the sink's connections if it is smaller.
        in_flight: the maximum number of records in flight, or `InFlight(...)` with a limit of
            bytes. Default: 10,000, or 4 full transactions if that is more, and 64 MiB.
        drain: seconds to finish running transactions when the flow stops or a partition is revoked;
            default 5.
        stall_after: seconds without progress after which the flow is reported as stalled; default
            60.
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
        delivered again to the next owner of the partition. Raises errors from opening and, after
        the drain, errors of the source, and a `SystemExit` or `KeyboardInterrupt` of the transform.
        A cancellation is raised after a drain as well; a second one ends the drain immediately.
        Raises `ConfigError` for a second call, and for a sink that is already open.
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
            return PartitionEffects(*parts, self._handler)
        retry = self._settings.retry
        transformer = Transformer(self._transform, retry, engine, concurrency=100)
        return PartitionTransactions(*parts, transformer)

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
