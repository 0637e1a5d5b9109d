"""The batch former alone: the content of each batch, and when a batch is due.

White box: without a consumer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import records

from sluicegate import Message
from sluicegate.consumer import Position, Record, TopicPartition
from sluicegate.consumer.lanes.batches import BatchLimits
from sluicegate.consumer.lanes.keys import KeyRules
from sluicegate.consumer.lanes.schedule import Schedule
from sluicegate.consumer.lanes.window import Window
from sluicegate.consumer.progress.claim import Claim

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType


Batch = list[int]


class Owner:
    """An owner without settlements from outside."""

    def settle(self, message: Message, result: object) -> bool:
        """Do nothing."""
        raise AssertionError(message, result)

    def in_progress(self, message: Message) -> None:
        """Do nothing."""
        raise AssertionError(message)


class Forming:
    """A schedule with a former, with time set by the test."""

    def __init__(
        self,
        *,
        ordering: Any = "key",
        scope: Any = "partition",
        window: int = 10**6,
        **limits: Any,
    ) -> None:
        limits.setdefault("one_lane", ordering == "partition")
        rules = KeyRules(ordering, scope=scope)
        self.schedule = Schedule(rules, Window(window, 1 << 40))
        self.former = self.schedule.form_batches(BatchLimits(**limits))
        self.claims = [self.claim(partition) for partition in range(2)]
        self.ends = [0, 0]

    def claim(self, partition: int) -> Claim:
        """Begin a claim."""
        at = TopicPartition("t", partition)
        return Claim(at, partition, Position(0), self.schedule.lanes_for(at), Owner())

    def arrive(self, keys: Iterable[object], now: float = 0.0, *, partition: int = 0) -> None:
        """Admit one record per key and process the arrivals."""
        arriving = records(keys, partition, self.ends[partition])
        self.ends[partition] += len(arriving)
        admitted = self.schedule.admit(self.claims[partition], arriving)
        assert admitted.taken == len(arriving)
        self.former.take_in(now)

    def is_due(self, now: float = 0.0, *, is_idle: bool = False) -> bool:
        """Whether a batch is due."""
        return self.former.is_due(now, is_idle=is_idle)

    def take(self, now: float = 0.0, *, is_idle: bool = False) -> list[Message]:
        """The next batch; empty if there is none."""
        return self.former.take(now, is_idle=is_idle) or []

    def offsets(self, now: float = 0.0) -> Batch:
        """The offsets of the next batch; empty if there is none."""
        return [message.offset for message in self.take(now)]

    def finish(self, batch: list[Message], now: float = 0.0) -> None:
        """End a batch without repeated keys."""
        for message in batch:
            self.schedule.finish(message)
        self.former.take_in(now)


def test_a_batch_is_due_when_it_has_size_messages() -> None:
    """consumer/C:Ba5, consumer/O13: of any keys and partitions, and not earlier."""
    forming = Forming(size=3)
    forming.arrive("a")
    forming.arrive("b", partition=1)
    assert not forming.is_due()
    forming.arrive("cd")
    assert forming.offsets() == [0, 0, 1]
    assert not forming.is_due()


def test_a_batch_is_due_when_the_next_message_would_exceed_its_bytes() -> None:
    """consumer/C:Ba5: a message larger than the limit is a batch of its own."""
    forming = Forming(max_bytes=10)
    sizes = [4, 4, 4, 30, 9, 1]
    forming.schedule.admit(
        forming.claims[0], [Record("t", 0, at, at, bytes(size)) for at, size in enumerate(sizes)]
    )
    forming.former.take_in(0.0)
    assert [forming.offsets(), forming.offsets(), forming.offsets(), forming.offsets()] == [
        [0, 1],
        [2],
        [3],
        [4, 5],
    ]


def test_bytes_also_end_the_run_of_a_key() -> None:
    """The first message that does not fit begins the next batch of its key."""
    forming = Forming(max_bytes=10)
    forming.schedule.admit(
        forming.claims[0], [Record("t", 0, offset, "a", bytes(4)) for offset in range(3)]
    )
    forming.former.take_in(0.0)
    batch = forming.take()
    assert [message.offset for message in batch] == [0, 1]
    assert not forming.is_due()


def test_a_batch_is_due_when_its_first_message_is_max_wait_old() -> None:
    """O-T13, consumer/O15, consumer/C:Ba5: a later message does not count."""
    forming = Forming(max_wait=1.0)
    forming.arrive("a", now=5.0)
    forming.arrive("b", now=5.9)
    assert forming.former.next_due == 6.0
    assert not forming.is_due(5.999)
    assert forming.offsets(6.0) == [0, 1]
    assert forming.former.next_due is None


def test_a_batch_without_a_timer_is_due_when_nothing_more_comes() -> None:
    """consumer/O14, consumer/C:Ba5."""
    forming = Forming(size=1000, max_wait=float("inf"))
    forming.arrive("a")
    assert forming.former.next_due is None
    assert not forming.is_due(10.0**9)
    forming.former.hurry(0.0)
    assert forming.offsets() == [0]


def test_a_full_window_without_a_running_batch_makes_a_batch_due() -> None:
    """O-T15, consumer/O17, consumer/4.5: otherwise no record could ever arrive again."""
    forming = Forming(size=1000, max_wait=float("inf"))
    forming.arrive("a")
    assert not forming.is_due(is_idle=True)
    forming.schedule.stall(is_stalled=True)
    assert not forming.is_due(is_idle=False)
    assert forming.is_due(is_idle=True)


def test_messages_of_busy_keys_neither_start_the_time_nor_fill_a_batch() -> None:
    """consumer/C:Ba5."""
    forming = Forming(size=2, max_wait=1.0)
    forming.arrive("ab")
    running = forming.take()
    forming.arrive("aabb", now=1.0)
    assert not forming.is_due(100.0)
    assert forming.former.next_due is None
    forming.finish(running, now=7.0)
    assert [forming.offsets(), forming.offsets()] == [[2, 3], [4, 5]]


def test_a_key_may_be_repeated_in_a_batch_in_order() -> None:
    """consumer/C:Ba3, G-T8: messages that arrive while the batch is open can join it, too."""
    forming = Forming(size=5)
    forming.arrive("aab")
    forming.arrive("aa")
    assert forming.offsets() == [0, 1, 2, 3, 4]


def test_max_per_key_bounds_the_repetitions_of_a_key() -> None:
    """consumer/C:Ba4: 1 turns repetitions off."""
    forming = Forming(size=4, max_per_key=1)
    forming.arrive("aabab")
    forming.arrive("a")
    assert not forming.is_due()
    assert forming.offsets(1.0) == [0, 2]


def test_max_per_key_two() -> None:
    """The other messages of the key wait for the end of the batch."""
    forming = Forming(size=4, max_per_key=2)
    forming.arrive("aaab")
    assert forming.offsets(1.0) == [0, 1, 3]


def test_equal_keys_of_two_partitions_are_two_keys() -> None:
    """They do not share one limit per key."""
    forming = Forming(size=2, max_per_key=1)
    forming.arrive("a")
    forming.arrive("a", partition=1)
    assert len(forming.take()) == 2


def test_each_lane_has_a_batch_of_its_own_with_one_lane() -> None:
    """O-T14, consumer/O16, consumer/C:Ba3: with its own size and waiting time."""
    forming = Forming(ordering="partition", size=3, max_wait=1.0)
    forming.arrive("ab", now=0.0)
    forming.arrive("abc", now=0.5, partition=1)
    full = forming.take(0.5)
    assert [(message.partition, message.offset) for message in full] == [(1, 0), (1, 1), (1, 2)]
    assert not forming.is_due(0.9)
    late = forming.take(1.0)
    assert [(message.partition, message.offset) for message in late] == [(0, 0), (0, 1)]
    forming.arrive("d", now=2.0, partition=1)
    assert not forming.is_due(100.0)


def test_suspects_are_in_small_batches_of_their_own() -> None:
    """consumer/C:Ba2: other messages neither wait for them nor share their batches."""
    forming = Forming(size=4)
    forming.claims[0].limit_batch(0, 2)
    forming.claims[0].limit_batch(1, 2)
    forming.claims[0].limit_batch(2, 2)
    forming.arrive("aabc")
    assert forming.offsets() == [0, 1]
    assert forming.offsets() == [2]
    assert not forming.is_due()
    assert forming.offsets(1.0) == [3]


def test_a_message_behind_suspects_of_its_key_waits_for_its_own_batch() -> None:
    """It did not fail with them."""
    forming = Forming(size=4)
    forming.claims[0].limit_batch(0, 2)
    forming.arrive("aa")
    assert forming.offsets() == [0]
    assert not forming.is_due(100.0)


def test_a_message_overtakes_none_of_its_key_that_waits_for_its_own_batch() -> None:
    """Neither does one whose key has a message in the open batch, as with a common scope."""
    forming = Forming(size=4, scope="topic")
    forming.arrive("a")
    forming.claims[1].limit_batch(0, 2)
    forming.arrive("a", partition=1)
    forming.arrive("ab")
    first = forming.take(1.0)
    assert [(message.partition, message.offset) for message in first] == [(0, 0), (0, 2)]
    forming.finish(first)
    assert [message.partition for message in forming.take()] == [1]


def test_messages_join_the_open_batch_in_the_order_of_their_arrival() -> None:
    """Those of a key in a full batch wait until it has ended."""
    forming = Forming(size=4)
    forming.arrive("abacab")
    first = forming.take()
    assert [message.offset for message in first] == [0, 1, 2, 3]
    assert not forming.is_due(100.0)
    assert forming.schedule.acknowledge_all(first)
    forming.former.take_in(1.0)
    assert forming.offsets(2.0) == [4, 5]


def test_a_replayed_message_is_a_batch_by_itself() -> None:
    """It is removed from the park store before the next one of its key is handled."""
    forming = Forming(size=5)
    claim = forming.claims[0]
    for index in (-1, -2):
        message = Message("a", 0, records("a")[0], claim, index)
        if claim.lanes.enter(message):
            forming.schedule.ready.append(message)
    forming.schedule.window.take(2, 0)
    forming.arrive("ab")
    first = forming.take()
    assert [message.index for message in first] == [-1]
    forming.finish(first)
    assert [message.index for message in forming.take()] == [-2]


def test_a_revoke_drops_the_messages_of_its_claims_from_batches() -> None:
    """Those of other claims stay, and keys are free again."""
    forming = Forming(size=3)
    forming.arrive("aab")
    forming.arrive("c", partition=1)
    forming.arrive("a")
    gone = forming.schedule.drop([forming.claims[0]])
    assert sorted(message.offset for message in gone) == [0, 1, 2, 3]
    assert forming.schedule.window.messages == 1
    assert forming.schedule.active == 1
    batch = forming.take(1.0)
    assert [message.partition for message in batch] == [1]


def test_a_drain_keeps_the_next_batch_only() -> None:
    """consumer/O14: at most `size` messages; later ones are redelivered."""
    forming = Forming(size=2)
    forming.arrive("abcde")
    forming.former.hurry(0.0)
    gone = forming.schedule.drop([forming.claims[0]], keep_batch=True)
    assert sorted(message.offset for message in gone) == [2, 3, 4]
    assert [message.offset for message in forming.schedule.formed] == [0, 1]
    assert forming.offsets() == [0, 1]
    assert not forming.is_due()


def test_a_drain_keeps_the_batch_of_each_lane() -> None:
    """consumer/O14, for batches of one partition."""
    forming = Forming(ordering="partition", size=2)
    forming.arrive("abc")
    forming.arrive("a", partition=1)
    forming.former.hurry(0.0)
    forming.schedule.drop(forming.claims, keep_batch=True)
    assert [forming.offsets(), forming.offsets()] == [[0, 1], [0]]


def work(messages: int, keys: int, size: int) -> float:
    """Python and C function calls per message while all batches are formed."""
    forming = Forming(size=size)
    count = 0

    def count_one(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    arriving = records([place % keys for place in range(messages)])
    step = 50
    before = sys.getprofile()
    for first in range(0, messages, step):
        forming.schedule.admit(forming.claims[0], arriving[first : first + step])
        sys.setprofile(count_one)
        try:
            forming.former.take_in(0.0)
            batch = forming.former.take(0.0, is_idle=False)
        finally:
            sys.setprofile(before)
        del batch  # its keys stay busy: their later messages wait forever
    return count / messages


@pytest.mark.parametrize("keys", [1, 10, 1000])
def test_forming_costs_the_same_for_any_number_of_keys_and_waiting_messages(keys: int) -> None:
    """consumer/4.5: messages are examined when they become ready and when they join, not while they
    wait.
    """
    few, many = work(500, keys, 50), work(5_000, keys, 50)
    assert many < few * 1.1 + 1
    assert many < 30
