"""A message of a stream as a record, and the parsed acknowledgement subject of its delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..._core.source import UndecodableRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

OLD_FORM = 9
"""Number of tokens in an acknowledgement subject without a domain and an account."""


UNSURE = 1 << 62
"""Placeholder for the number of a delivery that the server may have forgotten."""


class AckSubject(NamedTuple):
    """One delivery of a message, from its acknowledgement subject:
    `$JS.ACK[.domain.account].stream.consumer.deliveries.stream_seq.consumer_seq.nanos.pending`.
    """

    deliveries: int
    """Number of deliveries of the message, including this one."""
    sequence: int
    """The sequence number of the message in the stream."""
    consumer_sequence: int
    """The number of this delivery among all deliveries of the consumer."""
    timestamp: int
    """The time at which the message was stored, in nanoseconds since the epoch."""

    @classmethod
    def of(cls, reply: str) -> AckSubject:
        """Parse an acknowledgement subject. Raises `ValueError` for any other subject."""
        tokens = reply.split(".")
        at = 4 if len(tokens) == OLD_FORM else 6
        numbers = tokens[at : at + 4]
        if reply[:8] != "$JS.ACK." or len(numbers) < 4:
            raise ValueError(f"{reply!r} is not an acknowledgement subject")
        return cls(*map(int, numbers))


class NoKey(NamedTuple):
    """The error of the key function, for a message without a key."""

    error: Exception


class StreamRecord:
    """A message of a stream. Its offset is its sequence number."""

    __slots__ = (
        "deliveries",
        "error",
        "headers",
        "number",
        "offset",
        "partition",
        "raw_key",
        "reply",
        "subject",
        "timestamp",
        "topic",
        "value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        delivery: AckSubject,
        *,
        subject: str,
        key: object,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
        reply: str,
        error: Exception | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = delivery.sequence
        self.subject = subject
        self.raw_key = key
        self.value = value
        self.headers = headers
        self.timestamp = delivery.timestamp // 1_000_000
        """Milliseconds since the epoch."""
        self.deliveries = delivery.deliveries
        self.number = delivery.consumer_sequence
        """The number of the last delivery."""
        self.reply = reply
        """The subject that settles this delivery; each delivery has its own."""

        self.error = error
        """Why the message cannot be decoded."""

    def delivered(self) -> StreamRecord | UndecodableRecord:
        """Return the record for the consumer."""
        if self.error is None:
            return self
        has_key = type(self.raw_key) is not NoKey
        return UndecodableRecord(
            self.topic,
            self.partition,
            self.offset,
            self.raw_key if has_key else None,
            self.value,
            self.headers,
            self.timestamp,
            error=self.error,
            has_key=has_key,
        )

    @property
    def key(self) -> object:
        """The key. Raises the error of the key function."""
        if type(self.raw_key) is NoKey:
            raise self.raw_key.error
        return self.raw_key

    def forget_number(self) -> None:
        """Record that the server may have forgotten this delivery."""
        self.number = UNSURE

    def came_again(self, reply: str, delivery: AckSubject) -> None:
        """Record a redelivery while the message is held."""
        self.reply = reply
        self.deliveries, self.number = delivery.deliveries, delivery.consumer_sequence

    def __repr__(self) -> str:
        return f"StreamRecord({self.topic}/{self.partition}@{self.offset}, {self.subject!r})"
