"""Notifications of new messages; for the rules see `postgres/client/notifications.py`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ...._core.clock import LOOP_CLOCK
from ...client.notifications import Notifier
from .channel import channel_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ...._core.clock import Clock
    from ...client.connections import Connections


class StreamNotifier:
    """Notifies the readers of a log of committed messages. Created by `StreamLog.notifier`."""

    def __init__(self, connections: Connections, schema: str, *, clock: Clock = LOOP_CLOCK) -> None:
        readers = f"readers of the streams in {schema!r}"
        self._notifier = Notifier(connections, channel_of(schema), readers, clock=clock)

    def appended(self) -> None:
        """Notify readers soon. Call it after the commit, from any thread, any number of times.

        Does not suspend, and never raises.
        """
        self._notifier.soon()

    async def close(self) -> None:
        """Send a pending notification, and wait for it. Suspends; cancellation drops it."""
        await self._notifier.close()


@asynccontextmanager
async def notifying(connections: Connections, schema: str) -> AsyncGenerator[StreamNotifier]:
    """Return a notifier on these connections, which must outlive it."""
    notifier = StreamNotifier(connections, schema)
    try:
        yield notifier
    finally:
        await notifier.close()
