"""Records of a pipe that have no size.

White box: the schedule of a pipe alone.
"""

from __future__ import annotations

from typing import Any

from sluicegate._core.order.lanes import Lanes
from sluicegate.consumer import Position, Record, TopicPartition
from sluicegate.consumer.lanes.keys import KeyRules
from sluicegate.consumer.lanes.window import Window
from sluicegate.consumer.progress.claim import Claim
from sluicegate.flow.rows import PipedMessage, PipedSchedule


def test_a_record_without_a_size_keeps_its_key_and_can_be_written_later() -> None:
    """It may be blocked, and continue as any other record once it is unblocked, or be parked by its
    key. Its key is not busy meanwhile, since a pipe has no turns.
    """

    def size_of(record: Any) -> int:
        if record.offset == 1:
            raise ValueError("no size")
        return 1

    owner: Any = None
    schedule = PipedSchedule(KeyRules("key"), Window(10, 100), size_of)
    claim = Claim(TopicPartition("t", 0), 0, Position(0), Lanes(), owner)
    records = [Record("t", 0, offset, b"a", b"x") for offset in range(3)]
    (broken,) = schedule.admit(claim, records).broken
    assert isinstance(broken.message, PipedMessage)
    assert (broken.message.offset, broken.message.lane_key) == (1, b"a")
    assert [message.offset for message in schedule.ready] == [0, 2]
    assert not claim.lanes.active
