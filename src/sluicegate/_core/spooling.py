"""What a batcher with a spool needs of it; `flow`'s spool provides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .clock import Signal


class SpoolHost(Protocol):
    """The batcher, as its spool sees it."""

    @property
    def pressed(self) -> Signal:
        """Fires when `is_pressed` may have become true."""
        ...

    @property
    def is_pressed(self) -> bool:
        """Whether producers wait for room, or the destination does not accept writes."""
        ...

    def break_down(self, error: BaseException) -> None:
        """Stop for good, because sending has ended with an error."""


@runtime_checkable
class SpoolFront(Protocol):
    """Takes the place of a batcher's destination."""

    def in_front_of(self, setup: Any) -> Any:
        """Return the checked arguments of the batcher that writes to the spool, made of those of the
        batcher that sends from it. Raises `ConfigError`.
        """
        ...

    @property
    def adds_stored(self) -> bool:
        """Whether `add` returns only when the item is stored."""
        ...

    def full(self) -> str:
        """Return why no more items are stored at present; empty if they are."""
        ...

    def start(self, host: SpoolHost) -> None:
        """Begin to send, once the batcher is open."""

    async def finish(self, until: float) -> None:
        """Send until nothing is left or the clock reads `until`; what is left stays stored.

        Suspends until sending has ended. Cancelled, it ends at once.
        """
