"""Notifications of new jobs; for the rules see `postgres/client/notifications.py`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ...client.notifications import Notifier
from .channel import queue_channel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ...client.connections import Connections


@asynccontextmanager
async def notifying_consumers(connections: Connections, schema: str) -> AsyncGenerator[Notifier]:
    """Return a notifier on these connections, which outlive it. Call `soon()` after commits."""
    consumers = f"consumers of the queues in {schema!r}"
    notifier = Notifier(connections, queue_channel(schema), consumers)
    try:
        yield notifier
    finally:
        await notifier.close()
