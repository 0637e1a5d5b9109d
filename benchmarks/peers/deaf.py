"""A destination that hangs and suppresses every cancellation, like client libraries with a broad
`except`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class DeafSink:
    """A sink whose writes take `seconds`, even if they are cancelled."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ended = asyncio.Event()
        """Set when the first write has ended, long after its cancellation."""

    async def write(self, batch: Sequence[Any]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        while (left := until - loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        self.ended.set()
