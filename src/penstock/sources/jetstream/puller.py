"""Asking for messages of one consumer, and staying the process that is pinned to it.

1. Requests name an inbox of the partition's own. They carry the identity that the server has pinned;
   before it is known, one request without it is under way at most: a second one could be pinned again
   after this process has given the consumer up.
2. A pinned process has to ask in time. While it has no room, it asks for a message of at most one byte,
   which there is none of, so that nothing arrives.
3. While a request waits, the server sends heartbeats. When they stop, nothing is under way.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Literal

from .window import PullWindow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .api import ConsumerState
    from .channel import Channel

EXPIRES = 30.0
"""Seconds for which a request waits at the server."""
IDLE = 5.0
"""Seconds between heartbeats of a request that waits."""
AFTER_ERROR = 0.5
"""Seconds before the next request, after one that was refused."""
MOST_BYTES = 16 << 20
"""Bytes that one request may bring, so that memory is bounded for large messages, too."""
NANOS = 1_000_000_000

News = Literal["", "taken", "moved", "deleted"]
"""What a status says of the consumer."""

_LIMIT = re.compile(r"Exceeded MaxRequest(Batch|Expires|MaxBytes) of (\d+)(\w*)")


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
        self._bytes: int | None = MOST_BYTES

    async def ask(self, messages: int, now: float) -> None:
        """Ask for messages; for fewer, or none, where that has to be."""
        if now < self._not_before or (self._must_be_pinned and self.window.credit):
            return
        request: dict[str, object] = {
            "batch": messages,
            "expires": round(EXPIRES * NANOS),
            "idle_heartbeat": round(IDLE * NANOS),
        }
        if self._bytes is not None:
            request["max_bytes"] = self._bytes
        else:  # the next message is larger
            messages = request["batch"] = 1
        self.window.ask(messages)
        self._heard_at = now
        await self._send("m", request, now)

    @property
    def _must_be_pinned(self) -> bool:
        return self._group is not None and self.pin is None

    async def stay_pinned(self, now: float) -> None:
        """Ask for nothing, if it is time to."""
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
        """When something is to be done, at the latest."""
        due = self._heard_at + 2 * IDLE if self.window.credit else now + IDLE
        if self.pin is not None:
            due = min(due, self._pin_due)
        return max(due, self._not_before) if self._not_before > now else due

    def check_heard(self, now: float) -> None:
        """Note requests that have died."""
        if self.window.credit and now > self._heard_at + 2 * IDLE:
            self.window.lost()

    def stay(self, pin: str) -> None:
        """Go on with the identity that is pinned."""
        self.pin = pin

    def suspend(self) -> None:
        """Ask for nothing until `begin_again`."""
        self._not_before = math.inf

    def begin_again(self, pinned: str | None) -> None:
        """Note that no request is under way, and which identity is pinned now.

        A request with an identity that is not would wait for long before it is refused.
        """
        self.window.lost()
        self._not_before = 0.0
        if self.pin != pinned:
            self.pin = None

    # -- what arrives ------------------------------------------------------------------------------

    def message(self, pin: str | None, now: float) -> None:
        """Note a message."""
        self._heard_at = now
        self._bytes = MOST_BYTES
        self.window.arrived()
        if pin is not None:
            self.pin = pin

    def status(self, subject: str, headers: Mapping[str, str], now: float) -> News:
        """Note a status; return what it says of the consumer."""
        self._heard_at = now
        status, told = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            return ""
        if not subject.endswith(".k"):
            self.window.ended(int(headers.get("Nats-Pending-Messages", self.window.credit)))
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
            self._bytes = self._bytes if subject.endswith(".k") else None
        elif (limit := _LIMIT.search(told)) is not None and limit[1] == "Batch":
            self.window.limit(int(limit[2]))
        elif status not in {"404", "408"} and told != "Batch Completed":
            self._not_before = now + AFTER_ERROR
        return ""
