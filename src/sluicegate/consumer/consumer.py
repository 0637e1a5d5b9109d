"""The public class of a consumer."""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from .._core import checks
from .._core.errors import ConfigError
from .._core.keywords import takes
from .handling.handlers import as_batch_handler, as_handler, with_reports
from .handling.steps import with_steps
from .handling.workers import SingleMessages
from .jobs.context import check_forward_to
from .jobs.event_run import EventOptions, EventRun
from .jobs.state import PositionedBackend
from .operated import Operated
from .settings import BatchOptions, ConsumerOptions, checked_limits, checked_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self, Unpack

    from .._core.source import Source, TopicPartition
    from .engine import Engine
    from .handling.handlers import BatchHandler, MessageHandler
    from .jobs.context import EventContext, TakesForwarded
    from .jobs.interjections import Interjector
    from .jobs.item_batcher import ItemBatcher
    from .jobs.scheduler import JobScheduler
    from .jobs.state import StateBackend
    from .operating.report import DrainReport
    from .operating.stats import ConsumerStats


_NO_TURNS = (
    'must be given for run_events. With Consumer(ordering="partition"), the handlers, finalisers and '
    "interjections of a partition run one at a time, so that they need no lock for what they share; "
    'with "key", those of different keys run at once'
)


class Consumer(Operated):
    """A consumer of a source's records, in order per key and in parallel across keys. The stored
    position never passes an unsettled message.

    Args:
        source: the origin of the records.
        name: the consumer's name in logs, metrics, dead letters and the park store. With a park
            store it must be the same in every process of a group, and different in every other
            group.
        concurrency: the maximum number of handlers that run concurrently; default 100.
        in_flight: the maximum number of unsettled messages in the consumer: queued, running, in a
            batch, backing off or blocked; default 1,000 and 64 MiB of values. At the limit, nothing
            is fetched. `InFlight` has limits of bytes, per key and of a fetch.
        ordering: `key` (default): messages of a key one after another; `partition`: those of a
            partition one after another; `unordered`: no order. `run_events` has no default.
        key: a function from a record to its key; default: the record's own key. `Keys` also has the
            scope of keys, and whether records without a key are in order.
        on_nak: `block` (default): a failed message is retried before later messages of its key.
            `redeliver`: later messages may pass it, so this message loses its place in the order.
        retry: attempts and backoff. Default: 5 attempts (3 for unknown errors), 0.1 s doubled up to
            30 s, with full jitter; another policy has jitter only with `backoff=Backoff()`.
        poison: the treatment of a message that cannot be handled: `Poison(...)` with a strategy,
            dead letters or a park store; or a strategy that needs none: `block` (default), `skip`,
            or `exit`, which ends the run and raises the error.
        timeout: the maximum duration of a handler and its steps, in seconds; a handler that exceeds
            it is cancelled, which is a failed attempt. Running handlers are checked ten times per
            timeout, but at most every 5 ms and at least every 0.5 s. The cancellation is late by up
            to that interval, and never early.
        budget: the maximum duration of a run in seconds, after which it drains as after `stop`;
            default: no limit. The report's `work_remaining` shows whether another run has work to
            do.
        drain: seconds for running handlers to end when the consumer stops or loses a partition;
            default 5.
        commits: when positions are stored; default: `Commits(every=1.0, after=10_000)`.
        stall_after: seconds without progress after which the consumer is reported as stalled;
            default 60.
        steps: functions of a message that run before the handler, in order, such as decoding and
            checks.
        observers: metrics and traces; see `sluicegate.telemetry`.
        clock: the source of time.

    A consumer runs once. Enter it by `async with` to use it before and after the run; otherwise
    the run opens and closes it. Raises `ConfigError` for a bad argument.

    Examples:
        >>> import asyncio
        >>> from sluicegate import Consumer
        >>> from sluicegate.consumer import MemoryLog, MemorySource
        >>> log = MemoryLog()
        >>> for amount in (30, 12):
        ...     _ = log.produce("payments", amount, key="ann")
        >>> async def book(message):
        ...     print(message.key, message.value)
        >>> async def main():
        ...     print(await Consumer(MemorySource(log, ends=True), name="ledger").run(book))
        >>> asyncio.run(main())
        ann 30
        ann 12
        ledger: 2 messages acknowledged
    """

    @takes(ConsumerOptions, checked_settings)
    def __init__(self, source: Source, **options: Unpack[ConsumerOptions]) -> None:
        super().__init__(source, checked_settings(source, **options))
        self._has_ordering = "ordering" in options
        self._stack = AsyncExitStack()
        self._has_run = False
        self._events: EventRun | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(self._closing)
            await self._enter(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._engine is not None and not self._has_run:
            self._engine.claims.close_all()  # a normal end of each claim, not a loss
        await self._stack.aclose()

    async def run(self, handler: MessageHandler) -> DrainReport:
        """Handle messages until `stop`, a cancellation, the end of the budget, or the end of the
        source; then drain. Returns the report of the drain. A consumer that is not open is opened
        for the run, and closed after it.

        `handler` takes a `Message` and returns `None` if it has handled the message, or another
        result. An exception is a failed attempt. A plain function runs in a thread, which cannot be
        stopped: even after a timeout or a cancellation, its key waits until the function returns.

        Raises, after the drain, an error of the source or of the consumer itself, a handler's
        `SystemExit` or `KeyboardInterrupt` and, with `poison="exit"`, the error of a message that
        cannot be handled. A cancellation is also raised after the drain; a second one ends the
        drain immediately. Raises `ConfigError` for an invalid handler, before anything starts.
        """
        call = with_steps(handler, *self._settings.steps)
        async with self._opened():
            engine = self._begin()
            call = with_reports(call, engine)
            work = SingleMessages(engine.schedule, engine.settler, engine.workers, engine, call)
            return await engine.run(work)

    async def run_events(
        self,
        handler: Callable[[EventContext], object],
        *,
        jobs: Sequence[JobScheduler[Any, Any] | ItemBatcher] = (),
        state: StateBackend | None = None,
        interjections: Sequence[Interjector] = (),
        forward_to: TakesForwarded | None = None,
    ) -> DrainReport:
        """Like `run`, with events that may be completed later.

        `handler` takes an `EventContext`. It is async, or plain to run in a thread. Its result has
        the same meaning as for `run`. With `Incomplete()`, or the result of a `JobScheduler` or an
        `ItemBatcher`, the event ends its turn, and a finaliser completes it later in its order.
        The consumer's `ordering` must be given. With `partition`, the handlers, finalisers and
        interjections of a partition run one at a time, in the order of its records, so that they
        share data without a lock. With `key`, this holds for those of one key only.

        Args:
            handler: the function of each event's context.
            jobs: the `JobScheduler`s and `ItemBatcher`s that handlers use; each serves this
                consumer only.
            state: the backend of the state of the partitions; needs `ordering="partition"`.
                `PostgresState` and `KafkaState` store it together with the positions.
            interjections: periodic work in the order of each partition.
            forward_to: the `Batcher` that `context.forward` adds items to. It must be open during
                the whole run. An event whose items are refused fails, and is retried.

        Raises `ConfigError` for a bad argument, and the same errors as `run`.
        """
        call = as_handler(handler)
        if (state is not None or interjections) and self._settings.ordering != "partition":
            rule = (
                'needs Consumer(ordering="partition"): turns of a partition must exclude each other'
            )
            raise checks.bad("state" if state is not None else "interjections", "...", rule)
        if not self._has_ordering:
            raise checks.bad("ordering", self._settings.ordering, _NO_TURNS)
        if isinstance(state, PositionedBackend):
            state.check_source(self._source)
            if self._settings.poison.parked is not None:
                rule = (
                    "cannot be stored with the positions while keys are parked (Poison(parked=...))"
                )
                raise checks.bad("state", state, rule)
        check_forward_to(forward_to)
        options = EventOptions(
            jobs=jobs, state=state, interjections=interjections, forward_to=forward_to
        )
        async with self._opened():
            self._events = EventRun(self._begin(), call, self._settings.steps, options)
            return await self._events.run()

    async def interject(
        self, function: Callable[[EventContext], object], partition: TopicPartition | None = None
    ) -> None:
        """Run a function once in the order of a partition, or of each partition; suspend until it
        is complete.

        Works only during `run_events`. Raises `ConfigError` without it, and in a turn of the
        partition; `NotAssigned` if this process does not own the partition or loses it meanwhile;
        and any exception of the function. A cancelled call does not cancel the interjection.
        """
        if self._events is None:
            raise ConfigError("interject() needs a consumer that runs events; see run_events")
        await self._events.interjecting.now(partition, function)

    @takes(BatchOptions, checked_limits)
    async def run_batch(
        self, handler: BatchHandler, **options: Unpack[BatchOptions]
    ) -> DrainReport:
        """Like `run`, with batches of messages; `concurrency` batches run concurrently.

        `handler` takes a list of messages of any keys and partitions; messages of one key are in
        order. It returns a list with one result per message, or `None` if all are handled. For each
        key, only the acknowledgements before its first other result count. Later messages of the
        key are handled again after that one, even if they were acknowledged. An exception fails the
        batch: its messages are retried in smaller and smaller batches, until the message that
        causes the failure is alone and uses up its attempts.

        Args:
            handler: a function of a list of messages, async, or plain to run in a thread.
            size: the maximum number of messages of a batch; default 500.
            max_wait: seconds that an incomplete batch waits for more messages, counted from its
                first one; default 0.2; 0 does not wait, `None` waits without limit.
            max_bytes: the maximum size of a batch in bytes; one larger message is a batch by
                itself.
            max_per_key: the maximum number of messages of a key in a batch.
            on_mismatch: the treatment of the messages without a result if the list is too short, or
                of all messages if no list is returned: `terminate` treats them as poison, `retry`
                retries them.

        With `ordering="partition"`, a batch contains messages of one partition only. At the end,
        the incomplete batch is handled too. Raises `ConfigError` for a bad argument.
        """
        call = as_batch_handler(handler)
        limits = checked_limits(self._settings, **options)
        async with self._opened():
            engine = self._begin()
            return await engine.run(engine.batches(call, limits))

    def stats(self) -> ConsumerStats:
        """Return a snapshot of counts and levels. Thread-safe."""
        return self._open().stats()

    def _opened(self) -> AbstractAsyncContextManager[object]:
        """Return a context in which the consumer is open."""
        return self if self._engine is None else nullcontext()

    def _begin(self) -> Engine:
        engine = self._open()
        if self._has_run:
            raise ConfigError(f"{self._settings.name} has run already; make a new consumer")
        self._has_run = True
        return engine
