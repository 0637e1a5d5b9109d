"""Notifications of new jobs, sent as `postgres/notifier.py` says."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ..notifier import Notifier
from .channel import queue_channel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..connections import Connections


@asynccontextmanager
async def notifying_consumers(connections: Connections, schema: str) -> AsyncGenerator[Notifier]:
    """A notifier on these connections, which stay open longer. Call `soon()` after a commit."""
    consumers = f"consumers of the queues in {schema!r}"
    notifier = Notifier(connections, queue_channel(schema), consumers)
    try:
        yield notifier
    finally:
        await notifier.close()
