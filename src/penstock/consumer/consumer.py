"""The face of a consumer."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from .._core import checks
from .._core.errors import ConfigError
from .._core.keywords import takes
from .batching.batch_options import BatchOptions, checked_limits
from .handlers import as_batch_handler, as_handler
from .jobs.forwarding import check_forward_to
from .jobs.running_events import EventOptions, EventRun
from .jobs.turns import PositionedBackend
from .observing import observed
from .operated import Operated
from .settings import ConsumerOptions, checked_settings
from .single_messages import SingleMessages
from .stepping import with_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from .._core.source import Source, TopicPartition
    from .engine import Engine
    from .handlers import BatchHandler, MessageHandler
    from .jobs.batches import ItemBatcher
    from .jobs.context import EventContext
    from .jobs.forwarded import TakesForwarded
    from .jobs.interjections import Interjector
    from .jobs.scheduler import JobScheduler
    from .jobs.state import StateBackend
    from .report import DrainReport
    from .stats import ConsumerStats


class Consumer(Operated):
    """Handles the records of a source: in order per key, parallel across keys, and with a stored
    position that never passes a message that is not settled.

    Args:
        source: where the records come from.
        name: names the consumer in logs, metrics, dead letters and the park store; there it has to
            be the same in every process of a group, and another in every other group.
        concurrency: the most handlers that run at once.
        max_in_flight: the most messages inside: queued, running, in a batch, backing off or
            blocked. The source is not asked for more while they are.
        max_in_flight_bytes: the same in bytes of values; one larger record is taken alone.
        max_per_key: the most messages of a key that wait in its lane. Later ones are held back:
            they count in `max_in_flight`, and their partition is fetched from after the others.
            This reserves no room: once the window is full of a key, everything waits for it.
        fetch_max: the most records of one fetch.
        refill_below: fetch again when the messages inside have fallen to this part of a bound.
        ordering: `key`: messages of one key one after another; `partition`: those of a partition;
            `unordered`: all at once.
        key: a function from a record to its key; default: the record's own key.
        key_scope: whether equal keys of two partitions are one key: `partition` (no), `topic` (in
            one topic) or `group` (always).
        keyless: `serial`: records without a key are in order among themselves; `parallel`: each is
            alone.
        size_of: a function from a record to its size in bytes; default: the length of its value.
        on_nak: `block`: a message that failed is tried again before later ones of its key.
            `redeliver`: later ones may pass it, which gives up the order for this message.
        retry: attempts and backoff. Default: 5 attempts (3 for unknown errors), 0.1 s doubled up to
            30 s, with full jitter; another policy has jitter only with `backoff=FullJitter()`.
        poison: what becomes of a message that cannot be handled: `skip`, `block`,
            `block_and_dead_letter`, `park_key`, or `exit`: the run ends and raises its error.
            Default: `park_key` with a store, else `block_and_dead_letter` with dead letters, else
            `block`.
        dead_letters: the sink, or stack of sinks, of dead letters.
        parked: the store of parked messages.
        max_dead_letter_ratio: stop if more than this part of a partition's recent messages became
            dead letters.
        max_consecutive_dead_letters: stop after this number of them in a row in a partition.
        timeout: the most seconds of a handler, with its steps; then it is cancelled, a failed try.
            Handlers are looked at ten times per timeout, but at most every 5 ms and at least every
            0.5 s; one is cancelled up to that much later, and never earlier.
        budget: seconds of a run, after which it drains as after `stop`; default: no limit. The
            report's `work_remaining` says whether another run has something to do.
        drain: seconds for running handlers to end when the consumer stops or loses a partition.
        commit_every: seconds between commits.
        commit_after: commit after this number of settled messages, too.
        stall_after: seconds without progress after which the consumer is reported as stalled.
        steps: functions of a message that run before the handler, in order: decoding, checks.
        observers: metrics and traces; see `penstock.telemetry`.
        clock: the source of time.

    A consumer runs once, inside `async with`. Raises `ConfigError` for a bad argument.
    """

    @takes(ConsumerOptions, checked_settings)
    def __init__(self, source: Source, **options: Unpack[ConsumerOptions]) -> None:
        super().__init__(source, checked_settings(source, **options))
        self._stack = AsyncExitStack()
        self._has_run = False
        self._events: EventRun | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
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
            self._engine.claims.close_all()  # given back, not lost
        await self._stack.aclose()

    async def run(self, handler: MessageHandler) -> DrainReport:
        """Handle messages until `stop`, a cancellation, the end of the budget or of the source; then
        drain.

        `handler` takes a `Message` and returns `None` when it has handled it, or another result.
        An exception is a failed try. A plain function runs in a thread, which cannot be stopped:
        its key waits until it returns, also when it is cut. Returns the report of the drain. Raises
        an error of the source or of the consumer itself, with `poison="exit"` that of a message
        which cannot be handled, and a handler's `SystemExit` or `KeyboardInterrupt`, after the
        drain. A cancellation drains, too, and is raised then; a
        second one ends the drain at once. Raises `ConfigError` for what is no handler, before
        anything starts.
        """
        call = with_steps(handler, *self._settings.steps)
        engine = self._begin()
        call = observed(call, engine.commons)
        work = SingleMessages(engine.schedule, engine.settler, engine.workers, engine.commons, call)
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
        """As `run`, with events that may be completed later.

        `handler` takes an `EventContext`, async, or plain to run in a thread. What it returns counts as
        for `run`; with `Incomplete()`, or what a `JobScheduler` or an `ItemBatcher` returns, the event
        gives its turn up, and is completed by a finaliser in its order. With `ordering="partition"`,
        handlers, finalisers and interjections of a partition run one at a time, in the order of its records.

        Args:
            handler: the function of each event's context.
            jobs: the `JobScheduler`s and `ItemBatcher`s that handlers use; each serves this consumer only.
            state: where the state of the partitions is; needs `ordering="partition"`. `PostgresState` of
                `penstock.flow` stores it together with the positions.
            interjections: periodic work in the order of each partition.
            forward_to: the `Batcher` that `context.forward` submits to. It is open before the run begins and
                until it has ended; an event whose items are refused fails, and is tried again.

        Raises `ConfigError` for a bad argument, and as `run`.
        """
        call = as_handler(handler)
        if (state is not None or interjections) and self._settings.ordering != "partition":
            rule = 'needs Consumer(ordering="partition"): turns of a partition have to exclude each other'
            raise checks.bad("state" if state is not None else "interjections", "...", rule)
        if isinstance(state, PositionedBackend):
            state.check_source(self._source)
            if self._settings.parked is not None:
                rule = "cannot be stored with the positions while keys are parked (parked=...)"
                raise checks.bad("state", state, rule)
        check_forward_to(forward_to)
        options = EventOptions(
            jobs=jobs, state=state, interjections=interjections, forward_to=forward_to
        )
        self._events = EventRun(self._begin(), call, self._settings.steps, options)
        return await self._events.run()

    async def interject(
        self, function: Callable[[EventContext], object], partition: TopicPartition | None = None
    ) -> None:
        """Run a function once in the order of a partition, or of each; suspend until it is complete.

        Only beside `run_events`. Raises `ConfigError` without it, `NotAssigned` for a partition that is not
        this process's, or is given up meanwhile, and what the function raises. A cancelled call leaves the
        interjection where it is.
        """
        if self._events is None:
            raise ConfigError("interject() needs a consumer that runs events; see run_events")
        await self._events.interjecting.now(partition, function)

    async def receive(self, handler: MessageHandler) -> DrainReport:
        """Open, `run` and close."""
        as_handler(handler)  # refused before the source is opened
        async with self:
            return await self.run(handler)

    @takes(BatchOptions, checked_limits)
    async def run_batch(
        self, handler: BatchHandler, **options: Unpack[BatchOptions]
    ) -> DrainReport:
        """As `run`, with batches of messages; `concurrency` batches run at once.

        `handler` takes a list of messages, of any keys and partitions, those of one key in order,
        and returns one result for each by position, or `None`: all are handled. Of each key, only
        the acknowledgements before its first other result count; the messages behind that one are
        handled again, after it, also if they were acknowledged. An exception fails the batch: its
        messages are tried again in ever smaller batches, until the message that causes it is alone
        and uses up its attempts.

        Args:
            handler: a function of a list of messages, async, or plain to run in a thread.
            size: the most messages of a batch.
            max_wait: seconds that a batch which is not full waits for more messages, from its first
                one on; 0 does not wait, `None` has no limit.
            max_bytes: the most bytes of a batch; one larger message is a batch by itself.
            max_per_key: the most messages of a key in a batch.
            on_mismatch: what becomes of messages without a result in a list that is too short, or
                of all if no list is returned: `terminate` them as poison, or `retry`.

        With `ordering="partition"`, a batch holds messages of one partition. At the end, the batch
        that is being formed is handled, too. Raises `ConfigError` for a bad argument.
        """
        call = as_batch_handler(handler)
        limits = checked_limits(self._settings, **options)
        engine = self._begin()
        return await engine.run(engine.batches(call, limits))

    @takes(BatchOptions, checked_limits)
    async def receive_batch(
        self, handler: BatchHandler, **options: Unpack[BatchOptions]
    ) -> DrainReport:
        """Open, `run_batch` and close."""
        as_batch_handler(handler)  # refused before the source is opened
        checked_limits(self._settings, **options)
        async with self:
            return await self.run_batch(handler, **options)

    def stats(self) -> ConsumerStats:
        """A snapshot of counts and levels. May be called in any thread."""
        return self._open().views.stats()

    def _begin(self) -> Engine:
        engine = self._open()
        if self._has_run:
            raise ConfigError(f"{self._settings.name} has run already; make a new consumer")
        self._has_run = True
        return engine
