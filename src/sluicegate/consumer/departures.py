"""Ways in which messages leave the consumer other than by an acknowledgement.

A message that leaves frees its key and its place in the window. Either it is settled, so that the
position may pass it, or it is left to a later claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core.source import ReturnedAs
    from .commons import Commons
    from .counts import Fate
    from .letter_circuit import LetterCircuit
    from .message import Message
    from .schedule import Schedule


class Departures:
    """Ends the turns of messages, and wakes the waiting tasks."""

    def __init__(self, schedule: Schedule, circuit: LetterCircuit, commons: Commons) -> None:
        self._schedule = schedule
        self._circuit = circuit
        self._counts = commons.counts
        self._signals = commons.signals

    def settle(self, message: Message, fate: Fate) -> None:
        """Settle a message that was not acknowledged; no effect if its claim has ended."""
        claim = message.claim
        settle = claim.settled if fate == "skipped" else claim.settled_unhandled
        if settle(message.index):
            self._counts.count(fate)
            self._circuit.settled(message.claim)
        else:
            self._counts.count("stale")
        self.free(message)

    def leave(self, message: Message) -> None:
        """Leave a message to a later claim."""
        self._counts.count("stale" if message.claim.is_closed else "dropped")
        self.free(message)

    def returned(self, message: Message, fate: ReturnedAs) -> None:
        """Count a message that its source has taken back, which ended its claim."""
        self._counts.count("returned" if fate == "blocked" else fate)
        self.free(message)

    def free(self, message: Message) -> None:
        """Free the key of a message and its place in the window."""
        self._schedule.finish(message)
        self._signals.work.fire()
        self._signals.room.fire()
        self._signals.settled.fire()
