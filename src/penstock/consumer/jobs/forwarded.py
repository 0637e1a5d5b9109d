"""What one event has forwarded: items, and their receipts."""

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
        """Its outcome; `None` while it is inside."""
        ...

    async def settled(self) -> Outcome:
        """Wait for any outcome."""
        ...

    def result(self) -> Outcome:
        """Return a success, or raise `ItemFailed`."""
        ...


@runtime_checkable
class TakesForwarded(Protocol):
    """A `Batcher`, as far as it is used here."""

    async def submit(self, item: Any) -> ForwardReceipt:
        """Take an item; suspends while there is no room."""
        ...


@runtime_checkable
class ForwardsInTurn(Protocol):
    """A store that sends what is forwarded together with the changes of the turn."""

    def forward(self, record: object) -> None:
        """Send a record with this turn. Raises `ConfigError`."""
        ...


class ForwardedItems:
    """What one event has forwarded."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        """By its turn, which has not ended."""
        self.sent: list[tuple[Any, ForwardReceipt]] = []
        self._again: list[Any] = []
        """Refused ones, for the next try of the event."""
        self._watch: asyncio.Task[None] | None = None

    def add(self, item: Any) -> None:
        """Note an item."""
        self.noted.append(item)

    def begin(self) -> None:
        """A turn begins."""
        self.noted = []

    async def submit(self, batcher: TakesForwarded) -> None:
        """Submit what the turn has noted."""
        for item in self.noted:
            self.sent.append((item, await batcher.submit(item)))
        self.noted = []

    def arrived(self) -> bool:
        """Forget what has arrived; return whether that is all."""
        self.sent = [
            (item, receipt)
            for item, receipt in self.sent
            if receipt.outcome is None or not receipt.outcome.is_success
        ]
        return not self.sent

    def watch(self, waiting: Coroutine[Any, Any, None] | None) -> None:
        """Run what waits for the receipts; with `None`, stop it."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = None if waiting is None else asyncio.get_running_loop().create_task(waiting)

    def repeat(self) -> None:
        """Submit again what was refused before."""
        self.noted += self._again
        self._again = []

    def refuse(self) -> None:
        """Raise the error of the first item that was refused. Each is for the next try."""
        refused, self.sent = self.sent, []
        self._again = [item for item, _ in refused]
        try:
            refused[0][1].result()
        except ItemFailed as failed:
            raise failed.__cause__ or failed from None
