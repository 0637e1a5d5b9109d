"""Bounded ends of aiokafka's clients, some of whose calls never return.

Their limits end with the closing of a consumer, but each has at least `AT_LEAST` seconds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..._core.runtime.threads import close_within

if TYPE_CHECKING:
    from collections.abc import Coroutine

AT_LEAST = 0.05


async def closed(closing: Coroutine[Any, Any, object], within: float) -> None:
    """Run a client's own `close()` or `stop()` for at most `within` seconds, ignoring its errors."""
    await ended(asyncio.ensure_future(closing), within)


async def ended(task: asyncio.Future[Any], within: float) -> None:
    """Suspend until the work has ended, ignoring its errors; cancel it after `within` seconds."""
    await asyncio.wait([task], timeout=max(AT_LEAST, close_within(within)))
    if not task.cancel() and not task.cancelled():
        task.exception()
