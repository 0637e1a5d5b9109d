"""The final outcomes of items, and their order from good to bad."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outcome(enum.Enum):
    """The final state of an accepted item."""

    __hash__ = object.__hash__  # one C call; Enum's own hash is Python code

    DELIVERED = "delivered"
    DUPLICATE = "duplicate"
    """Already applied by an earlier attempt of Sluicegate."""
    SPOOLED = "spooled"
    DEAD_LETTERED = "dead_lettered"
    REJECTED = "rejected"
    """Failed for good, not applied, and in no dead-letter sink."""
    DROPPED = "dropped"
    """Dropped by an overflow policy."""
    UNSENT = "unsent"
    """Known not to be applied when the batcher stopped; returned in the report."""
    UNKNOWN = "unknown"
    """A write was cut off: the item may have been applied."""

    is_success: bool
    """Whether the item is stored where it was sent: delivered, duplicate or spooled. `deliver` and
    awaited receipts return only these outcomes.
    """
    is_safe: bool
    """Whether the item is not lost and need not be resent: a success, or dead-lettered."""

    def __init__(self, value: str) -> None:  # plain attributes, for fast access
        self.is_success = value in {"delivered", "duplicate", "spooled"}
        self.is_safe = self.is_success or value == "dead_lettered"


SAFE = frozenset(outcome for outcome in Outcome if outcome.is_safe)

_BADNESS = (
    Outcome.DUPLICATE, Outcome.DELIVERED, Outcome.SPOOLED, Outcome.DEAD_LETTERED,
    Outcome.DROPPED, Outcome.UNSENT, Outcome.REJECTED, Outcome.UNKNOWN,
)  # fmt: skip


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of an item's outcomes on several branches.

    `unsent` guarantees that the item was not applied anywhere, so together with a safe outcome it
    becomes `unknown`.
    """
    seen = set(outcomes)
    answer = max(seen, key=_BADNESS.index)
    return Outcome.UNKNOWN if answer is Outcome.UNSENT and seen & SAFE else answer
