"""A schedule without lanes: messages become ready in the order of their arrival.

For work that keeps the order per key itself. Only parked keys have lanes. Their records wait there
to be written to the park store one after another, or wait behind the records that `unpark` replays.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from ..._core.order.keys import PLAIN
from .keys import alone
from .schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..._core.source import SourceRecord
    from ..progress.claim import Claim
    from .held import ParkedKey
    from .keys import KeyRules
    from .message import Message
    from .window import Window


class ArrivalSchedule(Schedule):
    """A schedule in which messages become ready on arrival; only those of parked keys wait for
    others.
    """

    def __init__(
        self,
        keys: KeyRules,
        window: Window,
        size_of: Callable[[SourceRecord], int] | None = None,
        *,
        max_per_key: int | None = None,
    ) -> None:
        super().__init__(keys, window, size_of, max_per_key=max_per_key)
        if not keys.by_key:
            self._takes_record_key = True
            self._lane_of = _name_of

    def _queue(
        self,
        claim: Claim,
        keys: Sequence[Hashable],
        records: Sequence[SourceRecord],
        sizes: Sequence[int],
        indices: Sequence[int],
    ) -> None:
        """Queue the records in `ready`. The hot path."""
        self.ready.extend(map(self.message_type, keys, sizes, records, repeat(claim), indices))

    def _broken(
        self, key: Hashable, size: int, record: SourceRecord, claim: Claim, index: int
    ) -> Message:
        """Return the message of a record without a key or a size. No key is busy, and a record
        without a size keeps its key, by which it may be parked.
        """
        return self.message_type(key, size, record, claim, index)

    def acknowledge(self, message: Message) -> bool:
        """Settle a message; return false if it is already settled or its claim has ended."""
        return self.acknowledge_all((message,))

    def _end_turns(self, batch: Sequence[Message]) -> None:
        """Do nothing: no message waits for the end of these turns."""

    # -- parked keys -------------------------------------------------------------------------------

    @property
    def has_keys(self) -> bool:
        """Whether records have keys that can be parked."""
        return self._keys.by_key

    def waits_parked(self, message: Message) -> bool:
        """Queue a message in the lane of its parked key; return false if the key is not parked."""
        if not self.parked or message.is_unparked or self.parked.of(message) is None:
            return False
        message.claim.lanes.wait(message)
        self.parked.note(message)
        return True

    def begin_parking(self, message: Message) -> None:
        """Begin to park the key of a message whose turn continues."""
        message.claim.lanes.active.add(message.lane_key)

    def release(self, parked: ParkedKey) -> None:
        """Let a parked key continue: its waiting messages precede the messages that have arrived
        since.
        """
        message = self.parked.forget(parked) if parked in self.parked else None
        waiting: list[Message] = []
        while message is not None:
            waiting.append(message)
            message = parked.lanes.leave(parked.key)
        self.ready.extendleft(reversed(waiting))

    def end_turn(self, message: Message) -> None:
        """End a turn of a parked key, whose claim may have ended. No message waits for the end of
        such a turn.
        """
        lanes, key = message.claim.lanes, message.lane_key
        if key in lanes.active:
            lane = lanes.lane(key)
            if lane is None or lane.going:
                lanes.leave(key)


def _name_of(record: SourceRecord) -> Hashable:
    key = record.key
    return key if type(key) in PLAIN else alone(record)
