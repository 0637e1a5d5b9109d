"""From a source through a batcher into its sink: a pipe, its options and its report.

The work itself is in `pump`.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from .._core import checks
from .._core.clock import Signal, wait_until
from .._core.errors import ConfigError, ErrorClass
from .._core.keywords import takes
from .._core.source import TakesBack
from ..batcher.batcher import Batcher, name_after
from ..consumer.operated import Operated
from ..consumer.options import OF_RECORD, Poison, pipe_limits
from ..consumer.settings import checked_settings
from .pump import Pump
from .rows import PipedSchedule, RowEnds
from .transform import Transformer, checked_transform

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from datetime import timedelta
    from typing import Unpack

    from .._core.observer import ConsumerObserver
    from .._core.retry_policy import RetryPolicy
    from .._core.source import Source, SourceRecord, TopicPartition
    from ..batcher.report import ShutdownReport, Stats
    from ..batcher.setup import Setup
    from ..consumer.engine import Engine
    from ..consumer.failures.poison import PoisonStrategy
    from ..consumer.operating.report import DrainReport
    from ..consumer.operating.stats import ConsumerStats
    from ..consumer.options import Commits, InFlight
    from ..consumer.settings import ConsumerSettings
    from .transform import Transform


class PipeOptions(TypedDict, total=False):
    """The keyword arguments of `pipe`, documented there."""

    name: str
    poison: PoisonStrategy | Poison | None
    retry: RetryPolicy | None
    key: Callable[[SourceRecord], object] | None
    in_flight: int | InFlight | None
    concurrency: int
    drain: float | timedelta
    commits: Commits | None
    stall_after: float | timedelta | None
    observers: Iterable[ConsumerObserver]


class PipeSettings(NamedTuple):
    """The checked arguments of a pipe."""

    consumer: ConsumerSettings
    """The settings of its consumer parts. One worker moves the records."""
    concurrency: int
    """Maximum number of concurrent calls of an async transform."""


def checked_pipe(
    source: Source,
    batcher: Batcher[Any],
    *,
    name: str = "pipe",
    poison: PoisonStrategy | Poison | None = None,
    retry: RetryPolicy | None = None,
    key: Callable[[SourceRecord], object] | None = None,
    in_flight: int | InFlight | None = None,
    concurrency: int = 100,
    drain: float | timedelta = 5.0,
    commits: Commits | None = None,
    stall_after: float | timedelta | None = 60.0,
    observers: Iterable[ConsumerObserver] = (),
) -> PipeSettings:
    """Check the arguments of a pipe. Raises `ConfigError`."""
    setup = checked_batcher(batcher)
    is_parking = isinstance(poison, Poison) and poison.parked is not None
    if key is not None and not is_parking:
        rule = "has no effect without Poison(parked=...), which stores records by this key"
        raise checks.bad("key", key, rule)
    settings = checked_settings(
        source,
        name=name,
        poison=poison,
        retry=retry,
        key=checks.optional_function("key", key, OF_RECORD),
        in_flight=pipe_limits(in_flight, messages=setup.limits.ledger_items),
        concurrency=1,
        drain=drain,
        commits=commits,
        stall_after=stall_after,
        observers=observers,
        ordering="key" if is_parking else "unordered",
        clock=setup.clock,
    )
    if settings.poison.strategy == "block" and not isinstance(source, TakesBack):
        policy = replace(settings.retry, final=settings.retry.final - {ErrorClass.PERMANENT})
        settings = replace(settings, retry=policy)
    return PipeSettings(settings, checks.count("concurrency", concurrency))


def checked_batcher(batcher: object) -> Setup[Any]:
    """Check that a pipe can write through this batcher. Raises `ConfigError`."""
    if not isinstance(batcher, Batcher):
        raise checks.bad("batcher", batcher, "must be a Batcher(sink, ...)")
    setup = cast("Batcher[Any]", batcher).setup
    if setup.overflow != "block":
        rule = "must be 'block' in a pipe: a row that is dropped or refused would be lost"
        raise checks.bad("overflow", setup.overflow, rule)
    if setup.last_resort is not None:
        rule = "has no use in a pipe: unwritten records are delivered again by the source"
        raise checks.bad("last_resort", setup.last_resort, rule)
    if setup.on_key_failure != "skip":
        rule = "has no effect in a pipe; use its poison="
        raise checks.bad("on_key_failure", setup.on_key_failure, rule)
    if setup.tenants.has_caps:
        rule = "has caps, which a pipe cannot apply: one full tenant would stop all others; use weights"
        raise checks.bad("tenants", setup.tenants, rule)
    return setup


@dataclass(frozen=True, slots=True)
class PipeReport:
    """The result of a pipe.

    `complete` means that no write was interrupted, and that the last commit succeeded. Records
    whose rows were never sent will be delivered again, and do not make it false.
    """

    source: DrainReport
    """The records: the number settled in each way, and the stored positions."""
    batcher: ShutdownReport[Any]
    """The rows: the number of each outcome."""

    @property
    def complete(self) -> bool:
        """Whether no write was interrupted, and the last commit succeeded.

        Rows that were never sent do not affect it, such as those behind a blocked record.
        """
        return self.source.complete and not self.batcher.unknown

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The stored position of each partition at the end."""
        return self.source.positions

    def __str__(self) -> str:
        return f"{self.source}; {self.batcher}"


@dataclass(frozen=True, slots=True)
class PipeStats:
    """A snapshot of a pipe: its records and its rows."""

    source: ConsumerStats
    batcher: Stats

    def __str__(self) -> str:
        return f"{self.source}; {self.batcher}"


class Pipe(Operated):
    """Moves the records of a source through a batcher into its sink, in order per key of the
    batcher. The stored position never passes a record whose rows are not all safe.

    Args:
        source: the source of the records.
        batcher: the destination of their rows: an unopened `Batcher(sink, key=...)`, whose `key`
            determines the order. `run` opens and closes it.
        transform: a function from a `Message` to its rows: a row, a list or generator of rows, or
            `None` for no row; `Skip()`, `ToDeadLetter(why)` or `Terminate(why)` settle the record
            without rows. A plain function runs in the event loop and has to be fast. Default: the
            record itself is the row.
        name: name of the pipe in logs, metrics, dead letters and the park store, and of its batcher
            if that has no name of its own. For the park store it has to be the same in all
            processes of a group, and different in other groups.
        poison: the treatment of a record with a permanently rejected row, or one whose stored row
            differs (`StoredRowDiffers`), or that cannot be transformed: `Poison(...)` with a
            strategy, dead letters or a park store; or a strategy that needs none: `block`
            (default), `skip`, or `exit`, which ends the run and raises the error. A `DeadLetter` in
            the batcher's stack stores rows instead, before they are rejected. With a queue as the
            source only `exit` is accepted; otherwise the queue's own setting applies.
        retry: attempts and backoff of rows with the outcome `unknown` or `rejected`, and of a
            transform after a temporary error. Attempts inside the sink's stack are not counted.
            Default: 5 attempts, 0.1 s doubled up to 30 s, with full jitter.
        key: a function from a record to the key that is parked; default: the record's own key. All
            rows with the same key in the batcher have to come from records with the same key here.
            Only with a park store.
        in_flight: the maximum number of records in flight, or `InFlight(...)` with a limit of
            bytes. Default: the maximum number of items that the batcher holds
            (`Limits.max_pending_items`), and 64 MiB.
        concurrency: the maximum number of concurrent calls of an async transform; default 100.
        drain: seconds to write the rows in the batcher when the pipe stops (no write begins in the
            second half), and to finish running writes when a partition is revoked; default 5.
        commits: when positions are stored; default: `Commits(every=1.0, after=10_000)`.
        stall_after: seconds without progress after which the pipe is reported as stalled; default
            60.
        observers: observers for metrics and traces of the records; those of the rows belong to the
            batcher.

    The pipe uses the batcher's clock. It can be run once. Raises `ConfigError` for a bad argument,
    and for a batcher with `overflow` other than `block`, with `last_resort`, with `on_key_failure`,
    or whose tenants have caps.
    """

    _opened_by = "`await pipe.run()`"

    @takes(PipeOptions, checked_pipe)
    def __init__(
        self,
        source: Source,
        batcher: Batcher[Any],
        transform: Transform | None = None,
        **options: Unpack[PipeOptions],
    ) -> None:
        settings = checked_pipe(source, batcher, **options)
        super().__init__(source, settings.consumer, PipedSchedule)
        self._batcher = batcher
        self._concurrency = settings.concurrency
        self._transform = checked_transform(transform)
        self._opened = Signal()
        self._has_ended = False

    async def run(self) -> PipeReport:
        """Open the batcher and the source, move records until `stop`, a cancellation or the end of
        the source, then drain and close both.

        The drain has one deadline for both: the rows in the batcher are written, then the positions
        are stored. Unwritten records are delivered again to the next owner of their partition.
        Raises errors from opening and, after the drain, errors of the source or the batcher, and a
        `SystemExit` or `KeyboardInterrupt` of the transform. A cancellation is raised after a drain
        as well; a second one ends the drain immediately. A second call raises `ConfigError`.
        """
        self._check_new()
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._closing)
                await stack.enter_async_context(self._open_batcher())
                engine = await self._enter(stack)
                self._opened.fire()
                drained = await engine.run(self._pump(engine))
        finally:
            self._has_ended = True
            self._opened.fire()
        assert self._batcher.report is not None
        return PipeReport(drained, self._batcher.report)

    def _pump(self, engine: Engine) -> Pump:
        settings = self._settings
        transformer = Transformer(
            self._transform, settings.retry, engine, concurrency=self._concurrency
        )
        insists = settings.poison.strategy == "block"
        ends = RowEnds(engine, self._batcher, settings.retry, insists=insists)
        return Pump(engine, self._batcher, transformer, ends)

    @asynccontextmanager
    async def _open_batcher(self) -> AsyncIterator[None]:
        """Keep the batcher open in the context; its report lists unwritten rows."""
        if (state := self._batcher.stats().state) not in {"new", "closed"}:
            rule = "a pipe opens and closes its batcher, which must have no other user"
            raise ConfigError(f"batcher {self._batcher.name!r} is {state}: {rule}")
        name_after(self._batcher, self.name)
        await self._batcher.__aenter__()
        try:
            yield
        except BaseException as error:
            report = await self._batcher.shutdown()
            if not report.complete:
                error.add_note(str(report))
            raise
        await self._batcher.shutdown()

    async def wait_ready(self) -> None:
        """Suspend until `ready`, also before `run` has opened the pipe. Raises `ClosedError` if the
        pipe ends first.
        """
        while self._engine is None and not self._has_ended:
            await wait_until(self._settings.clock, math.inf, self._opened)
        await super().wait_ready()

    def stats(self) -> PipeStats:
        """Return a snapshot of counts and levels. May be called in any thread."""
        return PipeStats(self._open().stats(), self._batcher.stats())


def pipe(
    source: Source,
    batcher: Batcher[Any],
    transform: Transform | None = None,
    **options: Unpack[PipeOptions],
) -> Pipe:
    """Create a `Pipe`, which moves the records of a source through a batcher into its sink.

    Takes the arguments of `Pipe`. Nothing is opened until `run`.

    Examples:
        >>> import asyncio
        >>> from sluicegate import Batcher, flow
        >>> from sluicegate.sinks import MemorySink
        >>> from sluicegate.consumer import MemoryLog, MemorySource
        >>> log, rows = MemoryLog(), MemorySink()
        >>> for amount in (30, 12):
        ...     _ = log.produce("payments", amount, key="ann")
        >>> pipe = flow.pipe(
        ...     MemorySource(log, ends=True),
        ...     Batcher(rows, key=lambda row: row["account"]),
        ...     lambda message: {"account": message.key, "amount": message.value},
        ... )
        >>> print(asyncio.run(pipe.run()).batcher.tally)
        2 accepted: 2 delivered
        >>> rows.items[0]
        {'account': 'ann', 'amount': 30}
    """
    return Pipe(source, batcher, transform, **options)
