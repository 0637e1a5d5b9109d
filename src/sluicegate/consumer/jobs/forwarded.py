"""The items that one event has forwarded, with their receipts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..._core.errors import ItemFailed

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ..._core.outcome import Outcome


class ForwardReceipt(Protocol):
    """The receipt of an item."""

    @property
    def outcome(self) -> Outcome | None:
        """Its outcome; `None` while the item is pending."""
        ...

    async def settled(self) -> Outcome:
        """Wait for any outcome."""
        ...

    def result(self) -> Outcome:
        """Return a success, or raise `ItemFailed`."""
        ...


@runtime_checkable
class TakesForwarded(Protocol):
    """The part of a `Batcher` that is used here."""

    async def submit(self, item: Any) -> ForwardReceipt:
        """Accept an item; suspends while there is no room."""
        ...


@runtime_checkable
class ForwardsInTurn(Protocol):
    """A store that sends forwarded records together with the changes of the turn."""

    def forward(self, record: object) -> None:
        """Send a record with this turn. Raises `ConfigError`."""
        ...


class ForwardedItems:
    """The items that one event has forwarded."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        """Items of the current turn."""
        self.sent: list[tuple[Any, ForwardReceipt]] = []
        self._again: list[Any] = []
        """Refused items, for the next try of the event."""
        self._watch: asyncio.Task[None] | None = None

    def add(self, item: Any) -> None:
        """Add an item."""
        self.noted.append(item)

    def begin(self) -> None:
        """Begin a turn."""
        self.noted = []

    async def submit(self, batcher: TakesForwarded) -> None:
        """Submit the items of the turn."""
        for item in self.noted:
            self.sent.append((item, await batcher.submit(item)))
        self.noted = []

    def arrived(self) -> bool:
        """Remove the items that have arrived; return whether none remains."""
        self.sent = [
            (item, receipt)
            for item, receipt in self.sent
            if receipt.outcome is None or not receipt.outcome.is_safe
        ]
        return not self.sent

    def watch(self, waiting: Coroutine[Any, Any, None] | None) -> None:
        """Run a coroutine that waits for the receipts; with `None`, stop it."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = None if waiting is None else asyncio.get_running_loop().create_task(waiting)

    def repeat(self) -> None:
        """Submit refused items again."""
        self.noted += self._again
        self._again = []

    def refuse(self) -> None:
        """Raise the error of the first refused item. All refused items are for the next try."""
        refused, self.sent = self.sent, []
        self._again = [item for item, _ in refused]
        try:
            refused[0][1].result()
        except ItemFailed as failed:
            raise failed.__cause__ or failed from None
