"""What became of the messages of a consumer, as counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class MessageCounts:
    """Settled and failed messages since the consumer opened. Every count only grows."""

    acked: int = 0
    dead_lettered: int = 0
    terminated: int = 0
    """Given up without a dead letter (`poison="skip"` without dead letters)."""
    parked: int = 0
    """Written to the park store, with the messages that follow them."""
    skipped: int = 0
    """Acknowledged by `Skip()`, such as a duplicate that a step knows."""
    naks: int = 0
    """Failed tries, of whatever kind."""
    dropped: int = 0
    """Left to a later claim when theirs ended, or at the drain."""
    stale: int = 0
    """Handled, but their claim had ended: they are delivered again."""
    deaf: int = 0
    """Handlers that did not end although they were cancelled."""
