"""A client that reads partitions from given offsets and is not a group member, and its messages as
records.

1. librdkafka stops fetching all partitions while a member gives up one of them. So the member reads
   nothing, and this client reads the member's partitions: the remaining ones are read without
   interruption.
2. `take` never blocks, so it is called from the loop. Calls that may block run in one thread, one
   at a time, and `take` is not called meanwhile.
3. A call in the thread may outlast the fetch that started it. Its messages are kept for the next
   fetch.
4. Records are created by the hundred, without a line of Python code for each. A record is a tuple
   of a message's fields: keeping the message itself, an object that the garbage collector
   traverses, takes twice as long. A header name that is not UTF-8 makes a single record
   undecodable.
"""

from __future__ import annotations

import asyncio
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from ..._core.source import TopicPartition, UndecodableRecord
from .errors import LOGGER, is_end

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from confluent_kafka import KafkaError

    from .options import ConfluentOptions


class PartitionReader:
    """Reads partitions, each from its own offset."""

    def __init__(
        self, options: ConfluentOptions, threads: Executor, failed: Callable[[KafkaError], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._threads = threads
        self._client = Consumer({**options.of_reader(), "error_cb": self._tell, "logger": LOGGER})
        self._call: asyncio.Future[list[Any]] | None = None
        self._kept: list[Any] = []
        self._within = options.commit_timeout
        self._known: set[str] = set()
        """Topics whose leaders were requested here; librdkafka would request them up to 1 s later.
        """

    def _tell(self, error: KafkaError) -> None:
        """Report an error; called on the thread that reads."""
        self._loop.call_soon_threadsafe(self._failed, error)

    async def idle(self) -> None:
        """Suspend until no call is in the thread. Raises librdkafka's error of a read."""
        while (call := self._call) is not None:
            await asyncio.wait([call])
            if self._call is call:
                self._call = None
                self._kept += call.result()

    def take_kept(self) -> list[Any]:
        """Return the messages read by calls in the thread, each once."""
        kept, self._kept = self._kept, []
        return kept

    def take(self, most: int) -> list[Any]:
        """Return up to `most` available messages. Raises librdkafka errors.

        Never suspends; call it only after `idle`.
        """
        return self._client.consume(most, 0.0)

    async def wait(self, seconds: float) -> None:
        """Suspend until messages are available, for at most `seconds`."""
        await self._in_thread(lambda: self._client.consume(1, seconds))

    async def place(
        self, removed: Collection[TopicPartition], placed: Mapping[TopicPartition, int]
    ) -> None:
        """Stop reading the removed partitions; read the others from these offsets.

        Suspends until the change is complete: later messages all follow it.
        """

        def change() -> list[Any]:
            if removed:
                self._client.incremental_unassign([ClientPartition(*each) for each in removed])
            for topic in {each.topic for each in placed} - self._known:
                self._client.list_topics(topic, self._within)
                self._known.add(topic)
            if placed:
                wanted = [ClientPartition(*each, offset) for each, offset in placed.items()]
                self._client.incremental_assign(wanted)
            return []

        await self._in_thread(change)

    async def clear(self) -> None:
        """Stop reading all partitions."""

        def change() -> list[Any]:
            self._client.unassign()
            return []

        await self._in_thread(change)

    async def _in_thread(self, work: Callable[[], list[Any]]) -> None:
        await self.idle()
        self._call = self._loop.run_in_executor(self._threads, work)
        await self.idle()

    async def close(self) -> None:
        """Close the client. Suspends until it is closed."""
        try:
            await self.idle()
        except KafkaException:
            pass  # an error of a read; if it persists, the next session reports it
        await self._loop.run_in_executor(self._threads, self._client.close)


class Delivered(NamedTuple):
    """A record as delivered by librdkafka."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    """Milliseconds since the epoch."""
    given_headers: list[tuple[str, bytes]] | None
    of: TopicPartition

    @property
    def topic(self) -> str:
        """The topic."""
        return self.of.topic

    @property
    def partition(self) -> int:
        """The partition of the topic."""
        return self.of.partition

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The headers, in order."""
        return self.given_headers or ()

    def __repr__(self) -> str:
        return f"Delivered({self.of}@{self.offset})"


class Run(NamedTuple):
    """Consecutive records of one partition from one epoch of its leaders, or an error of a partition."""

    partition: TopicPartition
    records: list[Delivered | UndecodableRecord]
    next_offset: int
    """Every offset of the partition before this one has been delivered or has no record."""
    error: KafkaError | None = None
    epoch: int | None = None
    """The epoch of the leader that stored the records, if known."""


_new = cast("Any", tuple).__new__
_topic, _partition, _offset = Message.topic, Message.partition, Message.offset
_key, _value, _error = Message.key, Message.value, Message.error
_stamp, _headers, _epoch = Message.timestamp, Message.headers, Message.leader_epoch
_milliseconds = itemgetter(1)


def runs(messages: Sequence[Any]) -> Iterator[Run]:
    """Divide messages into runs, in order. The end of a partition is a run without records."""
    errors = [*map(_error, messages)]
    if not any(errors):  # None cannot be compared with a librdkafka error
        yield from _plain(messages)
        return
    start = 0
    for at, error in enumerate(errors):
        if error is not None:
            yield from _plain(messages[start:at])
            yield _end_or_error(messages[at], error)
            start = at + 1
    yield from _plain(messages[start:])


def _plain(messages: Sequence[Any]) -> Iterator[Run]:
    count = len(messages)
    if not count:
        return
    topics, partitions = [*map(_topic, messages)], [*map(_partition, messages)]
    if partitions.count(partitions[0]) == count and topics.count(topics[0]) == count:
        yield from _by_epoch(messages)
        return
    start = 0
    for at in range(1, count):
        if partitions[at] != partitions[start] or topics[at] != topics[start]:
            yield from _by_epoch(messages[start:at])
            start = at
    yield from _by_epoch(messages[start:])


def _by_epoch(messages: Sequence[Any]) -> Iterator[Run]:
    """Divide messages of one partition by their epochs, which never decrease."""
    epoch = _epoch(messages[0])
    if _epoch(messages[-1]) == epoch:
        yield _run(messages, epoch)
        return
    end = next(at for at, each in enumerate(messages) if _epoch(each) != epoch)
    yield _run(messages[:end], epoch)
    yield from _by_epoch(messages[end:])


def _run(messages: Sequence[Any], epoch: int | None) -> Run:
    of = TopicPartition(messages[0].topic(), messages[0].partition())
    headers, errors = _headers_of(messages)
    fields = zip(
        map(_offset, messages),
        map(_key, messages),
        map(_value, messages),
        map(_milliseconds, map(_stamp, messages)),
        headers,
        repeat(of),
        strict=False,
    )
    records: list[Delivered | UndecodableRecord] = [*map(_new, repeat(Delivered), fields)]
    for place, error in errors.items():
        read = records[place]
        records[place] = UndecodableRecord(
            *of, read.offset, read.key, read.value, timestamp=read.timestamp, error=error
        )
    return Run(of, records, records[-1].offset + 1, epoch=epoch)


def _headers_of(messages: Sequence[Any]) -> tuple[list[Any], dict[int, Exception]]:
    """Return the headers of each message, and the errors of those that have none, by place.

    Each message is read once: librdkafka's client converts its headers at the first call, and does
    not repeat the error of that call.
    """
    headers: list[Any] = []
    errors: dict[int, Exception] = {}
    asking = map(_headers, messages)
    while len(headers) < len(messages):
        try:
            headers.extend(asking)  # up to the next error
        except Exception as error:
            cause = error.__cause__
            errors[len(headers)] = cause if isinstance(cause, Exception) else error
            headers.append(None)
    return headers, errors


def _end_or_error(message: Any, error: KafkaError) -> Run:
    of, offset = (
        TopicPartition(message.topic() or "", _number(message.partition())),
        message.offset(),
    )
    if is_end(error):
        return Run(of, [], offset)
    return Run(of, [], 0, error)


def _number(partition: int | None) -> int:
    return -1 if partition is None else partition
