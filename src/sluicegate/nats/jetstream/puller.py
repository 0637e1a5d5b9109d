"""Requests messages of one consumer, and keeps this process pinned to it.

1. Requests name the inbox of the partition. They carry the identity that the server has pinned.
   Before it is known, at most one request without it is in progress: a second one could be pinned
   again after this process has released the consumer.
2. A pinned process has to send requests in time. While it has no room, it requests a message of at
   most one byte. There is none, so nothing arrives.
3. A request is limited in bytes, by the room that the caller has. If the next message is larger, it
   is requested alone and without a limit, once nothing else has arrived that waits to be taken.
4. While a request waits, the server sends heartbeats. If they stop, no request is in progress.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .channel import Channel, ConsumerState

EXPIRES = 30.0
"""Seconds for which a request waits at the server."""
IDLE = 5.0
"""Seconds between heartbeats of a waiting request."""
AFTER_ERROR = 0.5
"""Delay in seconds before the next request after a refused one."""
MOST_BYTES = 16 << 20
"""Maximum number of bytes per request."""
NANOS = 1_000_000_000

News = Literal["", "taken", "moved", "deleted"]
"""The news in a status about the consumer."""

_LIMIT = re.compile(r"Exceeded MaxRequest(Batch|Expires|MaxBytes) of (\d+)(\w*)")
UNLIMITED = 1 << 62


class Puller:
    """The requests of one partition."""

    def __init__(self, channel: Channel, subject: str, inbox: str, state: ConsumerState) -> None:
        self._channel = channel
        self._subject = subject
        self._inbox = inbox
        self._group = state.group
        self._pin_for = state.pin_for
        self.window = PullWindow(1, state.max_pending)
        self.pin: str | None = None
        """The identity by which the server knows this process; `None` before the first message."""
        self._asked_at = 0.0
        self._heard_at = 0.0
        self._not_before = 0.0
        self._asked_bytes = 0
        """The limit of the last request."""
        self._too_few = 0
        """A limit that the next message exceeds; 0 after a message."""
        self._has_arrived = False
        """Whether a message has arrived since the last request."""

    async def ask(
        self, messages: int, now: float, most_bytes: int = MOST_BYTES, *, is_empty: bool = True
    ) -> None:
        """Request messages, of at most `most_bytes` bytes; fewer, or none, if a limit requires it.

        `is_empty`: all messages that have arrived were taken. Then at least one is requested.
        """
        if now < self._not_before or (self._must_be_pinned and self.window.credit):
            return
        limit = min(MOST_BYTES, max(1, most_bytes) if is_empty else most_bytes)
        is_alone = limit <= self._too_few
        if is_alone and not is_empty:
            return
        request: dict[str, object] = {
            "batch": messages,
            "expires": round(EXPIRES * NANOS),
            "idle_heartbeat": round(IDLE * NANOS),
        }
        if is_alone:
            messages = request["batch"] = 1
        else:
            request["max_bytes"] = self._asked_bytes = limit
        self._has_arrived = False
        self.window.ask(messages)
        self._heard_at = now
        await self._send("m", request, now)

    @property
    def _must_be_pinned(self) -> bool:
        return self._group is not None and self.pin is None

    async def stay_pinned(self, now: float) -> None:
        """Renew the pin with an empty request, if it is due."""
        if self.pin is None or now < self._pin_due:
            return
        await self._send("k", {"batch": 1, "max_bytes": 1, "expires": NANOS}, now)

    @property
    def _pin_due(self) -> float:
        return self._asked_at + self._pin_for / 3

    async def _send(self, reply: str, request: dict[str, object], now: float) -> None:
        if self._group is not None:
            request["group"] = self._group
            if self.pin is not None:
                request["id"] = self.pin
        self._asked_at = now
        payload = json.dumps(request).encode()
        await self._channel.publish(self._subject, payload, f"{self._inbox}.{reply}")

    def next_due(self, now: float) -> float:
        """Return the time of the next necessary action, at the latest."""
        due = self._heard_at + 2 * IDLE if self.window.credit else now + IDLE
        if self.pin is not None:
            due = min(due, self._pin_due)
        return max(due, self._not_before) if self._not_before > now else due

    def check_heard(self, now: float) -> None:
        """Detect requests that have died."""
        if self.window.credit and now > self._heard_at + 2 * IDLE:
            self.window.reset()

    def stay(self, pin: str) -> None:
        """Continue with the pinned identity."""
        self.pin = pin

    def suspend(self) -> None:
        """Send no requests until `begin_again`."""
        self._not_before = math.inf

    def begin_again(self, pinned: str | None) -> None:
        """Record that no request is in progress, and which identity is pinned now.

        A request with another identity would wait for a long time before it is refused.
        """
        self.window.reset()
        self._not_before = 0.0
        if self.pin != pinned:
            self.pin = None

    # -- receiving ---------------------------------------------------------------------------------

    def message(self, pin: str | None, now: float) -> None:
        """Record a message."""
        self._heard_at = now
        self._too_few, self._has_arrived = 0, True
        self.window.receive()
        if pin is not None:
            self.pin = pin

    def status(self, subject: str, headers: Mapping[str, str], now: float) -> News:
        """Record a status; return its news about the consumer."""
        self._heard_at = now
        status, told = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            return ""
        if not subject.endswith(".k"):
            self.window.end(int(headers.get("Nats-Pending-Messages", self.window.credit)))
        if status == "423":
            self.pin = None
            return "taken"
        if status == "503" or "Consumer Deleted" in told or "Consumer is push" in told:
            self._not_before = now + AFTER_ERROR
            return "deleted"
        if "Leadership Change" in told:
            self._not_before = now + AFTER_ERROR
            return "moved"
        if "Message Size Exceeds MaxBytes" in told:
            if not subject.endswith(".k") and not self._has_arrived:
                self._too_few = max(self._too_few, self._asked_bytes)
        elif (limit := _LIMIT.search(told)) is not None and limit[1] == "Batch":
            self.window.limit(int(limit[2]))
        elif status not in {"404", "408"} and told != "Batch Completed":
            self._not_before = now + AFTER_ERROR
        return ""


class PullWindow:
    """The requests of one partition."""

    def __init__(self, prefetch: int, max_pending: int) -> None:
        self._prefetch = prefetch
        self._max_pending = max_pending if max_pending > 0 else UNLIMITED
        self.most = UNLIMITED
        """The server's limit of messages per request."""
        self.credit = 0
        """Number of requested messages that have not arrived."""

    def share(self, prefetch: int) -> None:
        """Change the number of messages to fetch ahead."""
        self._prefetch = prefetch

    def limit(self, most: int) -> None:
        """Limit each request to this many messages."""
        self.most = max(1, most)

    def wanted(self, received: int, held: int, away: int = 0) -> int:
        """Return the number of messages to request now; 0 for none.

        Args:
            received: number of messages that have arrived and were not taken.
            held: number of messages that have arrived and are not settled.
            away: number of messages that are pending elsewhere.
        """
        ahead = self._prefetch + away
        missing = min(ahead - received, self._max_pending - held) - self.credit
        least = max(1, self._prefetch // 4)
        if missing >= least or (missing > 0 and self.credit == 0):
            return min(missing, self.most)
        if away and self.credit == 0:
            return min(away, max(1, self._max_pending - held), self.most)
        return 0

    def ask(self, messages: int) -> None:
        """Record a request."""
        self.credit += messages

    def receive(self) -> None:
        """Record a message."""
        if self.credit > 0:
            self.credit -= 1

    def end(self, left: int) -> None:
        """Record the end of a request, and the number of messages that it did not deliver."""
        self.credit = max(0, self.credit - left)

    def reset(self) -> None:
        """Record that no request is in progress."""
        self.credit = 0
