"""Notifications of new messages, sent as `postgres/notifier.py` says."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ...._core.clock import LOOP_CLOCK
from ..notifier import Notifier
from .channel import channel_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ...._core.clock import Clock
    from ..connections import Connections


class StreamNotifier:
    """Tells the readers of a log that messages were committed. Made by `StreamLog.notifier`."""

    def __init__(self, connections: Connections, schema: str, *, clock: Clock = LOOP_CLOCK) -> None:
        readers = f"readers of the streams in {schema!r}"
        self._notifier = Notifier(connections, channel_of(schema), readers, clock=clock)

    def appended(self) -> None:
        """Notify readers soon. Call it after the commit; from any thread, and as often as you like.

        Does not suspend, and raises nothing.
        """
        self._notifier.soon()

    async def close(self) -> None:
        """Send a notification that is due, and wait for it. Suspends; cancellation drops it."""
        await self._notifier.close()


@asynccontextmanager
async def notifying(connections: Connections, schema: str) -> AsyncGenerator[StreamNotifier]:
    """A notifier on these connections, which stay open longer."""
    notifier = StreamNotifier(connections, schema)
    try:
        yield notifier
    finally:
        await notifier.close()
