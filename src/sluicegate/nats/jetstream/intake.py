"""The received messages of one partition: their delivery order, and their settlement. Pure.

1. A message that was received and not settled is *held*. Each held message has one record, which a
   redelivery of the message only updates.
2. Deliveries of a consumer are numbered without gaps. While none is missing, a message may be
   delivered immediately. A gap means that the server has delivered a message that is not here: it
   was lost with a connection, or another process holds it. It will be redelivered later, after
   newer messages.
3. After a gap, all messages therefore *wait* until the server has no more messages pending than are
   held here, among those delivered before the server's response. The waiting messages are then
   delivered by sequence number, which preserves the order per key. Messages that arrive while the
   response is on its way are not counted.
4. A settled message is redelivered if its acknowledgement was lost. It is acknowledged again, and
   not delivered.
5. A message below the last delivered one that is neither held nor known as settled is *out of
   place*: the claim has to end, and the next one begins before it. The message may be handled
   twice, but is not lost.
6. Of the messages that the server has delivered before, only the first one of each key may have
   been attempted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..._core.source import UndecodableRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Arrival = Literal["new", "held", "settled", "out of place"]
"""The state of the message of a delivery."""
REMEMBERED = 5_000
"""Number of settled messages that are recognized when they are redelivered."""
OLD_FORM = 9
"""Number of tokens in an acknowledgement subject without a domain and an account."""
UNSURE = 1 << 62
"""Placeholder for the number of a delivery that the server may have forgotten."""


class StreamIntake:
    """The messages of one partition held by this process. Until `begin`, all of them wait."""

    def __init__(self) -> None:
        self.held: dict[int, StreamRecord] = {}
        """The records of unsettled messages, by sequence number."""
        self.is_waiting = True
        """Whether deliveries wait for messages that are pending elsewhere."""
        self.is_out_of_place = False
        """Whether a message has arrived that this claim can no longer deliver."""
        self._ready: deque[StreamRecord] = deque()
        self._waiting: dict[int, StreamRecord] = {}
        self._settled: dict[int, str] = {}
        """The last settled messages, with the subjects that settled them."""
        self._tried: dict[int, int] = {}
        """Failed attempts of messages that were delivered before, by sequence number."""
        self._last = 0
        """The number of the last delivery."""
        self._through = 0
        """The highest sequence number that was made ready."""
        self._given_up_at = 0
        """The sequence number of the first message that was given up, or of the next one."""

    def begin(self, delivered: int) -> None:
        """Begin after the delivery with this number; messages wait for the first check."""
        self._last = max(self._last, delivered)

    def resume(self, delivered: int) -> None:
        """Continue after the delivery with this number on a new connection.

        All messages wait for the next check, since the server may have forgotten deliveries.
        Waiting messages of forgotten deliveries are dropped, and will be redelivered.
        """
        self._last = delivered
        self.is_waiting = True
        for record in self.held.values():
            if record.number > delivered:
                record.forget_number()
        self._drop_unsure()

    def _drop_unsure(self) -> None:
        for sequence, record in [*self._waiting.items()]:
            if record.number == UNSURE:
                del self._waiting[sequence], self.held[sequence]

    def renumber(self) -> None:
        """Adapt to a new consumer, which numbers its deliveries from 1."""
        self.resume(0)

    @property
    def floor(self) -> int:
        """The sequence number before which all messages are settled; 0 if there were none."""
        return min(self.held, default=self.end or self._given_up_at)

    @property
    def received(self) -> int:
        """The number of messages that were received and not taken."""
        return len(self._ready) + len(self._waiting)

    @property
    def received_bytes(self) -> int:
        """The bytes of the values of these messages."""
        return sum([len(record.value) for record in (*self._ready, *self._waiting.values())])

    @property
    def end(self) -> int:
        """The sequence number after the last message that was made ready; 0 if there is none."""
        return self._through + 1 if self._through else 0

    def kind(self, delivery: AckSubject) -> Arrival:
        """Count a delivery; return the state of its message. After a gap, messages wait."""
        if delivery.consumer_sequence > self._last + 1:
            self.is_waiting = True
        self._last = max(self._last, delivery.consumer_sequence)
        sequence = delivery.sequence
        if sequence in self.held:
            return "held"
        if sequence in self._settled:
            return "settled"
        if sequence > self._through:
            return "new"
        self.is_out_of_place = True
        return "out of place"

    def receive(self, record: StreamRecord) -> None:
        """Add a message that is not held. A message that is out of place waits for the next claim."""
        sequence = record.offset
        self.held[sequence] = record
        if self.is_waiting or sequence <= self._through:
            self._waiting[sequence] = record
        else:
            self._ready.append(record)
            self._through = sequence

    def redeliver(self, delivery: AckSubject, reply: str) -> None:
        """Record a redelivery of a held message."""
        self.held[delivery.sequence].redeliver(reply, delivery)

    def away(self, pending: int, delivered: int) -> int:
        """Return the number of messages that are pending elsewhere.

        Args:
            pending: the number of pending messages reported by the server. The request must have
                been sent after all acknowledgements.
            delivered: the number of the consumer's last delivery at that time.
        """
        here = sum([record.number <= delivered for record in self.held.values()])
        return max(0, pending - here)

    def look(self, pending: int, delivered: int) -> bool:
        """Compare with the server's numbers, like `away`; return whether all messages are ready."""
        if self.is_out_of_place or self.away(pending, delivered):
            return False
        if self.is_waiting:
            self.is_waiting = False
            self._note_tries()
            ordered = sorted(self._waiting)
            self._ready.extend([self._waiting[sequence] for sequence in ordered])
            if ordered:
                self._through = ordered[-1]
            self._waiting.clear()
        return True

    def _note_tries(self) -> None:
        """Record the attempts of waiting messages, for the first message of each key."""
        keys: set[str] = set()
        for sequence in sorted(self.held):
            record = self.held[sequence]
            if (key := repr(record.raw_key)) in keys:
                continue
            keys.add(key)
            if record.deliveries > 1 and sequence in self._waiting:
                self._tried[sequence] = record.deliveries - 1

    def take(self, most: int) -> tuple[list[StreamRecord], int]:
        """Return up to `most` records in order, and the failed attempts of the first one; the
        others have none.
        """
        ready, tried = self._ready, self._tried
        count = min(most, len(ready))
        if not tried:
            return [ready.popleft() for _ in range(count)], 0
        taken: list[StreamRecord] = []
        while len(taken) < count and not (taken and ready[0].offset in tried):
            taken.append(ready.popleft())
        return taken, tried.pop(taken[0].offset, 0) if taken else 0

    def settle(self, offsets: Iterable[int]) -> list[tuple[int, str]]:
        """Settle held messages; return each with the subject that settles it."""
        held, settled = self.held, self._settled
        done: list[tuple[int, str]] = []
        for offset in offsets:
            record = held.pop(offset, None)
            if record is not None:
                settled[offset] = record.reply
                done.append((offset, record.reply))
        if len(settled) > 2 * REMEMBERED:
            for offset in list(settled)[:-REMEMBERED]:
                del settled[offset]
        return done

    def last_settled(self, most: int) -> list[str]:
        """Return the subjects of the last settled messages, oldest first."""
        return list(self._settled.values())[-most:]

    def restart(self) -> None:
        """Deliver all held messages again, in order, to a new claim."""
        self._ready.clear()
        self._tried.clear()
        self._waiting = dict(self.held)
        self._drop_unsure()
        self._through = 0
        self.is_waiting, self.is_out_of_place = True, False

    def let_go(self) -> list[StreamRecord]:
        """Forget the waiting messages; return them in the order of the stream.

        Another process that receives deliveries now needs them. Otherwise each process would wait
        for the messages of the other.
        """
        left = [self._waiting[sequence] for sequence in sorted(self._waiting)]
        for sequence in self._waiting:
            del self.held[sequence]
        self._waiting.clear()
        return left

    def give_up(self) -> list[StreamRecord]:
        """Forget all held messages; return them in the order of the stream."""
        left = [self.held[sequence] for sequence in sorted(self.held)]
        self._given_up_at = self.floor
        self.held.clear()
        self.restart()
        return left


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

    def redeliver(self, reply: str, delivery: AckSubject) -> None:
        """Record a redelivery while the message is held."""
        self.reply = reply
        self.deliveries, self.number = delivery.deliveries, delivery.consumer_sequence

    def __repr__(self) -> str:
        return f"StreamRecord({self.topic}/{self.partition}@{self.offset}, {self.subject!r})"
