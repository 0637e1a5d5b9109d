"""A destination that hangs and swallows every attempt to cancel it, as client libraries with a
broad `except` do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class DeafSink:
    """Its writes take `seconds`, whoever cancels them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ended = asyncio.Event()
        """Set when the first write has ended, long after anybody wanted it to."""

    async def write(self, batch: Sequence[Any]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        while (left := until - loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        self.ended.set()
