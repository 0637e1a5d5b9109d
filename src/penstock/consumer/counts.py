"""What became of the messages of a consumer, as counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Fate = Literal[
    "dead_lettered", "letters", "terminated", "parked", "unparked", "skipped", "naks", "dropped",
    "stale", "returned", "deaf", "batches", "split_batches", "miscounted_batches",
]  # fmt: skip
"""What is counted here: all but acknowledged messages."""


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """Settled and failed messages since the consumer opened. Every count only grows."""

    acked: int = 0
    dead_lettered: int = 0
    """Settled with a dead letter."""
    letters: int = 0
    """Dead letters written, also those of messages that then block their key."""
    terminated: int = 0
    """Given up without a dead letter (`poison="skip"` without dead letters)."""
    parked: int = 0
    """Written to the park store, with the messages that follow them."""
    unparked: int = 0
    """Handled after `unpark`, and removed from the park store."""
    skipped: int = 0
    """Acknowledged by `Skip()`, such as a duplicate that a step knows."""
    naks: int = 0
    """Failed tries, of whatever kind."""
    dropped: int = 0
    """Left to a later claim when theirs ended, or at the drain."""
    stale: int = 0
    """Handled, but their claim had ended: they are delivered again."""
    returned: int = 0
    """Given back to the source, which delivers them again in time, or keeps them blocked."""
    deaf: int = 0
    """Handlers that did not end although they were cancelled."""
    batches: int = 0
    """Batches handled, or tried."""
    split_batches: int = 0
    """Batches whose handler raised, and whose messages were tried again in smaller ones."""
    miscounted_batches: int = 0
    """Batches whose handler returned no list, or a wrong number of results."""


class Counters:
    """The counts of a consumer as they grow."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, fate: Fate, messages: int = 1) -> None:
        """Count messages."""
        self._counts[fate] += messages

    def __getitem__(self, fate: Fate) -> int:
        return self._counts[fate]

    def snapshot(self, acked: int) -> MessageCounts:
        """The counts of this moment; acknowledged messages are counted by the schedule."""
        return MessageCounts(acked - self._counts["skipped"], **self._counts)
