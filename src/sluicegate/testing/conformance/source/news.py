"""Waiting for a condition without polling: every event of the test checks it again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class News:
    """The events of one test, fired by all its parts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Signal an event."""
        self._event.set()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Suspend until the condition is true; safe to cancel."""
        while not condition():
            self._event.clear()
            await self._event.wait()
