"""Waiting for a condition without polling: it is looked at again whenever something happened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class News:
    """What happens in one test; every part of it fires."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Something happened."""
        self._event.set()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Suspend until the condition is true; safe to cancel."""
        while not condition():
            self._event.clear()
            await self._event.wait()
