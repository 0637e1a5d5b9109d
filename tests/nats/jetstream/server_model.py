"""A JetStream consumer as its server manages it: a pull consumer with explicit acknowledgements and
a pin.

1. Each delivery has the next number of the consumer. Redeliveries come before new messages: negatively
   acknowledged ones in the order of their naks, expired ones in stream order.
2. An acknowledgement counts for any delivery of its message: there is no fencing.
3. Only the pinned process receives messages. If none is pinned, the first request without an
   identity pins its process. A request with another identity is refused once there is a message to
   deliver.
4. A restart forgets the pin, the requests and the redelivery queue, and may forget the last writes:
   acknowledgements, or all changes of the consumer.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

TICK = 5.0
"""Duration of a tick, in seconds."""
NANOS = 5_000_000_000
"""Duration of a tick, in nanoseconds."""
WAIT = 6
"""The acknowledgement wait, in ticks."""
PINNED_FOR = 3
"""Ticks without a request after which a process is no longer pinned."""
EXPIRES = 6
"""Ticks after which a request expires."""


class Arrival(NamedTuple):
    """A message or a status on its way to a member."""

    reply: str
    """The subject on which the message is settled; empty for a status."""
    key: str = ""
    pin: str | None = None
    status: str = ""
    left: int = 0
    """The part of its request that a status leaves open."""


@dataclass
class Request:
    """A member's request for messages."""

    member: str
    left: int
    pin: str | None
    until: int = 0


def sequence_of(reply: str) -> int:
    """The message that a reply subject belongs to."""
    return int(reply.split(".")[5])


class ServerModel:
    """One stream and its consumer."""

    def __init__(self, max_pending: int) -> None:
        self.max_pending = max_pending
        self.now = 0
        self.keys: list[str] = []
        """The key of each message; the first message has the sequence number 1."""
        self.unread = 1
        self.pending: dict[int, int] = {}
        """Deadlines, by sequence number."""
        self.queue: deque[int] = deque()
        self.tries: Counter[int] = Counter()
        self.delivered = 0
        self.settled: set[int] = set()
        self.pinned: str | None = None
        self.wires: dict[str, deque[Arrival]] = {}
        """Messages in flight to each connected member."""
        self.requests: list[Request] = []
        self._pins = 0
        self._seen = 0
        self._starts = 0
        """The number of restarts. Each delivery has a new subject, even if its number is reused."""
        self._written: list[tuple[str, int]] = []

    def publish(self, key: str) -> None:
        """Store a message."""
        self.keys.append(key)

    def info(self) -> dict[str, Any]:
        """The server's report about the consumer."""
        group: dict[str, Any] = {"group": "sluicegate"}
        if self.pinned is not None:
            group["pinned_client_id"] = self.pinned
        return {
            "name": "c",
            "created": "2026-01-01T00:00:00Z",
            "config": {
                "ack_wait": WAIT * NANOS,
                "max_ack_pending": self.max_pending,
                "priority_groups": ["sluicegate"],
                "priority_policy": "pinned_client",
                "priority_timeout": PINNED_FOR * NANOS,
            },
            "delivered": {"consumer_seq": self.delivered, "stream_seq": self.unread - 1},
            "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "num_ack_pending": len(self.pending),
            "num_pending": len(self.keys) + 1 - self.unread,
            "num_waiting": len(self.requests),
            "priority_groups": [group],
        }

    # -- requests and deliveries -------------------------------------------------------------------

    def ask(self, request: Request) -> None:
        """Accept a request, which also counts as activity of the pinned process."""
        self.sign(request.pin)
        request.until = self.now + EXPIRES
        self.requests.append(request)

    def sign(self, pin: str | None) -> None:
        """Record activity of a process."""
        if pin is not None and pin == self.pinned:
            self._seen = self.now

    def _end(self, request: Request, status: str) -> None:
        self.requests = [each for each in self.requests if each is not request]
        self._tell(request, status)

    def _tell(self, request: Request, status: str) -> None:
        if (wire := self.wires.get(request.member)) is not None:
            wire.append(Arrival("", status=status, left=request.left))

    def unpin(self) -> None:
        """Allow another process to be pinned."""
        self.pinned = None

    def deliver(self, most: int) -> int:
        """Deliver up to this many messages; return their number."""
        for count in range(most):
            is_full = len(self.pending) >= self.max_pending
            if not self.queue and (is_full or self.unread > len(self.keys)):
                return count
            if (request := self._next_request()) is None:
                return count
            self._deliver(request)
        return most

    def _next_request(self) -> Request | None:
        for request in self.requests:
            if self.pinned is None and request.pin is None:
                self._pins += 1
                self.pinned = request.pin = f"{request.member}-{self._pins}"
                self._seen = self.now
            if request.pin == self.pinned:
                return request
            if request.pin is not None:
                self._end(request, "423")
        return None

    def _deliver(self, request: Request) -> None:
        if self.queue:
            sequence = self.queue.popleft()
        else:
            sequence, self.unread = self.unread, self.unread + 1
        self.delivered += 1
        self.tries[sequence] += 1
        self.pending[sequence] = self.now + WAIT
        self._written.append(("delivered", sequence))
        request.left -= 1
        if not request.left:
            self.requests = [each for each in self.requests if each is not request]
        reply = f"$JS.ACK.s.c.{self.tries[sequence]}.{sequence}.{self.delivered}.{self._starts}.0"
        if (wire := self.wires.get(request.member)) is not None:
            wire.append(Arrival(reply, self.keys[sequence - 1], self.pinned))

    # -- calls of members --------------------------------------------------------------------------

    def ack(self, reply: str) -> bool:
        """Settle a message; return whether it was pending."""
        sequence = sequence_of(reply)
        if self.pending.pop(sequence, None) is None:
            return False
        if sequence in self.queue:
            self.queue.remove(sequence)
        self.settled.add(sequence)
        self._written.append(("settled", sequence))
        return True

    def nak(self, reply: str) -> None:
        """Schedule a redelivery of a message."""
        sequence = sequence_of(reply)
        if sequence in self.pending and sequence not in self.queue:
            self.queue.append(sequence)

    def extend(self, reply: str) -> None:
        """Restart the acknowledgement wait of a message."""
        sequence = sequence_of(reply)
        if sequence in self.pending:
            self.pending[sequence] = self.now + WAIT

    # -- time and trouble --------------------------------------------------------------------------

    def tick(self) -> None:
        """Advance by a tick: expired messages are redelivered."""
        self.now += 1
        for sequence in sorted(self.pending):
            if self.pending[sequence] <= self.now and sequence not in self.queue:
                self.pending[sequence] = self.now + WAIT
                self.queue.append(sequence)
        if self.now - self._seen >= PINNED_FOR:
            self.unpin()
        for request in [*self.requests]:
            if self.now >= request.until:
                self._end(request, "408")
            else:
                self._tell(request, "100")

    def drop_requests(self, member: str) -> None:
        """Drop the requests of a member that is gone."""
        self.requests = [each for each in self.requests if each.member != member]

    def restart(self, forgets: int, *, deliveries: bool) -> None:
        """Restart from the stored state, without its last entries."""
        self._starts += 1
        self.pinned = None
        self.requests.clear()
        self.queue.clear()
        kept = len(self._written) - forgets
        for what, sequence in reversed(self._written[max(0, kept) :]):
            if what == "settled":
                self.settled.discard(sequence)
                self.pending[sequence] = self.now + 1
            elif deliveries:
                self._undeliver(sequence)
        self._written.clear()

    def _undeliver(self, sequence: int) -> None:
        self.delivered -= 1
        self.tries[sequence] -= 1
        if not self.tries[sequence]:
            self.unread = min(self.unread, sequence)
            self.pending.pop(sequence, None)
