"""Messages of librdkafka as records, divided by partition.

Created by the hundred, without a line of Python code for each. A record is a tuple of a message's
fields: keeping the message itself, an object that the garbage collector traverses, takes twice as
long. A header name that is not UTF-8 makes a single record undecodable.
"""

from __future__ import annotations

from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from confluent_kafka import Message

from ...._core.source import TopicPartition, UndecodableRecord
from .errors import is_end

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import KafkaError


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
    """Consecutive records of one partition, or an error of a partition."""

    partition: TopicPartition
    records: list[Delivered | UndecodableRecord]
    next_offset: int
    """Every offset of the partition before this one has been delivered or has no record."""
    error: KafkaError | None = None


_new = cast("Any", tuple).__new__
_topic, _partition, _offset = Message.topic, Message.partition, Message.offset
_key, _value, _error = Message.key, Message.value, Message.error
_stamp, _headers = Message.timestamp, Message.headers
_milliseconds = itemgetter(1)


def runs(messages: Sequence[Any]) -> Iterator[Run]:
    """Divide messages into runs, in order. The end of a partition is a run without records."""
    errors = [*map(_error, messages)]
    if not any(errors):  # None cannot be compared with an error of librdkafka
        yield from _plain(messages)
        return
    start = 0
    for at, error in enumerate(errors):
        if error is not None:
            yield from _plain(messages[start:at])
            yield _told(messages[at], error)
            start = at + 1
    yield from _plain(messages[start:])


def _plain(messages: Sequence[Any]) -> Iterator[Run]:
    count = len(messages)
    if not count:
        return
    topics, partitions = [*map(_topic, messages)], [*map(_partition, messages)]
    if partitions.count(partitions[0]) == count and topics.count(topics[0]) == count:
        yield _run(messages)
        return
    start = 0
    for at in range(1, count):
        if partitions[at] != partitions[start] or topics[at] != topics[start]:
            yield _run(messages[start:at])
            start = at
    yield _run(messages[start:])


def _run(messages: Sequence[Any]) -> Run:
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
    return Run(of, records, records[-1].offset + 1)


def _headers_of(messages: Sequence[Any]) -> tuple[list[Any], dict[int, Exception]]:
    """Return the headers of each message, and the errors of those that have none, by place.

    Each message is asked once: librdkafka's client converts its headers at the first call, and does
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


def _told(message: Any, error: KafkaError) -> Run:
    of, offset = (
        TopicPartition(message.topic() or "", _number(message.partition())),
        message.offset(),
    )
    if is_end(error):
        return Run(of, [], offset)
    return Run(of, [], 0, error)


def _number(partition: int | None) -> int:
    return -1 if partition is None else partition
