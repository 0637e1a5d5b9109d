"""A destination that hangs and swallows every attempt to cancel it, as client libraries with a broad `except` do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any


class DeafSink:
    """Applies nothing for `seconds`, whoever cancels it, then counts the batch as applied."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.late = 0

    async def write(self, batch: Sequence[Any]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        while (left := until - loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        self.late += len(batch)
