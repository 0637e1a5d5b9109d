"""Positions of one claim, compared with a set of offsets.

White box: the tracker without a claim.

Planted faults, and the test that detects each:

- holes taken for records (`position` as offset + 1 of the last settled one):
  `test_holes_never_stall_the_position`, and the model;
- no `index >= base` in `done`: `test_a_late_second_settle_touches_no_other_record`, and the model;
- the highest settled record committed: `test_the_position_never_passes_an_unfinished_record`, and
  the model;
- runs not released, or released one too early: the model, and
  `test_a_compacted_topic_costs_no_memory_behind_its_position`;
- a span settled from the first record of the claim on, or up to its last one although some between
  are of another batch: the model;
- a run for every admission: `test_records_without_holes_between_them_cost_a_byte_however_they_arrive`;
- `admit` that changes something before it refuses: `test_a_refused_admission_changes_nothing`;
- the settled prefix told as a range: `test_ranges_need_no_call_of_position_before`.

White box: the tracker of one claim.
"""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.properties import examples

from sluicegate.consumer.progress.offset_map import decode, encode
from sluicegate.consumer.progress.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Iterable


def holed(start: int, *offsets: int) -> Tracker:
    """A tracker that has admitted these offsets."""
    tracker = Tracker(start)
    tracker.admit(offsets[0], offsets[-1], len(offsets), lambda: offsets)
    return tracker


def settle(tracker: Tracker, *offsets: int) -> None:
    for offset in offsets:
        assert tracker.done(index_of(tracker, offset))


def index_of(tracker: Tracker, offset: int) -> int:
    held = range(tracker.base, tracker.next_index)
    return next(index for index in held if tracker.offset_of(index) == offset)


def covered(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def test_the_position_never_passes_an_unfinished_record() -> None:
    """I7, consumer/C:C1, consumer/C:C5, O-T5: 5 is refused while 6 to 9 are settled; then 5 is
    settled.
    """
    tracker = holed(5, 5, 6, 7, 8, 9)
    settle(tracker, 6, 7, 8, 9)
    assert tracker.position() == 5
    assert list(tracker.done_ranges()) == [(6, 10)]
    settle(tracker, 5)
    assert tracker.position() == 10
    assert list(tracker.done_ranges()) == []


def test_completions_in_any_order_commit_in_the_order_of_the_log() -> None:
    """O-T5: settling 6, 7, 5 commits none, none, 8."""
    tracker = holed(5, 5, 6, 7)
    positions: list[int] = []
    for offset in (6, 7, 5):
        settle(tracker, offset)
        positions.append(tracker.position())
    assert positions == [5, 5, 8]


def test_holes_never_stall_the_position() -> None:
    """consumer/C:C2, O-T6: at the head, inside, and at the tail once the source reports it."""
    tracker = holed(3, 5, 6, 9, 20)
    assert tracker.position() == 5
    settle(tracker, 5, 6)
    assert tracker.position() == 9
    settle(tracker, 20)
    assert list(tracker.done_ranges()) == [(20, 21)]
    settle(tracker, 9)
    assert tracker.position() == 21
    tracker.advance(25)
    assert tracker.position() == 25
    tracker.advance(23)
    assert tracker.position() == 25


def test_trailing_holes_wait_for_the_records_before_them() -> None:
    """consumer/C:C2, consumer/C:C1."""
    tracker = holed(0, 0, 1)
    tracker.advance(9)
    assert tracker.position() == 0
    settle(tracker, 0)
    assert tracker.position() == 1
    settle(tracker, 1)
    assert tracker.position() == 9


def test_nothing_is_committed_for_being_delivered() -> None:
    """consumer/C:C5."""
    tracker = Tracker(7)
    assert tracker.position() == 7
    tracker.admit(7, 106, 100)
    assert (tracker.position(), tracker.unfinished, tracker.settled) == (7, 100, 0)


def test_holes_are_asked_for_only_if_there_are_some() -> None:
    def never() -> list[int]:
        raise AssertionError

    tracker = Tracker(0)
    assert tracker.admit(4, 6, 3, never) == 0
    assert tracker.admit(9, 9, 1, never) == 3
    assert tracker.admit(20, 22, 2, lambda: (20, 22)) == 4
    assert [tracker.offset_of(index) for index in range(6)] == [4, 5, 6, 9, 20, 22]


def test_a_range_spans_holes_but_no_unfinished_record() -> None:
    tracker = holed(0, 0, 2, 4, 6, 8, 10)
    settle(tracker, 2, 4, 8)
    assert list(tracker.done_ranges()) == [(2, 5), (8, 9)]


def test_ranges_need_no_call_of_position_before() -> None:
    """consumer/C:C4: the ranges lie beyond the position, whichever is read first."""
    tracker = holed(0, 0, 1, 2, 3)
    settle(tracker, 0, 2)
    assert list(tracker.done_ranges()) == [(2, 3)]
    assert tracker.position() == 1
    assert list(tracker.done_ranges()) == [(2, 3)]


def test_a_record_is_settled_once() -> None:
    tracker = holed(0, 0, 1)
    assert tracker.done(1)
    assert not tracker.done(1)
    assert (tracker.unfinished, tracker.is_done(0), tracker.is_done(1)) == (1, False, True)


def test_a_late_second_settle_touches_no_other_record() -> None:
    """consumer/C:C1: index - base is negative then, and Python would count from the end."""
    tracker = holed(0, 0, 1, 2, 3)
    settle(tracker, 0, 1)
    assert tracker.position() == 2
    assert not tracker.done(0)
    assert not tracker.done(1)
    assert (tracker.position(), tracker.unfinished) == (2, 2)
    assert tracker.is_done(0)


def test_a_record_that_was_never_delivered_can_be_neither_settled_nor_found() -> None:
    tracker = holed(4, 4, 5, 9)
    settle(tracker, 4)
    assert tracker.position() == 5
    for index in (3, 100):
        for question in (tracker.done, tracker.is_done, tracker.offset_of):
            with pytest.raises(IndexError):
                question(index)
    with pytest.raises(IndexError, match="index=0: only those from 1 to 2 are held"):
        tracker.offset_of(0)
    assert [tracker.offset_of(index) for index in (1, 2)] == [5, 9]


@pytest.mark.parametrize(
    ("first", "last", "count", "offsets"),
    [
        (9, 12, 4, None),  # redelivered
        (10, 12, 0, None),
        (10, 9, 0, None),
        (10, 12, 4, None),  # more records than offsets
        (10, 13, 3, None),  # holes at unknown offsets
        (10, 13, 3, (10, 12)),
        (10, 13, 3, (10, 11, 12, 13)),
        (10, 13, 3, (10, 13, 12)),
        (10, 13, 3, (10, 10, 13)),
        (10, 13, 3, (11, 12, 13)),
        (10, 13, 3, (9, 12, 13)),
        (10, 13, 3, (10, 11, 14)),
        (10, 13, 3, ()),
    ],
)
def test_a_refused_admission_changes_nothing(
    first: int, last: int, count: int, offsets: tuple[int, ...] | None
) -> None:
    tracker = holed(7, 7, 9)
    before = repr(tracker)
    with pytest.raises(ValueError, match=r"\d"):
        tracker.admit(first, last, count, None if offsets is None else lambda: offsets)
    assert repr(tracker) == before
    assert tracker.admit(10, 10, 1) == 2
    assert [tracker.offset_of(index) for index in range(3)] == [7, 9, 10]


def test_a_committer_sees_whether_anything_was_settled() -> None:
    """The pair of `settled` and `position()` is unchanged exactly if the commit is."""
    tracker = holed(0, 0, 1, 2)
    settle(tracker, 1)
    seen = tracker.settled, tracker.position()
    tracker.admit(5, 9, 5)
    assert (tracker.settled, tracker.position()) == seen
    settle(tracker, 9)
    assert (tracker.settled, tracker.position()) == (seen[0] + 1, seen[1])


def test_ten_million_done_behind_a_stuck_head_cost_a_byte_each() -> None:
    """consumer/C:C4: their map has a dozen characters."""
    count = 10_000_000
    tracker = Tracker(100)
    tracemalloc.start()
    try:
        for first in range(100, count + 100, count // 10):
            tracker.admit(first, first + count // 10 - 1, count // 10)
        tracker.bits[1:] = b"\1" * (count - 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tracker.span == count
    assert held < 1.2 * count
    assert tracker.position() == 100
    text, cut = encode(100, tracker.done_ranges())
    assert (len(text), cut) == (13, False)
    assert decode(100, text) == [(101, count + 100)]
    assert tracker.done(0)
    assert (tracker.position(), tracker.span) == (count + 100, 0)


def test_records_without_holes_between_them_cost_a_byte_however_they_arrive() -> None:
    tracker = Tracker(0)
    tracemalloc.start()
    try:
        for offset in range(20_000):
            tracker.admit(offset, offset, 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.2 * 20_000


def test_a_compacted_topic_costs_no_memory_behind_its_position() -> None:
    """Every second offset is a hole."""
    tracker = Tracker(0)
    tracemalloc.start()
    try:
        for first in range(0, 200_000, 2_000):
            offsets = range(first, first + 2_000, 2)
            index = tracker.admit(first, first + 1_998, 1_000, lambda offsets=offsets: offsets)  # type: ignore[misc]  # mypy infers no default
            tracker.bits[index - tracker.base :] = b"\1" * 1_000
            assert tracker.position() == first + 1_999
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 50_000


class TrackerMachine(RuleBasedStateMachine):
    """A tracker compared with the set of delivered offsets and the set of settled ones."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker(10)
        self.next = 10
        self.delivered: list[int] = []
        self.settled: set[int] = set()

    @rule(gaps=st.lists(st.sampled_from([1, 1, 1, 1, 2, 5]), min_size=1, max_size=8))
    def admit(self, gaps: list[int]) -> None:
        offsets: list[int] = []
        at = self.next - 1
        for gap in gaps:
            at += gap
            offsets.append(at)
        index = self.tracker.admit(offsets[0], offsets[-1], len(offsets), lambda: offsets)
        assert index == len(self.delivered)
        self.delivered += offsets
        self.next = offsets[-1] + 1

    @rule(holes=st.integers(-3, 3))
    def advance(self, holes: int) -> None:
        self.tracker.advance(self.next + holes)
        self.next += max(0, holes)

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        unfinished = sorted(set(self.delivered) - self.settled)
        near = unfinished[:2] or self.delivered[-1:]
        offset = data.draw(st.sampled_from(near) | st.sampled_from(self.delivered))
        fresh = offset not in self.settled
        assert self.tracker.done(self.delivered.index(offset)) is fresh
        self.settled.add(offset)

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def done_all(self, data: st.DataObject) -> None:
        """Of a span, or of any records in any order."""
        last = len(self.delivered) - 1
        first = data.draw(st.integers(0, last))
        indices = [*range(first, data.draw(st.integers(first, last)) + 1)]
        if data.draw(st.booleans()):
            some = data.draw(st.lists(st.sampled_from(indices), unique=True, min_size=1))
            indices = some
        offsets = {self.delivered[index] for index in indices}
        if self.tracker.are_unfinished(indices):
            assert not offsets & self.settled
            self.tracker.done_all(indices)
            self.settled |= offsets
        else:
            assert offsets & self.settled

    @rule()
    def position(self) -> None:
        unfinished = set(self.delivered) - self.settled
        assert self.tracker.position() == min(unfinished, default=self.next)
        assert self.tracker.span == len([at for at in self.delivered if at >= self.expected])

    @property
    def expected(self) -> int:
        return min(set(self.delivered) - self.settled, default=self.next)

    @invariant()
    def ranges_are_what_is_settled_beyond_the_position(self) -> None:
        ranges = list(self.tracker.done_ranges())
        beyond = {offset for offset in self.settled if offset > self.expected}
        assert covered(ranges) & set(self.delivered) == beyond
        assert all(start in beyond and end - 1 in beyond for start, end in ranges)
        unfinished = set(self.delivered) - self.settled
        bounds = [(0, self.expected), *ranges]
        assert all(
            any(end <= offset < start for offset in unfinished)
            for (_, end), (start, _) in pairwise(bounds)
        )

    @invariant()
    def counts_and_places_agree(self) -> None:
        tracker = self.tracker
        assert tracker.unfinished == len(self.delivered) - len(self.settled)
        assert tracker.settled == len(self.settled)
        assert (tracker.next_index, tracker.next_offset) == (len(self.delivered), self.next)
        for index, offset in enumerate(self.delivered):
            assert tracker.is_done(index) is (offset in self.settled)
            if index >= tracker.base:
                assert tracker.offset_of(index) == offset


@pytest.mark.hypothesis
def test_a_tracker_agrees_with_a_set_of_offsets() -> None:
    """consumer/C:C1, consumer/C:C2, consumer/C:C5, O-T5, O-T6."""
    run_state_machine_as_test(
        TrackerMachine, settings=settings(examples(15, long=500), stateful_step_count=50)
    )
