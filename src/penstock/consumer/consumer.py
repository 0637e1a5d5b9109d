"""The face of a consumer."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING

from .._core import checks
from .._core.errors import ClosedError, ConfigError
from .._core.keywords import takes
from .._core.order.keys import shown
from .batching.batch_options import BatchOptions, checked_limits
from .blocked import UNBLOCKING
from .dead_letters import LetterWriter
from .engine import Engine
from .handlers import as_batch_handler, as_handler
from .health import NOT_OPEN
from .observing import observed
from .settings import ConsumerOptions, checked_settings
from .single_messages import SingleMessages
from .stepping import with_steps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self, Unpack

    from .._core.source import Source, TopicPartition
    from .blocked import Unblocking
    from .explain import Explanation
    from .handlers import BatchHandler, MessageHandler
    from .health import Health
    from .lag import Lag
    from .report import BlockedMessage, DrainReport
    from .stats import ConsumerStats
    from .unparking import Unparked


class Consumer:
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
            `block_and_dead_letter` or `park_key`. Default: `park_key` with a store, else
            `block_and_dead_letter` with dead letters, else `block`.
        dead_letters: the sink, or stack of sinks, of dead letters.
        parked: the store of parked messages.
        max_dead_letter_ratio: stop if more than this part of a partition's recent messages became
            dead letters.
        max_consecutive_dead_letters: stop after this number of them in a row in a partition.
        timeout: the most seconds of a handler, with its steps; then it is cancelled, a failed try.
            Handlers are looked at ten times per timeout, but at most every 5 ms and at least every
            0.5 s; one is cancelled up to that much later, and never earlier.
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
        self._settings = checked_settings(source, **options)
        self._source = source
        self._engine: Engine | None = None
        self._stack = AsyncExitStack()
        self._has_run = False

    async def __aenter__(self) -> Self:
        if self._engine is not None:
            raise ConfigError("this consumer has been opened before; make a new one")
        async with AsyncExitStack() as stack:
            letters = self._letters()
            if letters is not None:
                await stack.enter_async_context(letters.open())
            if isinstance(self._settings.parked, AbstractAsyncContextManager):
                await stack.enter_async_context(self._settings.parked)
            engine = Engine(self._source, self._settings, letters)
            stack.callback(engine.closed)
            engine.opening()
            await stack.enter_async_context(self._source.open(engine.claims))
            self._engine = engine
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
        """Handle messages until `stop`, a cancellation or the end of the source; then drain.

        `handler` takes a `Message` and returns `None` when it has handled it, or another result.
        An exception is a failed try. A plain function runs in a thread, which cannot be stopped:
        its key waits until it returns, also when it is cut. Returns the report of the drain. Raises
        an error of the source or of the consumer itself, and a handler's `SystemExit` or
        `KeyboardInterrupt`, after the drain. A cancellation drains, too, and is raised then; a
        second one ends the drain at once. Raises `ConfigError` for what is no handler, before
        anything starts.
        """
        call = with_steps(handler, *self._settings.steps)
        engine = self._begin()
        call = observed(call, engine.commons)
        work = SingleMessages(engine.schedule, engine.settler, engine.workers, engine.commons, call)
        return await engine.run(work)

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

    def stop(self) -> None:
        """Begin the drain: `run` returns its report. No effect a second time."""
        self._open().ending.begin()

    async def commit(self) -> None:
        """Store the positions now. Raises the source's error."""
        await self._open().committer.commit()

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetch nothing of these partitions, or of any; what is inside is still handled.

        A pause of a partition holds over rebalances, until `resume`.
        """
        self._open().claims.pause(partitions or None)

    def resume(self, *partitions: TopicPartition) -> None:
        """Fetch again from these partitions, or from all."""
        self._open().claims.resume(partitions or None)

    @property
    def name(self) -> str:
        """Its name in logs, metrics and dead letters."""
        return self._settings.name

    @property
    def blocked(self) -> tuple[BlockedMessage, ...]:
        """The messages that could not be handled and keep their keys, the longest blocked first."""
        return self._open().failures.blocked.messages()

    def unblock(
        self,
        key: object,
        *,
        partition: TopicPartition | None = None,
        action: Unblocking = "retry",
    ) -> int:
        """Continue with the blocked messages of a key, and with what waits behind them.

        Args:
            key: the order key, as `blocked` shows it; `None` for records without one, and for a
                consumer with `ordering="partition"`.
            partition: only of this partition; default: of any.
            action: `retry`: handle them again, their attempts from 1. `skip`: give them up, with a
                dead letter if there are dead letters and they have none yet; otherwise they are
                counted as `terminated` and logged.

        Returns how many there are. Does not suspend: a dead letter is written in the background,
        and the key waits for it. Raises `NoSuchKey`, which names what is blocked, if nothing of the
        key is, and `ConfigError` for another action.
        """
        checks.choice("action", action, UNBLOCKING)
        return self._open().failures.blocked.unblock(key, partition, action)

    # -- for operators -----------------------------------------------------------------------------

    def stats(self) -> ConsumerStats:
        """A snapshot of counts and levels. May be called in any thread."""
        return self._open().views.stats()

    def explain(self) -> Explanation:
        """Why each partition is where it is, and what would move it; `str()` is for operators.

        Costs a few passes over the messages inside. Call it in the loop's thread.
        """
        return self._open().views.explain()

    async def lag(self) -> Mapping[TopicPartition, Lag]:
        """How far each partition is behind its end, in messages (by offsets) and in seconds.

        Suspends until the source has told its ends. Raises the source's error.
        """
        return await self._open().views.lag()

    def health(self) -> Health:
        """Readiness and liveness with their reasons. May be called in any thread, at any time."""
        return NOT_OPEN if self._engine is None else self._engine.views.health()

    @property
    def ready(self) -> bool:
        """Whether records are fetched and handled: false before the source's first assignment,
        while the source has trouble, and from the beginning of the drain on.
        """
        return self.health().is_ready

    @property
    def alive(self) -> bool:
        """Whether the consumer goes on: false after a failure or its end, and while the event loop
        is blocked.
        """
        return self.health().is_alive

    @property
    def stalled(self) -> bool:
        """Whether nothing has been settled for `stall_after` seconds although there is work."""
        return self.health().stalled is not None

    async def wait_ready(self) -> None:
        """Suspend until `ready`. Raises `ClosedError` if the consumer ends before."""
        await self._open().views.wait_ready()

    async def unpark(self, key: object, *, partition: TopicPartition | None = None) -> Unparked:
        """Handle the parked records of a key, in order, and then continue with the key.

        Args:
            key: the order key; as for `unblock`.
            partition: only of this partition's scope; default: of any.

        Records are handled as any message, their attempts from 1, and removed from the park store
        one by one. One that fails for good stays parked, with those behind it. New records of the
        key wait meanwhile.

        Suspends until that is done, or until the partition is lost or the consumer stops: then the
        rest stays parked. A cancelled call ends the replay after the message that is being handled.
        Do not await it in a handler, whose worker it may need.
        Raises `NoSuchKey`, which names what is parked, if the key is not parked here, and the
        store's error if it cannot be read.
        """
        engine = self._open()
        if engine.failures.replays is None:
            raise ConfigError(f"{self._settings.name} has no parked=, so no key is parked")
        await engine.claims.wait_read()
        return await engine.failures.replays.unpark(key, partition)

    @property
    def parked(self) -> tuple[object, ...]:
        """The parked keys of the partitions that this consumer owns, as `unpark` takes them."""
        return tuple([shown(each.key) for each in self._open().schedule.parked])

    def _open(self) -> Engine:
        if self._engine is None:
            raise ClosedError(f"{self._settings.name} is not open; use `async with`")
        return self._engine

    def _begin(self) -> Engine:
        engine = self._open()
        if self._has_run:
            raise ConfigError(f"{self._settings.name} has run already; make a new consumer")
        self._has_run = True
        return engine

    def _letters(self) -> LetterWriter | None:
        target, name, clock = self._settings.dead_letters, self._settings.name, self._settings.clock
        return None if target is None else LetterWriter(target, name, clock)

    def __repr__(self) -> str:
        return f"Consumer({self._source!r}, name={self._settings.name!r})"
