"""Counts of a consumer's messages by result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Fate = Literal[
    "dead_lettered", "letters", "terminated", "parked", "unparked", "skipped", "naks", "dropped",
    "stale", "returned", "deaf", "batches", "split_batches", "miscounted_batches",
]  # fmt: skip
"""The results counted here; acknowledged messages are counted elsewhere."""


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """Settled and failed messages since the consumer was opened. Counts never decrease."""

    acked: int = 0
    dead_lettered: int = 0
    """Settled with a dead letter."""
    letters: int = 0
    """Dead letters written, including those of messages that then block their key."""
    terminated: int = 0
    """Failed for good without a dead letter (`poison="skip"` without dead letters)."""
    parked: int = 0
    """Written to the park store, including the messages behind them."""
    unparked: int = 0
    """Handled after `unpark`, and removed from the park store."""
    skipped: int = 0
    """Acknowledged by `Skip()`, for example as a known duplicate."""
    naks: int = 0
    """Failed tries of any kind."""
    dropped: int = 0
    """Left to a later claim because their claim ended, or because of the drain."""
    stale: int = 0
    """Handled after their claim had ended; they are delivered again."""
    returned: int = 0
    """Returned to the source, which delivers them again later or keeps them blocked."""
    deaf: int = 0
    """Handlers that did not end although they were cancelled."""
    batches: int = 0
    """Batches handled or tried."""
    split_batches: int = 0
    """Batches whose handler raised, so that their messages were retried in smaller batches."""
    miscounted_batches: int = 0
    """Batches whose handler returned no list, or a wrong number of results."""


class Counters:
    """The current counts of a consumer."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, fate: Fate, messages: int = 1) -> None:
        """Count messages."""
        self._counts[fate] += messages

    def __getitem__(self, fate: Fate) -> int:
        return self._counts[fate]

    def snapshot(self, acked: int) -> MessageCounts:
        """Return the current counts; the schedule counts acknowledged messages."""
        return MessageCounts(acked - self._counts["skipped"], **self._counts)
