"""Submission of rows to the batcher."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .._core.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..batcher.feed import Feed
    from .piped import PipedMessage, PipedRow


class Entering:
    """Rows submitted in order; rows that are not accepted have failed."""

    def __init__(self, feed: Feed[Any], receipts: Sequence[PipedMessage | PipedRow]) -> None:
        self._receipts = receipts
        self._submission = feed.submit([receipt.item for receipt in receipts], receipts)
        self._told = 0

    async def run(self) -> None:
        """Submit the rows. Suspends while the batcher is full."""
        try:
            await self._submission
        except (ClosedError, asyncio.CancelledError) as error:
            for receipt in self._receipts[self._submission.taken :]:
                receipt.message.refuse(receipt, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.tell_refused()

    def tell_refused(self) -> None:
        """Fail the rows that were refused since the last call."""
        refused = self._submission.refused[self._told :]
        self._told += len(refused)
        for index, error in refused:
            self._receipts[index].message.refuse(self._receipts[index], error)
