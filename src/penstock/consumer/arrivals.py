"""A schedule without lanes: messages become ready in the order of their arrival.

For work that keeps the order per key itself. A message's key is only its name here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.order.keys import PLAIN
from .keys import alone
from .message import Message
from .schedule import Broken, Schedule

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .._core.source import SourceRecord
    from .claim import Claim


class ArrivalSchedule(Schedule):
    """Messages that become ready as they arrive; no key waits for another message."""

    message_type: type[Message] = Message

    def _enter(
        self,
        claim: Claim,
        records: Sequence[SourceRecord],
        sizes: Sequence[int],
        indices: Sequence[int],
    ) -> list[Broken]:
        ready, errors, make = self.ready, self.sizes.errors, self.message_type
        broken: list[Broken] = []
        for record, size, index in zip(records, sizes, indices, strict=True):
            message = make(_name_of(record), size, record, claim, index)
            if errors and (error := errors.get(record.offset)) is not None:
                broken.append(Broken(message, error))
            else:
                ready.append(message)
        return broken

    def acknowledge(self, message: Message) -> bool:
        """Settle a message; return false if that has no effect any more.

        The hot path: once per message.
        """
        claim = message.claim
        tracker = claim.tracker
        at = message.index - tracker.base
        if claim.is_closed or at < 0 or tracker.bits[at]:
            return False
        tracker.bits[at] = 1
        if claim.attempts:
            claim.attempts.pop(message.index, None)
        self.window.release(message.size)
        return True

    def _end_turn(self, message: Message) -> None:
        """No message waits for the end of another one's turn."""


def _name_of(record: SourceRecord) -> Hashable:
    key = record.key
    return key if type(key) in PLAIN else alone(record)
