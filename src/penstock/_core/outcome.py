"""The final outcomes of items, and their order from good to bad."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outcome(enum.Enum):
    """The one final state of an accepted item."""

    __hash__ = object.__hash__  # one C call; Enum's own hashes the name, in Python

    DELIVERED = "delivered"
    DUPLICATE = "duplicate"
    """Already applied by an earlier try of ours."""
    SPOOLED = "spooled"
    DEAD_LETTERED = "dead_lettered"
    REJECTED = "rejected"
    """Failed for good, not applied, and in no dead-letter sink."""
    DROPPED = "dropped"
    """Given up by an overflow policy."""
    UNSENT = "unsent"
    """Known not to be applied when the batcher stopped; handed back in the report."""
    UNKNOWN = "unknown"
    """A write was cut off: the item may have been applied."""

    is_success: bool
    """Whether the item is safe and need not be sent again. A plain attribute, for fast reads."""

    def __init__(self, value: str) -> None:
        self.is_success = value in {"delivered", "duplicate", "spooled", "dead_lettered"}


SUCCESSES = frozenset(outcome for outcome in Outcome if outcome.is_success)

_BADNESS = (
    Outcome.DUPLICATE, Outcome.DELIVERED, Outcome.SPOOLED, Outcome.DEAD_LETTERED,
    Outcome.DROPPED, Outcome.UNSENT, Outcome.REJECTED, Outcome.UNKNOWN,
)  # fmt: skip


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of an item's outcomes on several branches.

    `unsent` promises that nothing was applied anywhere, so beside a success it becomes `unknown`.
    """
    seen = set(outcomes)
    answer = max(seen, key=_BADNESS.index)
    return Outcome.UNKNOWN if answer is Outcome.UNSENT and seen & SUCCESSES else answer
