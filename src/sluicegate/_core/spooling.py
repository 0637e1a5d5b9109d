"""What a batcher with a spool needs of it; `flow`'s spool provides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .clock import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStats:
    """A spool at one moment."""

    items: int
    """The items that are not settled."""
    bytes: int
    """The size of their files."""
    fill: float
    """The used share of `max_items` or `max_bytes`, whichever is greater; 0.0 without a bound."""
    oldest_age: float | None
    """Seconds since the first unsettled item was stored."""
    parked: int
    """The items that could not be delivered and are in the file of parked ones."""
    sparse_files: int
    """The full files that stay on disk although at most a tenth of their items is unsettled."""
    refusal: str
    """Why the disk refused the last write; empty if it did not."""


class SpoolHost(Protocol):
    """The batcher, as its spool sees it."""

    @property
    def pressed(self) -> Signal:
        """Fires when `is_full` or `is_troubled` may have become true, or a shutdown begins."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether producers wait for room, or would be refused soon."""
        ...

    @property
    def is_troubled(self) -> bool:
        """Whether the destination does not accept writes, according to this batcher's own
        writes.
        """
        ...

    def break_down(self, error: BaseException) -> None:
        """Stop for good, because sending has ended with an error."""


@runtime_checkable
class MakesFront(Protocol):
    """The `spool=` of a batcher."""

    def in_front_of(self, setup: Any) -> Any:
        """Return the checked arguments of the batcher that writes to the spool, made of those of the
        batcher that sends from it; their `spool` is a `SpoolFront`. Raises `ConfigError`.
        """
        ...


class SpoolFront(Protocol):
    """A spool in front of a batcher's destination."""

    @property
    def adds_stored(self) -> bool:
        """Whether `add` returns only when the item is stored."""
        ...

    def full(self) -> str:
        """Return why no more items are stored at present; empty if they are."""
        ...

    def stats(self) -> SpoolStats | None:
        """Return a snapshot, without reading from the disk: the last one if it is closed, `None`
        if it was never open. May be called in any thread.
        """
        ...

    def start(self, host: SpoolHost) -> None:
        """Begin to send, once the batcher is open."""

    async def finish(self, until: float) -> None:
        """Send until nothing is left or the clock reads `until`; unsent items stay stored.

        Suspends until sending has ended. A cancellation ends it immediately.
        """
