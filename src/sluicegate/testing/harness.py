"""The harness: a consumer on a memory source.

1. Messages are sent to a log of the harness. A run makes a new consumer, which handles all
   unsettled messages and stops, as after a restart.
2. Whether a message is settled is read from the stored positions and offset maps. So messages that
   the consumer has lost or not committed count as unsettled.
3. The clock is that of the running loop. On the loop of a `FakeClock`, backoffs and timeouts pass
   immediately. The default jitter has a fixed seed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from .._core import checks
from .._core.clock import LOOP_CLOCK
from .._core.retry_policy import Backoff, RetryPolicy
from .._core.source import TopicPartition
from ..consumer import MemoryLog, MemorySource
from ..consumer.consumer import Consumer
from ..consumer.handling.handlers import as_batch_handler, as_handler
from ..consumer.options import Poison
from ..consumer.progress import offset_map
from ..letters.items import record_of_item
from .scripted import FakeSink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import timedelta
    from typing import Unpack

    from .._core.clock import Clock
    from .._core.source import Record, SourceRecord
    from ..consumer.handling.handlers import BatchHandler, MessageHandler
    from ..consumer.jobs import EventContext, Interjector, ItemBatcher, JobScheduler
    from ..consumer.jobs.context import TakesForwarded
    from ..consumer.jobs.state import StateBackend
    from ..consumer.lanes.message import Message
    from ..consumer.operating.report import DrainReport
    from ..consumer.run import MessageCounts
    from ..consumer.settings import BatchOptions, ConsumerOptions
    from ..letters.letter import DeadLetterRecord


Where: TypeAlias = "tuple[str, int, int]"
"""Topic, partition and offset."""


class ConsumerHarness:
    """Runs a handler on messages of a test, and reports the result of each.

    Args:
        run_timeout: maximum duration of a run, in seconds of the consumer's clock; default 60.
        ids: iterator of ids for messages that are sent without one; default: 0, 1, 2 and so on.
        options: arguments of the `Consumer`, as in production. Dead letters are collected, unless
            `poison` is a `Poison(...)`, which is used as it is.

    Raises `ConfigError` for a bad argument; each run checks the arguments of the consumer.

    Examples:
        >>> import asyncio
        >>> from sluicegate.testing import ConsumerHarness
        >>> async def book(message):
        ...     if message.value < 0:
        ...         raise ValueError("a negative amount")
        >>> harness = ConsumerHarness()
        >>> for amount in (30, -1, 7):
        ...     _ = harness.send(amount, key="ann")
        >>> ran = asyncio.run(harness.run(book))
        >>> ran.settled
        {'ann': [0]}
        >>> ran.blocked
        [1]
    """

    def __init__(
        self,
        *,
        run_timeout: float | timedelta = 60.0,
        ids: Callable[[], object] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self.log = MemoryLog(partitions=[TopicPartition("messages", 0)])
        """The records and stored positions, for tests of restarts and holes."""
        self.source: MemorySource | None = None
        """The source of the current or the last run: to revoke, to redeliver, to crash."""
        self._timeout = checks.seconds("run_timeout", run_timeout, usual=checks.LONG_TIMEOUT)
        self._next_id = count().__next__ if ids is None else ids
        self._ids: dict[Where, object] = {}
        self._clock = options.get("clock") or LOOP_CLOCK
        self._options = options

    def send(
        self,
        value: object,
        *,
        key: object = None,
        id: object = None,  # noqa: A002  # the natural name in a test
        topic: str = "messages",
        partition: int = 0,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp: int | None = None,
    ) -> Record:
        """Send a message, before a run or during one; returns its record.

        `id` names it in the results of a run. `timestamp` is in milliseconds since the epoch;
        default: the clock's time.
        """
        if timestamp is None:
            timestamp = int(self._clock.wall_time() * 1000)
        end = self.log.end(TopicPartition(topic, partition))
        self._ids[topic, partition, end] = self._next_id() if id is None else id
        return self.log.produce(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        )

    def resend(self, letter: DeadLetterRecord[Any], *, id: object = None) -> Record:  # noqa: A002
        """Send the message of a dead letter again, as a new message: its attempts start at 1."""
        record = record_of_item(letter.item)
        return self.send(
            record.value,
            key=record.key,
            id=id,
            topic=record.topic,
            partition=record.partition,
            headers=record.headers,
            timestamp=record.timestamp,
        )

    async def run(self, handler: MessageHandler) -> HarnessRun:
        """Handle all unsettled messages; return when all are settled, or after the timeout.

        Returns earlier if only blocked messages and later ones of their keys are left. Raises what
        `Consumer.run` raises, and `TimeoutError` if a handler still runs after the timeout.
        Messages that are backing off then are `unsettled`.
        """
        call = as_handler(handler)
        return await self._run(call, lambda consumer, call: consumer.run(call))

    async def run_batch(self, handler: BatchHandler, **options: Unpack[BatchOptions]) -> HarnessRun:
        """Like `run`, with a batch handler and the other arguments of `Consumer.run_batch`."""
        call = as_batch_handler(handler)
        return await self._run(call, lambda consumer, call: consumer.run_batch(call, **options))

    async def run_events(
        self,
        handler: Callable[[EventContext], object],
        *,
        jobs: Sequence[JobScheduler[Any, Any] | ItemBatcher] = (),
        state: StateBackend | None = None,
        interjections: Sequence[Interjector] = (),
        forward_to: TakesForwarded | None = None,
    ) -> HarnessRun:
        """Like `run`, with the arguments of `Consumer.run_events`. Only calls of the handler are
        recorded, not those of its jobs and finalisers.
        """
        called = as_handler(handler)
        contexts: dict[Message, EventContext] = {}

        async def call(message: Message) -> object:
            return await called(contexts.pop(message))

        async def run(consumer: Consumer, call: Callable[[Any], Any]) -> DrainReport:
            async def handle(context: EventContext) -> object:
                contexts[context.message] = context
                return await call(context.message)

            return await consumer.run_events(
                handle,
                jobs=jobs,
                state=state,
                interjections=interjections,
                forward_to=forward_to,
            )

        return await self._run(call, run)

    async def _run(
        self,
        handler: Callable[[Any], Awaitable[object]],
        run: Callable[[Consumer, Callable[[Any], Any]], Awaitable[DrainReport]],
    ) -> HarnessRun:
        letters: FakeSink[Any] = FakeSink()
        calls = Calls(self._clock, lambda message: self._id_of(message.record))
        before = self._settled_places()
        self.source = MemorySource(self.log, ends=True, clock=self._clock)
        consumer = Consumer(self.source, **self._consumer_options(letters))
        stop = self._clock.call_at(self._clock.now() + self._timeout, consumer.stop)
        try:
            report = await run(consumer, calls.record(handler))
        finally:
            stop.cancel()
        if report.unfinished:
            which = ", ".join(map(str, report.unfinished[:5]))
            raise TimeoutError(f"handlers still ran after {self._timeout:g} s: {which}")
        return self._ran(before, calls, letters, report)

    def _consumer_options(self, letters: FakeSink[Any]) -> ConsumerOptions:
        options: ConsumerOptions = {**self._options}
        poison = options.get("poison")
        if not isinstance(poison, Poison):
            options["poison"] = Poison(poison, dead_letters=letters)
        if options.get("retry") is None:
            options["retry"] = RetryPolicy(backoff=Backoff(rng=Random(0)))
        return options

    def _ran(
        self, before: set[Where], calls: Calls, letters: FakeSink[Any], report: DrainReport
    ) -> HarnessRun:
        after = self._settled_places()
        ended = {name: at for at, name in enumerate(calls.ended)}
        settled: dict[object, list[object]] = defaultdict(list)
        unsettled: list[object] = []
        for where, record in self._records():
            if where not in after:
                unsettled.append(self._id_of(record))
            elif where not in before:
                settled[_hashable(record.key)].append(self._id_of(record))
        for ids in settled.values():
            ids.sort(key=lambda name: ended.get(name, -1))
        return HarnessRun(
            settled=dict(settled),
            unsettled=unsettled,
            blocked=[self._ids[*each.partition, each.offset] for each in report.blocked],
            calls=calls.all,
            dead_letters=letters.applied,
            positions={tp: position.offset for tp, position in self.log.positions.items()},
            report=report,
        )

    def _records(self) -> list[tuple[Where, Record]]:
        """Return the records of the log, in the order in which they were sent."""
        found = {
            _where(record): record for records in self.log.records.values() for record in records
        }
        for record in found.values():
            self._id_of(record)
        return [(where, found[where]) for where in self._ids if where in found]

    def _settled_places(self) -> set[Where]:
        """Return the settled records, by the log's stored positions and their maps."""
        settled: set[Where] = set()
        for partition, records in self.log.records.items():
            stored = self.log.start(partition)
            ranges = [(0, stored.offset), *offset_map.decode(stored.offset, stored.metadata)]
            for start, end in ranges:
                settled.update(_where(record) for record in records if start <= record.offset < end)
        return settled

    def _id_of(self, record: SourceRecord) -> object:
        """Return the id of a record; a new one if the test has put the record into the log itself."""
        where = _where(record)
        if where not in self._ids:
            self._ids[where] = self._next_id()
        return self._ids[where]


def _where(record: SourceRecord) -> Where:
    return record.topic, record.partition, record.offset


def _hashable(key: object) -> object:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessRun:
    """The results of a harness's messages in one run of its consumer."""

    settled: dict[object, list[object]]
    """Per key, the ids of the messages that were settled in this run, in the order of the ends of
    their last calls. A settled message is not delivered again.
    """
    unsettled: list[object]
    """The ids of the other messages, in the order in which they were sent; the next run handles
    them.
    """
    blocked: list[object]
    """The unsettled messages that could not be handled, and block their keys."""
    calls: list[HandlerCall]
    """The handler's calls, in the order of their starts."""
    dead_letters: list[DeadLetterRecord[Any]]
    """The dead letters that were written, in order; empty if the consumer has its own sink for
    them.
    """
    positions: dict[TopicPartition, int]
    """The stored positions."""
    report: DrainReport
    """The consumer's own report."""

    @property
    def counts(self) -> MessageCounts:
        """The number of messages that were acknowledged, failed, dead-lettered and so on."""
        return self.report.counts


@dataclass(slots=True)
class HandlerCall:
    """One call of a handler. Times are the clock's, in seconds."""

    ids: tuple[object, ...]
    """The id of its message, or the ids of the messages of its batch."""
    attempt: int
    """The attempt of its (first) message, from 1."""
    started: float
    ended: float | None = None
    """The end; `None` while it runs."""
    result: object = None
    error: BaseException | None = None
    """The exception that it raised, including a cancellation."""

    def returns(self, result: object) -> object:
        """Record a result, and return it."""
        self.result = result
        return result

    def ends(self, now: float, error: BaseException | None) -> None:
        """Record the end."""
        self.ended, self.error = now, error


class Calls:
    """The calls of one run, in the order of their starts."""

    def __init__(self, clock: Clock, id_of: Callable[[Message], object]) -> None:
        self.all: list[HandlerCall] = []
        self.ended: list[object] = []
        """The ids of ended calls, in the order of their ends, with repeats."""
        self._clock = clock
        self._id_of = id_of

    def record(self, handler: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Any]:
        """Wrap a handler of a message or of a list of messages; record every call."""

        async def call(given: Message | list[Message]) -> object:
            messages = given if isinstance(given, list) else [given]
            ids = tuple(map(self._id_of, messages))
            record = HandlerCall(ids, messages[0].attempt, self._clock.now())
            self.all.append(record)
            error: BaseException | None = None
            try:
                return record.returns(await handler(given))
            except BaseException as raised:
                error = raised
                raise
            finally:
                record.ends(self._clock.now(), error)
                self.ended += ids

        return call
