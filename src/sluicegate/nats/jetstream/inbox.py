"""The subject to which a consumer delivers the messages of one partition.

After the loss of a claim, messages may still arrive that were redelivered to another process in the
meantime. The inbox is therefore dropped with the claim, and later messages are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .channel import Channel


class ClaimInbox:
    """One inbox. `received` is called for each message until it is dropped."""

    def __init__(self, channel: Channel, received: Callable[[Any], Awaitable[None]]) -> None:
        self._channel = channel
        self._received = received
        self.subject = channel.inbox()
        self.is_dropped = False
        self._subscription: Any = None

    async def open(self) -> None:
        """Subscribe. Raises errors of the client."""
        self._subscription = await self._channel.subscribe(f"{self.subject}.*", self._call)

    async def _call(self, message: Any) -> None:
        if not self.is_dropped:
            await self._received(message)

    def drop(self) -> None:
        """Ignore all further messages."""
        self.is_dropped = True

    async def close(self) -> None:
        """Drop it, and unsubscribe. Raises errors of the client."""
        self.drop()
        subscription, self._subscription = self._subscription, None
        if subscription is not None and self._channel.is_connected:
            await subscription.unsubscribe()
